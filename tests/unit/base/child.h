// Runs a function in a child process and gives what it wrote to stderr, and its wait status.
#ifndef TD_TESTS_BASE_CHILD_H
#define TD_TESTS_BASE_CHILD_H

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/buf.h"
#include "tests/unit/cmocka_all.h"

static inline int run_in_child(void (*fn)(void), struct td_buf *out) {
    int fds[2], status = 0;
    assert_int_equal(pipe(fds), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0});
        signal(SIGABRT, SIG_DFL);
        dup2(fds[1], STDERR_FILENO);
        fn();
        _exit(0);
    }
    close(fds[1]);
    ssize_t n;
    while ((n = read(fds[0], td_buf_room(out, 4096), 4096)) > 0) {
        out->len += (size_t)n;
    }
    (void)td_buf_room(out, 0);
    close(fds[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

#endif
