// A redis-server of a test's own: a socket in a temporary folder, no port, nothing on the disk.
#ifndef TD_TESTS_IO_REDIS_SERVER_H
#define TD_TESTS_IO_REDIS_SERVER_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "tests/unit/io/wait.h"

struct redis_server {
    char folder[32];
    char *path, *address; // of the socket, and as the store has it
    pid_t pid;
    int port; // 0: none
};

// Sends a line and waits for an answer that begins with want.
static inline bool redis_says(const struct redis_server *server, const char *line,
                              const char *want) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    char answer[256] = "";
    memcpy(to.sun_path, server->path, strlen(server->path));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    bool good = connect(fd, (struct sockaddr *)&to, sizeof to) == 0 &&
                send(fd, line, strlen(line), MSG_NOSIGNAL) == (ssize_t)strlen(line) &&
                read(fd, answer, sizeof answer - 1) > 0 && strncmp(answer, want, strlen(want)) == 0;
    close(fd);
    return good;
}

static inline void redis_exec(const struct redis_server *server, const char *password) {
    char port[8];
    snprintf(port, sizeof port, "%d", server->port);
    const char *argv[] = {"redis-server",
                          "--port",
                          port,
                          "--bind",
                          "127.0.0.1",
                          "--unixsocket",
                          server->path,
                          "--save",
                          "",
                          "--dir",
                          server->folder,
                          "--hz",
                          "50",
                          password ? "--requirepass" : NULL,
                          password,
                          NULL};
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(null, 1);
    dup2(null, 2);
    execvp(argv[0], (char *const *)argv);
    _exit(127);
}

// password NULL: none. Waits until it answers.
static inline void redis_run(struct redis_server *server, const char *password) {
    server->pid = fork();
    assert_true(server->pid >= 0);
    if (server->pid == 0) {
        redis_exec(server, password);
    }
    int64_t deadline_ms = td_clock_ms() + WAIT_MS;
    while (!redis_says(server, "PING\r\n", password ? "-NOAUTH" : "+PONG")) {
        assert_true(td_clock_ms() < deadline_ms);
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
}

static inline void redis_kill(struct redis_server *server) {
    kill(server->pid, SIGKILL);
    assert_int_equal(waitpid(server->pid, NULL, 0), server->pid);
    server->pid = 0;
}

// False, with a message: there is no redis-server on this machine.
static inline bool redis_open(struct redis_server *server, const char *password, int port) {
    *server = (struct redis_server){.folder = "/tmp/td-redis-XXXXXX", .port = port};
    const char *path = getenv("PATH");
    bool found = false;
    while (path && *path && !found) {
        char program[4096];
        size_t n = strcspn(path, ":");
        snprintf(program, sizeof program, "%.*s/redis-server", (int)n, path);
        found = access(program, X_OK) == 0;
        path += n + (path[n] == ':');
    }
    if (!found) {
        print_message("skipped: redis-server is not installed (deploy/debian-packages test)\n");
        return false;
    }
    assert_non_null(mkdtemp(server->folder));
    server->path = td_asprintf("%s/s", server->folder);
    server->address = td_asprintf("unix:%s", server->path);
    redis_run(server, password);
    return true;
}

static inline void redis_close(struct redis_server *server) {
    if (server->pid) {
        redis_kill(server);
    }
    assert_int_equal(td_remove_tree(server->folder, NULL), TD_OK);
    td_free(server->path);
    td_free(server->address);
}

#endif
