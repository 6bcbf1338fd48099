// Child processes: descriptors, environment, session, exit status, errors.
#include "lib/io/children.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/buf.h"
#include "tests/unit/io/wait.h"

struct family {
    struct td_loop *loop;
    struct td_children *children;
    int exits, status;
    pid_t pid;
    bool free_on_exit;
};

static void on_exit_note(void *user, pid_t pid, int status) {
    struct family *family = user;
    family->exits++;
    family->pid = pid;
    family->status = status;
    if (family->free_on_exit) {
        td_children_free(family->children);
        family->children = NULL;
    }
}

static void start(struct family *family, size_t max) {
    *family = (struct family){.loop = new_loop()};
    assert_int_equal(td_children_new(family->loop, max, &family->children, NULL), TD_OK);
}

static void stop(struct family *family) {
    td_children_free(family->children);
    td_loop_free(family->loop);
}

static pid_t spawn(struct family *family, const char *script, const char *const *env,
                   const struct td_child_fd *fds, size_t fd_count) {
    const char *argv[] = {"/bin/sh", "-c", script, NULL};
    struct td_child_opts opts = {argv, env, fds, fd_count, on_exit_note, family};
    pid_t pid = 0;
    assert_int_equal(td_children_spawn(family->children, &opts, &pid, NULL), TD_OK);
    return pid;
}

static void read_all(int fd, struct td_buf *out) {
    ssize_t n;
    while ((n = read(fd, td_buf_room(out, 4096), 4096)) > 0) {
        out->len += (size_t)n;
        (void)td_buf_room(out, 0);
    }
}

static void test_children_report_how_they_ended(void **state) {
    (void)state;
    struct family family;
    start(&family, 4);
    pid_t pid = spawn(&family, "exit 7", NULL, NULL, 0);
    wait_until(family.loop, &family.exits, 1);
    assert_int_equal(family.pid, pid);
    assert_true(WIFEXITED(family.status));
    assert_int_equal(WEXITSTATUS(family.status), 7);
    pid = spawn(&family, "exec sleep 100", NULL, NULL, 0);
    assert_int_equal(getsid(pid), pid);
    assert_int_equal(td_children_signal(family.children, pid, SIGKILL, NULL), TD_OK);
    wait_until(family.loop, &family.exits, 2);
    assert_true(WIFSIGNALED(family.status));
    assert_int_equal(td_children_signal(family.children, pid, SIGKILL, NULL), TD_ENOENT);
    stop(&family);
}

// Two descriptors change places, one is not passed on, and only the environment given is seen.
static void test_children_get_exactly_what_is_named(void **state) {
    (void)state;
    struct family family;
    start(&family, 4);
    int out[2], extra[2];
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    assert_int_equal(pipe2(extra, 0), 0); // even without O_CLOEXEC
    const char *env[] = {"GREETING=hello", NULL};
    struct td_child_fd fds[] = {{out[1], extra[1]}, {extra[1], out[1]}, {out[1], 1}};
    char script[256];
    snprintf(script, sizeof script,
             "echo $GREETING; echo one >/proc/self/fd/%d; echo two >/proc/self/fd/%d; ls "
             "/proc/self/fd | wc -l",
             extra[1], out[1]);
    spawn(&family, script, env, fds, 3);
    close(out[1]);
    close(extra[1]);
    wait_until(family.loop, &family.exits, 1);
    struct td_buf got = {0}, other = {0};
    read_all(out[0], &got);
    read_all(extra[0], &other);
    // of ls: 0, 1, 2, the two named, and the folder it reads
    assert_string_equal(td_buf_str(&got), "hello\none\n6\n");
    assert_string_equal(td_buf_str(&other), "two\n");
    td_buf_fini(&got);
    td_buf_fini(&other);
    close(out[0]);
    close(extra[0]);
    stop(&family);
}

static void test_children_start_with_default_signals(void **state) {
    (void)state;
    struct family family;
    start(&family, 4); // the loop ignores SIGPIPE; a child must not
    spawn(&family, "kill -PIPE $$; exit 3", NULL, NULL, 0);
    wait_until(family.loop, &family.exits, 1);
    assert_true(WIFSIGNALED(family.status));
    assert_int_equal(WTERMSIG(family.status), SIGPIPE);
    stop(&family);
}

static void test_children_errors(void **state) {
    (void)state;
    struct family family;
    start(&family, 1);
    struct td_err err;
    pid_t pid = 0;
    const char *missing[] = {"/nonexistent/program", NULL};
    struct td_child_opts opts = {.argv = missing};
    assert_int_equal(td_children_spawn(family.children, &opts, &pid, &err), TD_ENOENT);
    assert_non_null(strstr(err.msg, "/nonexistent/program"));
    const char *refused[] = {"/etc/passwd", NULL};
    opts.argv = refused;
    assert_int_equal(td_children_spawn(family.children, &opts, &pid, &err), TD_EPERM);
    struct td_child_fd bad = {987, 3};
    const char *fine[] = {"true", NULL};
    opts = (struct td_child_opts){.argv = fine, .fds = &bad, .fd_count = 1};
    assert_int_equal(td_children_spawn(family.children, &opts, &pid, &err), TD_EIO);
    assert_int_equal(td_children_count(family.children), 0);
    spawn(&family, "exit 0", NULL, NULL, 0);
    opts = (struct td_child_opts){.argv = fine};
    assert_int_equal(td_children_spawn(family.children, &opts, &pid, &err), TD_ELIMIT);
    wait_until(family.loop, &family.exits, 1);
    stop(&family);
}

static void test_children_may_be_freed_in_a_callback(void **state) {
    (void)state;
    struct family family;
    start(&family, 4);
    family.free_on_exit = true;
    pid_t first = spawn(&family, "exit 0", NULL, NULL, 0);
    pid_t second = spawn(&family, "exit 0", NULL, NULL, 0);
    wait_until(family.loop, &family.exits, 1);
    pid_t left = family.pid == first ? second : first;
    assert_int_equal(waitpid(left, NULL, 0), left);
    stop(&family);
}

// Who started a child may be gone when it ends: it is reaped and nobody is told.
static void test_children_are_reaped_when_forgotten(void **state) {
    (void)state;
    struct family family, gone = {0};
    start(&family, 4);
    const char *argv[] = {"/bin/sh", "-c", "exit 0", NULL};
    struct td_child_opts opts = {.argv = argv, .on_exit = on_exit_note, .user = &gone};
    pid_t pid = 0, own = spawn(&family, "exit 0", NULL, NULL, 0);
    assert_int_equal(td_children_spawn(family.children, &opts, &pid, NULL), TD_OK);
    td_children_forget(family.children, &gone);
    wait_until(family.loop, &family.exits, 1);
    assert_int_equal(family.pid, own);
    while (td_children_count(family.children) > 0) {
        spawn(&family, "exit 0", NULL, NULL, 0); // its end has the others looked at too
        wait_until(family.loop, &family.exits, family.exits + 1);
    }
    assert_int_equal(gone.exits, 0);
    stop(&family);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_children_report_how_they_ended),
        cmocka_unit_test(test_children_get_exactly_what_is_named),
        cmocka_unit_test(test_children_start_with_default_signals),
        cmocka_unit_test(test_children_errors),
        cmocka_unit_test(test_children_may_be_freed_in_a_callback),
        cmocka_unit_test(test_children_are_reaped_when_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
