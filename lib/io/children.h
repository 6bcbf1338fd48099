// Child processes: started by exec, never by fork alone; reaped through the loop. A child is not
// ended by the end of its parent: each leads a session of its own.
#ifndef TD_IO_CHILDREN_H
#define TD_IO_CHILDREN_H

#include <stddef.h>
#include <sys/types.h>

#include "lib/io/loop.h"

struct td_children;

enum { TD_CHILD_FD_END = 256 };

struct td_child_fd {
    int from; // descriptor here, borrowed
    int to;   // its number in the child, below TD_CHILD_FD_END
};

// status: as of waitpid(2); −1: somebody else reaped it. After this call the pid may belong to
// somebody else.
typedef void td_child_exit_fn(void *user, pid_t pid, int status);

struct td_child_opts {
    const char *const *argv;       // argv[0] is the program: a path, or a name looked up in PATH
    const char *const *env;        // NULL: this process's environment
    const struct td_child_fd *fds; // nothing else above 2 is open in the child;
    size_t fd_count;               // 0–2 are inherited unless named here
    td_child_exit_fn *on_exit;     // may be NULL
    void *user;
};

// Watches SIGCHLD: one per process. max: most children alive at a time.
enum td_rc td_children_new(struct td_loop *loop, size_t max, struct td_children **out,
                           struct td_err *err) TD_MUST_CHECK;
// Leaves the children running; their exits are not reported any more.
void td_children_free(struct td_children *children); // accepts NULL
// Starts a child with default signal handling and an empty signal mask. TD_ENOENT, TD_EPERM: the
// program; TD_ELIMIT: too many children.
enum td_rc td_children_spawn(struct td_children *children, const struct td_child_opts *opts,
                             pid_t *pid, struct td_err *err) TD_MUST_CHECK;
// The ends of children that were started for user are not reported any more; they are still reaped.
void td_children_forget(struct td_children *children, const void *user);
// TD_ENOENT: no child with this pid is alive.
enum td_rc td_children_signal(struct td_children *children, pid_t pid, int signum,
                              struct td_err *err) TD_MUST_CHECK;
size_t td_children_count(const struct td_children *children);

#endif
