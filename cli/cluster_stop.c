// Stopping processes of a local cluster: see cluster_stop.h.
#include "cli/cluster_stop.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "cli/process.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/ipc/conn.h"

enum { KILL_MS = 10000, LOOK_MS = 20 };

static void pause_ms(long ms) {
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

// ---- workers that outlived their controller ----

// The process that listens at path; 0: nobody does.
static pid_t listener_of(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct ucred peer = {0};
    socklen_t len = sizeof peer;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return 0;
    }
    bool there = connect(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
                 getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0;
    close(fd);
    return there ? peer.pid : 0;
}

static bool ends_in(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return n > m && strcmp(name + n - m, end) == 0;
}

static void kill_worker(const char *path) {
    pid_t pid = listener_of(path);
    uint64_t start = td_process_start(pid);
    // Asked once more: an id that went to somebody else meanwhile listens nowhere here.
    if (start && listener_of(path) == pid && td_process_signal(pid, start, SIGKILL)) {
        int64_t until_ms = td_clock_ms() + KILL_MS;
        while (td_process_alive(pid, start) && td_clock_ms() < until_ms) {
            pause_ms(LOOK_MS);
        }
    }
    td_ipc_unlink(path, NULL);
}

static void kill_workers_in(const char *folder) {
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (ends_in(e->d_name, ".sock")) {
            char *path = td_asprintf("%s/%s", folder, e->d_name);
            kill_worker(path);
            td_free(path);
        }
    }
    if (d) {
        closedir(d);
    }
}

// A controller keeps the sockets of each job's workers in a folder of the job's.
static void kill_workers(const char *dir, const char *name) {
    char *jobs = td_asprintf("%s/%s/jobs", dir, name);
    DIR *d = opendir(jobs);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] != '.') {
            char *folder = td_asprintf("%s/%s", jobs, e->d_name);
            kill_workers_in(folder);
            td_free(folder);
        }
    }
    if (d) {
        closedir(d);
    }
    td_free(jobs);
}

// ---- daemons and servers ----

enum { PHASES = 4 };

static int phase_of(const struct td_cluster_process *p) {
    return td_cluster_is(p, "coordinator") ? 1
           : td_cluster_is(p, "kafka")     ? 2
           : td_cluster_is(p, "redis")     ? 3
                                           : 0;
}

static bool concerns(const struct td_cluster *c, size_t i, const bool *which, int phase) {
    return (!which || which[i]) && phase_of(&c->processes[i]) == phase;
}

static size_t signal_all(const struct td_cluster *c, const bool *which, int phase, int signum) {
    size_t n = 0;
    for (size_t i = 0; i < c->count; i++) {
        const struct td_cluster_process *p = &c->processes[i];
        if (concerns(c, i, which, phase) && td_process_signal(p->pid, p->start, signum)) {
            (void)td_process_signal(p->pid, p->start, SIGCONT); // one that is stopped hears nothing
            n++;
        }
    }
    return n;
}

static bool wait_all(const struct td_cluster *c, const bool *which, int phase, int64_t ms) {
    int64_t until_ms = td_clock_ms() + ms;
    for (;;) {
        size_t alive = 0;
        for (size_t i = 0; i < c->count; i++) {
            alive += concerns(c, i, which, phase) && td_cluster_alive(&c->processes[i]);
        }
        if (alive == 0 || td_clock_ms() >= until_ms) {
            return alive == 0;
        }
        pause_ms(LOOK_MS);
    }
}

static void remove_left(const char *dir, const char *name) {
    char *path = td_asprintf("%s/%s", dir, name);
    (void)unlink(path);
    td_free(path);
}

static void tidy(const char *dir, struct td_cluster_process *p) {
    if (phase_of(p) == 0) {
        kill_workers(dir, p->name);
    } else if (td_cluster_is(p, "redis")) {
        remove_left(dir, "redis/redis.sock");
    } else if (td_cluster_is(p, "kafka")) { // as `deploy/kafka stop` does
        remove_left(dir, "kafka/node.pid");
        remove_left(dir, "kafka/address");
    }
    p->pid = 0;
    p->start = 0;
}

size_t td_cluster_stop(const char *dir, struct td_cluster *c, const bool *which, int64_t grace_ms) {
    size_t killed = 0;
    for (int phase = 0; phase < PHASES; phase++) {
        signal_all(c, which, phase, SIGTERM);
        if (!wait_all(c, which, phase, grace_ms)) {
            killed += signal_all(c, which, phase, SIGKILL);
            (void)wait_all(c, which, phase, KILL_MS);
        }
        for (size_t i = 0; i < c->count; i++) {
            if (concerns(c, i, which, phase)) {
                tidy(dir, &c->processes[i]);
            }
        }
    }
    return killed;
}
