// The lock of a run directory: exclusive, names its holder, ends with it.
#include "lib/io/runlock.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "tests/unit/cmocka_all.h"

static void test_runlock_names_the_holder(void **state) {
    (void)state;
    char dir[] = "/tmp/td_runlock_XXXXXX";
    assert_non_null(mkdtemp(dir));
    int first = -1, second = -1;
    struct td_err err;
    assert_int_equal(td_run_lock(dir, &first, &err), TD_OK);
    assert_int_equal(td_run_lock(dir, &second, &err), TD_ECONFLICT);
    assert_int_equal(second, -1);
    char pid[32];
    snprintf(pid, sizeof pid, "process %d", (int)getpid());
    assert_non_null(strstr(err.msg, pid));
    assert_non_null(strstr(err.msg, dir));
    close(first);
    assert_int_equal(td_run_lock(dir, &second, &err), TD_OK);
    close(second);
    assert_int_equal(td_remove_tree(dir, &err), TD_OK);
    assert_int_equal(td_run_lock(dir, &second, &err), TD_ENOENT);
}

// A child that still has the descriptor holds the lock until it ends.
static void test_runlock_waits_for_a_holder_that_is_ending(void **state) {
    (void)state;
    char dir[] = "/tmp/td_runlock_XXXXXX";
    assert_non_null(mkdtemp(dir));
    int first = -1, second = -1;
    struct td_err err;
    assert_int_equal(td_run_lock(dir, &first, &err), TD_OK);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)poll(NULL, 0, 100);
        _exit(0);
    }
    close(first);
    assert_int_equal(td_run_lock(dir, &second, &err), TD_OK);
    close(second);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(td_remove_tree(dir, &err), TD_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runlock_names_the_holder),
        cmocka_unit_test(test_runlock_waits_for_a_holder_that_is_ending),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
