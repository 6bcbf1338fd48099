// Assertions abort and print place, expression and values; what holds prints nothing. Clock: never
// back.
#include "lib/base/check.h"

#include <string.h>

#include "lib/base/clock.h"
#include "tests/unit/base/child.h"

static void fail_plain(void) {
    td_assert(1 + 1 == 3);
}

static void fail_values(void) {
    int count = 5;
    td_assert_op(count, <, -2);
}

static void hold(void) {
    int evaluated = 0;
    td_assert(++evaluated == 1);
    td_assert_op(++evaluated, ==, 2);
    td_assert_op(SIZE_MAX / 2, >=, 0);
}

static void test_check_prints_and_aborts(void **state) {
    (void)state;
    static const struct {
        void (*fn)(void);
        const char *says;
    } rows[] = {{fail_plain, "1 + 1 == 3"}, {fail_values, "count < -2 (5, -2)"}, {hold, NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct td_buf out = {0};
        int status = run_in_child(rows[i].fn, &out);
        if (rows[i].says) {
            assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
            assert_non_null(strstr(td_buf_str(&out), rows[i].says));
            assert_non_null(strstr(td_buf_str(&out), "test_check.c:"));
        } else {
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
            assert_string_equal(td_buf_str(&out), "");
        }
        td_buf_fini(&out);
    }
}

static void test_clock_never_goes_back(void **state) {
    (void)state;
    int64_t ns = td_clock_ns(), ms = td_clock_ms();
    for (int i = 0; i < 1000; i++) {
        int64_t now_ns = td_clock_ns(), now_ms = td_clock_ms();
        assert_true(now_ns >= ns && now_ms >= ms);
        ns = now_ns;
        ms = now_ms;
    }
    assert_true(td_clock_wall_s() > 1700000000); // after 2023
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_check_prints_and_aborts),
        cmocka_unit_test(test_clock_never_goes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
