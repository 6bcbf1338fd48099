// Errors: codes, messages that grow to the front, errno, limits.
#include "lib/base/err.h"

#include <errno.h>
#include <string.h>

#include "tests/unit/cmocka_all.h"

static void test_err_grows_to_the_front(void **state) {
    (void)state;
    struct td_err err = {0};
    assert_int_equal(td_fail(&err, TD_EINVAL, "key %s: %d", "a.b", 7), TD_EINVAL);
    assert_string_equal(err.msg, "key a.b: 7");
    assert_int_equal(td_err_in(&err, "file %s", "x"), TD_EINVAL);
    assert_string_equal(err.msg, "file x: key a.b: 7");
    assert_int_equal(td_fail(&err, TD_EIO, "again: %s", err.msg), TD_EIO); // its own message
    assert_string_equal(err.msg, "again: file x: key a.b: 7");
    assert_int_equal(td_fail(NULL, TD_ELIMIT, "x"), TD_ELIMIT);
    assert_int_equal(td_fail_errno(NULL, ENOENT, "x"), TD_ENOENT);
    assert_int_equal(td_err_in(NULL, "x"), TD_EIO);
}

static void test_err_retriable(void **state) {
    (void)state;
    struct td_err err = {0};
    for (int rc = 0; rc < TD_RC_COUNT; rc++) {
        (void)td_fail(&err, (enum td_rc)rc, "x");
        assert_int_equal(err.retriable, rc == TD_ETIMEOUT || rc == TD_ECLOSED);
    }
}

static void test_err_of_errno(void **state) {
    (void)state;
    static const struct {
        int errnum;
        enum td_rc rc;
    } rows[] = {{ENOENT, TD_ENOENT}, {ENOTDIR, TD_ENOENT},
                {EACCES, TD_EPERM},  {EPERM, TD_EPERM},
                {EROFS, TD_EPERM},   {ENOSPC, TD_ENOSPC},
                {EFBIG, TD_ENOSPC},  {EDQUOT, TD_ENOSPC},
                {ENOMEM, TD_ENOMEM}, {ETIMEDOUT, TD_ETIMEOUT},
                {EPIPE, TD_ECLOSED}, {ECONNRESET, TD_ECLOSED},
                {EIO, TD_EIO},       {ECONNREFUSED, TD_ECLOSED},
                {EBADF, TD_EIO}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct td_err err = {0};
        assert_int_equal(td_fail_errno(&err, rows[i].errnum, "here"), rows[i].rc);
        assert_int_equal(err.code, rows[i].rc);
        assert_int_equal(strncmp(err.msg, "here: ", 6), 0);
        assert_string_equal(err.msg + 6, strerror(rows[i].errnum));
    }
}

static void test_err_long_messages_are_cut(void **state) {
    (void)state;
    char text[3 * TD_ERR_MAX];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    struct td_err err = {0};
    (void)td_fail(&err, TD_EIO, "%s", text);
    assert_int_equal(strlen(err.msg), TD_ERR_MAX - 1);
    (void)td_err_in(&err, "where");
    assert_true(strlen(err.msg) < TD_ERR_MAX);
    assert_int_equal(strncmp(err.msg, "where: xxx", 10), 0);
    (void)td_fail_errno(&err, ENOSPC, "%s", text);
    assert_non_null(strstr(err.msg, strerror(ENOSPC))); // the cause stays
}

static void test_err_every_code_has_a_name(void **state) {
    (void)state;
    for (int i = 0; i < TD_RC_COUNT; i++) {
        const char *name = td_rc_name((enum td_rc)i);
        assert_non_null(name);
        for (int k = 0; k < i; k++) {
            assert_string_not_equal(name, td_rc_name((enum td_rc)k));
        }
    }
    assert_string_equal(td_rc_name(TD_RC_COUNT), "unknown");
    assert_string_equal(td_rc_name((enum td_rc) - 1), "unknown");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_err_grows_to_the_front),
        cmocka_unit_test(test_err_retriable),
        cmocka_unit_test(test_err_of_errno),
        cmocka_unit_test(test_err_long_messages_are_cut),
        cmocka_unit_test(test_err_every_code_has_a_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
