// Addresses: what is one, what is none.
#include "lib/base/address.h"

#include <string.h>

#include "lib/base/buf.h"
#include "tests/unit/cmocka_all.h"

static void test_address_good(void **state) {
    static const struct {
        const char *text, *host;
        int port;
    } rows[] = {
        {"127.0.0.1:8080", "127.0.0.1", 8080},
        {"localhost:0", "localhost", 0},
        {"[::1]:65535", "::1", 65535},
        {"[fe80::1%eth0]:1", "fe80::1%eth0", 1},
        {"my-host_1.example:06379", "my-host_1.example", 6379},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct td_address got;
        struct td_err err = {0};
        assert_int_equal(td_address_parse(rows[i].text, &got, &err), TD_OK);
        assert_string_equal(got.host, rows[i].host);
        assert_int_equal(got.port, rows[i].port);
    }
}

static void test_address_bad(void **state) {
    static const char *const rows[] = {
        "",       ":",     "8080",   ":8080",     "host",     "host:",        "host:x",
        "h:1x",   "h:-1",  "h:+1",   "h:65536",   "h:000001", "h: 1",         "h ost:1",
        "::1:80", "[::1]", "[::1]:", "[::1:80",   "[]:80",    "[::1]80",      "http://localhost:1",
        "h/x:1",  "h\n:1", "[h]x:1", "[::1]x:80", "a:b:1",    "user@host:12",
    };
    (void)state;
    struct td_buf longest = {0};
    for (int i = 0; i < TD_HOST_MAX + 1; i++) {
        td_buf_puts(&longest, "h");
    }
    td_buf_puts(&longest, ":1");
    for (size_t i = 0; i <= sizeof rows / sizeof *rows; i++) {
        const char *text =
            i < sizeof rows / sizeof *rows ? rows[i] : (const char *)td_buf_str(&longest);
        struct td_address got = {.port = 7};
        struct td_err err = {0};
        if (td_address_parse(text, &got, &err) != TD_EINVAL) {
            fail_msg("taken: %s", text);
        }
        assert_int_equal(got.port, 7); // untouched
        assert_non_null(strstr(err.msg, "is not an address; write HOST:PORT"));
    }
    struct td_address got;
    assert_int_equal(td_address_parse(td_buf_str(&longest) + 1, &got, NULL), TD_OK);
    td_buf_fini(&longest);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_address_good),
        cmocka_unit_test(test_address_bad),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
