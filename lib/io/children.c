// Child processes: see children.h. Loop thread. posix_spawn, so that nothing of this process runs
// between the new process and its exec.
#include "lib/io/children.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/check.h"
#include "lib/base/mem.h"

enum { FDS_MAX = 64 };

struct child {
    pid_t pid;
    td_child_exit_fn *on_exit;
    void *user;
};

struct td_children {
    struct td_loop *loop;
    struct td_watch *watch;
    struct child *children;
    size_t count, max;
    bool reaping, freed;
};

static void destroy(struct td_children *children) {
    td_free(children->children);
    td_free(children);
}

// Each child by its own id: other children of this process belong to others.
static void on_sigchld(void *user, int signum) {
    (void)signum;
    struct td_children *children = user;
    children->reaping = true;
    for (size_t i = 0; !children->freed && i < children->count;) {
        struct child child = children->children[i];
        int status = -1;
        if (waitpid(child.pid, &status, WNOHANG) == 0) {
            i++;
            continue;
        }
        children->children[i] = children->children[--children->count];
        if (child.on_exit) {
            child.on_exit(child.user, child.pid, status);
        }
    }
    children->reaping = false;
    if (children->freed) {
        destroy(children);
    }
}

enum td_rc td_children_new(struct td_loop *loop, size_t max, struct td_children **out,
                           struct td_err *err) {
    struct td_children *children = td_alloc(sizeof *children);
    children->loop = loop;
    children->max = max;
    children->children = td_alloc_array(max, sizeof *children->children);
    if (td_watch_signal(loop, SIGCHLD, on_sigchld, children, &children->watch) != TD_OK) {
        destroy(children);
        return td_fail(err, TD_EIO, "cannot watch for the end of child processes");
    }
    *out = children;
    return TD_OK;
}

void td_children_free(struct td_children *children) {
    if (!children) {
        return;
    }
    td_watch_close(children->watch);
    children->freed = true;
    if (!children->reaping) {
        destroy(children);
    }
}

static bool is_target(const struct td_child_opts *opts, int fd) {
    for (size_t i = 0; i < opts->fd_count; i++) {
        if (opts->fds[i].to == fd) {
            return true;
        }
    }
    return false;
}

// Duplicates above every target first: a target may be the source of another one.
static int add_fds(posix_spawn_file_actions_t *actions, const struct td_child_opts *opts,
                   int *copies) {
    int top = 2;
    for (size_t i = 0; i < opts->fd_count; i++) {
        td_assert(opts->fds[i].to >= 0 && opts->fds[i].to < TD_CHILD_FD_END);
        top = opts->fds[i].to > top ? opts->fds[i].to : top;
    }
    for (size_t i = 0; i < opts->fd_count; i++) {
        copies[i] = fcntl(opts->fds[i].from, F_DUPFD_CLOEXEC, top + 1);
        if (copies[i] < 0) {
            return errno;
        }
        int rc = posix_spawn_file_actions_adddup2(actions, copies[i], opts->fds[i].to);
        if (rc != 0) {
            return rc;
        }
    }
    int rc = posix_spawn_file_actions_addclosefrom_np(actions, top + 1);
    for (int fd = 3; rc == 0 && fd < top; fd++) { // closing what is not open is no error here
        rc = is_target(opts, fd) ? 0 : posix_spawn_file_actions_addclose(actions, fd);
    }
    return rc;
}

static int spawn(const struct td_child_opts *opts, pid_t *pid) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    int copies[FDS_MAX];
    memset(copies, -1, sizeof copies);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attr);
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &all);
    posix_spawnattr_setflags(&attr,
                             POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    int rc = add_fds(&actions, opts, copies);
    if (rc == 0) {
        // posix_spawn takes char *const[] for history's sake and changes nothing.
        char *const *argv = (char *const *)opts->argv;
        char *const *env = opts->env ? (char *const *)opts->env : environ;
        rc = posix_spawnp(pid, argv[0], &actions, &attr, argv, env);
    }
    for (size_t i = 0; i < opts->fd_count; i++) {
        if (copies[i] >= 0) {
            close(copies[i]);
        }
    }
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attr);
    return rc;
}

enum td_rc td_children_spawn(struct td_children *children, const struct td_child_opts *opts,
                             pid_t *pid, struct td_err *err) {
    td_loop_assert(children->loop);
    td_assert(opts->argv && opts->argv[0]);
    td_assert_op(opts->fd_count, <=, FDS_MAX);
    if (children->count == children->max) {
        return td_fail(err, TD_ELIMIT, "cannot start %s: %zu child processes are alive",
                       opts->argv[0], children->count);
    }
    pid_t started;
    int rc = spawn(opts, &started);
    if (rc != 0) {
        return td_fail_errno(err, rc, "cannot start %s", opts->argv[0]);
    }
    children->children[children->count++] = (struct child){started, opts->on_exit, opts->user};
    *pid = started;
    return TD_OK;
}

void td_children_forget(struct td_children *children, const void *user) {
    td_loop_assert(children->loop);
    for (size_t i = 0; i < children->count; i++) {
        if (children->children[i].user == user) {
            children->children[i].on_exit = NULL;
        }
    }
}

enum td_rc td_children_signal(struct td_children *children, pid_t pid, int signum,
                              struct td_err *err) {
    td_loop_assert(children->loop);
    for (size_t i = 0; i < children->count; i++) {
        // A child that ended keeps its id until it is reaped, so this cannot hit a stranger.
        if (children->children[i].pid == pid) {
            return kill(pid, signum) == 0
                       ? TD_OK
                       : td_fail_errno(err, errno, "signal to process %d", (int)pid);
        }
    }
    return td_fail(err, TD_ENOENT, "process %d is no child of this process (any more)", (int)pid);
}

size_t td_children_count(const struct td_children *children) {
    return children->count;
}
