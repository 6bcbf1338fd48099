// A daemon for tests of `tandem up`: what it is stands in its name, tandem-coordinator,
// tandem-rollout or tandem-train. Reads its settings as a real one does. Controllers register by a
// file in shared_dir and have a worker that outlives them; coordinators tell who is registered, and
// the one with the lock in shared_dir leads. Files in its run directory make it misbehave:
// "refuse" ends it at once, "silent" does not register, "stubborn" does not hear SIGTERM.
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/io/rpc.h"
#include "lib/ipc/conn.h"
#include "lib/spec/daemon_settings.h"
#include "proto/jobs.pb-c.h"

enum { MEMBERS_MAX = 16, BAD_SETTINGS = 78 };

struct daemon {
    enum td_daemon_role role;
    struct td_daemon_settings *settings;
    int lock;
};

static _Noreturn void end(const char *why) {
    fprintf(stderr, "fake daemon: %s\n", why);
    exit(1);
}

static bool is_told(const struct daemon *d, const char *name) {
    char *path = td_asprintf("%s/%s", d->settings->dir, name);
    bool there = td_file_exists(path);
    td_free(path);
    return there;
}

static struct td_daemon_settings *load(enum td_daemon_role role, const char *path) {
    struct td_spec_text text = {.name = path};
    struct td_spec_notes notes = {0};
    struct td_daemon_settings *s = NULL;
    struct td_err err;
    enum td_rc rc = td_daemon_settings_load(role, &text, &s, &notes, &err);
    fputs(td_buf_str(&notes.errors), stderr);
    fputs(td_buf_str(&notes.warnings), stderr);
    if (rc != TD_OK || notes.warning_count) {
        exit(BAD_SETTINGS);
    }
    return s;
}

// ---- coordinator ----

static void on_members(void *user, struct td_rpc_call *call, const ProtobufCMessage *request) {
    struct daemon *d = user;
    (void)request;
    if (flock(d->lock, LOCK_EX | LOCK_NB) != 0) {
        td_rpc_fail(call, TD_RPC_UNAVAILABLE, "this coordinator does not lead");
        return;
    }
    Tandem__V1__Member members[MEMBERS_MAX], *list[MEMBERS_MAX];
    Tandem__V1__ListMembersResponse r = TANDEM__V1__LIST_MEMBERS_RESPONSE__INIT;
    r.members = list;
    DIR *dir = opendir(d->settings->shared_dir);
    for (struct dirent *e; dir && r.n_members < MEMBERS_MAX && (e = readdir(dir));) {
        if (strncmp(e->d_name, "member-", 7) == 0) {
            Tandem__V1__Member *m = &members[r.n_members];
            tandem__v1__member__init(m);
            m->kind = strncmp(e->d_name + 7, "train", 5) == 0 ? "train" : "rollout";
            list[r.n_members++] = m;
        }
    }
    if (dir) {
        closedir(dir);
    }
    td_rpc_reply(call, &r.base);
}

static void on_signal(void *user, int signum) {
    (void)user;
    (void)signum;
    _exit(0);
}

static void coordinate(struct daemon *d) {
    const struct td_rpc_method method = {.path = "/tandem.v1.Jobs/ListMembers",
                                         .in = &tandem__v1__list_members_request__descriptor,
                                         .out = &tandem__v1__list_members_response__descriptor,
                                         .call = on_members,
                                         .user = d};
    struct td_loop *loop = NULL;
    struct td_rpc *rpc = NULL;
    struct td_rpc_server *server = NULL;
    struct td_watch *watch = NULL;
    struct td_err err;
    struct td_rpc_server_opts opts = {.methods = &method, .method_count = 1};
    char *path = td_asprintf("%s/lead", d->settings->shared_dir);
    d->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (d->lock < 0 || td_loop_new(&loop, &err) != TD_OK || td_rpc_new(loop, &rpc, &err) != TD_OK) {
        end("cannot start");
    }
    opts.rpc = rpc;
    if (td_rpc_server_new(&opts, &server, &err) != TD_OK ||
        td_rpc_server_listen(server, d->settings->listen, NULL, &err) != TD_OK ||
        td_watch_signal(loop, SIGTERM, on_signal, NULL, &watch) != TD_OK) {
        end("cannot serve");
    }
    td_rpc_server_start(server);
    td_loop_run(loop);
}

// ---- controller ----

// In a session of its own, as workers are, and in no way heeding the end of its parent. noted: file
// that holds the id of the one before.
static pid_t start_worker(const char *path, const char *noted) {
    struct td_err err;
    struct td_buf text = {0};
    int fd = -1;
    if (td_file_read(noted, 64, &text, &err) == TD_OK && access(path, F_OK) == 0) {
        kill((pid_t)strtol(td_buf_str(&text), NULL, 10), SIGKILL);
    }
    td_buf_fini(&text);
    unlink(path);
    pid_t pid = fork();
    if (pid == 0) {
        setsid();
        signal(SIGTERM, SIG_DFL);
        if (td_ipc_listen(path, &fd, &err) != TD_OK) {
            _exit(1);
        }
        for (;;) {
            pause();
        }
    }
    return pid;
}

static void control(const struct daemon *d, const char *name) {
    sigset_t term;
    struct td_err err;
    int signum = 0;
    char *workers = td_asprintf("%s/jobs/7", d->settings->dir);
    char *path = td_asprintf("%s/%s-0.sock", workers, td_daemon_role_name(d->role));
    char *member = td_asprintf("%s/member-%s", d->settings->shared_dir, name);
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigprocmask(SIG_BLOCK, &term, NULL);
    if (td_make_dirs(workers, &err) != TD_OK) {
        end(err.msg);
    }
    // The test looks whether it is gone.
    char *noted = td_asprintf("%s/worker", d->settings->dir), pid[32];
    pid_t worker = start_worker(path, noted);
    snprintf(pid, sizeof pid, "%d\n", (int)worker);
    if (td_file_write(noted, pid, strlen(pid), &err) != TD_OK) {
        end(err.msg);
    }
    if (!is_told(d, "silent") && td_file_write(member, "", 0, &err) != TD_OK) {
        end(err.msg);
    }
    fprintf(stderr, "%s serves\n", name);
    while (sigwait(&term, &signum) != 0 || is_told(d, "stubborn")) {
    }
    kill(worker, SIGKILL);
    td_ipc_unlink(path, NULL);
    unlink(member);
}

int main(int argc, char **argv) {
    static const enum td_daemon_role roles[] = {TD_DAEMON_COORDINATOR, TD_DAEMON_ROLLOUT,
                                                TD_DAEMON_TRAIN};
    struct daemon d = {0};
    const char *name = strrchr(argv[0], '-');
    if (argc != 3 || strcmp(argv[1], "-f") != 0 || !name) {
        end("usage: tandem-ROLE -f FILE");
    }
    for (int i = 0; i < TD_DAEMON_ROLES; i++) {
        d.role = strcmp(name + 1, td_daemon_role_name(roles[i])) == 0 ? roles[i] : d.role;
    }
    d.settings = load(d.role, argv[2]);
    if (is_told(&d, "refuse")) {
        end("I refuse");
    }
    if (d.role == TD_DAEMON_COORDINATOR) {
        coordinate(&d);
    } else {
        control(&d, strrchr(d.settings->dir, '/') + 1);
    }
    return 0;
}
