// Well-formed and ill-formed sequences, by the table of the Unicode standard.
#include "lib/base/utf8.h"

#include <string.h>

#include "tests/unit/cmocka_all.h"

static void test_utf8_step_table(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t n, len;
        bool ok;
    } rows[] = {
        {"a", 1, 1, true},
        {"\x00", 1, 1, true},
        {"\x7f", 1, 1, true},
        {"\xc3\xa9", 2, 2, true},
        {"\xe2\x82\xac", 3, 3, true},
        {"\xf0\x9f\x98\x80", 4, 4, true},
        {"\xf4\x8f\xbf\xbf", 4, 4, true},
        {"\xed\x9f\xbf", 3, 3, true},
        {"\xee\x80\x80", 3, 3, true},
        {"\x80", 1, 1, false},         // a continuation alone
        {"\xc0\x80", 2, 1, false},     // too long a form
        {"\xc1\xbf", 2, 1, false},     // too long a form
        {"\xe0\x9f\xbf", 3, 1, false}, // too long a form
        {"\xf0\x8f\xbf\xbf", 4, 1, false},
        {"\xed\xa0\x80", 3, 1, false},     // a surrogate
        {"\xf4\x90\x80\x80", 4, 1, false}, // above U+10FFFF
        {"\xf5\x80\x80\x80", 4, 1, false},
        {"\xff", 1, 1, false},
        {"\xc3", 1, 1, false}, // cut off
        {"\xe2\x82", 2, 2, false},
        {"\xf0\x9f\x98", 3, 3, false},
        {"\xe2\x82z", 3, 2, false},
        {"\xf0\x9fzz", 4, 2, false},
        {"\xc3zz", 3, 1, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bool ok;
        size_t len = td_utf8_step((const uint8_t *)rows[i].bytes, rows[i].n, &ok);
        if (len != rows[i].len || ok != rows[i].ok) {
            fail_msg("row %zu: length %zu, ok %d", i, len, ok);
        }
    }
}

static void test_utf8_check_finds_the_first(void **state) {
    (void)state;
    static const char text[] = "ab\xe2\x82\xac\xe2\x82z";
    assert_int_equal(td_utf8_check((const uint8_t *)text, sizeof text - 1), 5);
    assert_int_equal(td_utf8_check((const uint8_t *)text, 5), 5);
    assert_int_equal(td_utf8_check((const uint8_t *)text, 0), 0);
}

static void test_utf8_repair(void **state) {
    (void)state;
    struct td_buf out = {0};
    static const char text[] = "caf\xc3\xa9 \xff| \xe2\x82";
    td_utf8_repair(text, sizeof text - 1, &out);
    assert_string_equal(td_buf_str(&out), "caf\xc3\xa9 " TD_UTF8_BAD "| " TD_UTF8_BAD);
    td_buf_fini(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_utf8_step_table),
        cmocka_unit_test(test_utf8_check_finds_the_first),
        cmocka_unit_test(test_utf8_repair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
