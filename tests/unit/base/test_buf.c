// The byte buffer against a plain array, and its closing zero byte.
#include "lib/base/buf.h"

#include <string.h>

#include "lib/base/rng.h"
#include "tests/unit/cmocka_all.h"

static void check(const struct td_buf *buf, const char *want, size_t n) {
    assert_int_equal(buf->len, n);
    if (!buf->data) {
        return;
    }
    assert_true(buf->len < buf->cap);
    assert_memory_equal(buf->data, want, n);
    assert_int_equal(buf->data[n], 0);
}

static void test_buf_is_text_while_empty(void **state) {
    (void)state;
    struct td_buf buf = {0};
    assert_string_equal(td_buf_str(&buf), "");
    td_buf_clear(&buf);
    td_buf_shift(&buf, 0);
    assert_string_equal(td_buf_str(&buf), "");
    td_buf_put(&buf, NULL, 0);
    assert_string_equal(td_buf_str(&buf), "");
    td_buf_fini(&buf);
    td_buf_fini(&buf);
    assert_null(buf.data);
}

static void test_buf_puts_and_prints(void **state) {
    (void)state;
    struct td_buf buf = {0};
    td_buf_puts(&buf, "a");
    td_buf_printf(&buf, "%d-%s", 42, "x");
    td_buf_put(&buf, "\0b", 2);
    check(&buf, "a42-x\0b", 7);
    td_buf_printf(&buf, "%s", "");
    check(&buf, "a42-x\0b", 7);
    char text[5000];
    memset(text, 'y', sizeof text - 1);
    text[sizeof text - 1] = 0;
    td_buf_printf(&buf, "%s", text);
    assert_int_equal(buf.len, 7 + sizeof text - 1);
    assert_string_equal(td_buf_str(&buf) + 7, text);
    td_buf_clear(&buf);
    assert_string_equal(td_buf_str(&buf), "");
    td_buf_fini(&buf);
}

static void test_buf_room_is_added_by_the_caller(void **state) {
    (void)state;
    struct td_buf buf = {0};
    memcpy(td_buf_room(&buf, 3), "abc", 3);
    assert_int_equal(buf.len, 0);
    buf.len += 3;
    check(&buf, "abc", 3);
    td_buf_fini(&buf);
}

static void test_buf_random_against_an_array(void **state) {
    (void)state;
    static char want[1 << 16];
    struct td_rng rng = {7};
    struct td_buf buf = {0};
    size_t n = 0;
    for (int i = 0; i < 2000; i++) {
        char piece[64];
        size_t k = td_rng_below(&rng, sizeof piece);
        if (td_rng_below(&rng, 3) == 0 || n + k > sizeof want) {
            k = td_rng_below(&rng, (uint32_t)n + 1);
            td_buf_shift(&buf, k);
            memmove(want, want + k, n - k);
            n -= k;
        } else {
            memset(piece, 'a' + i % 26, k);
            td_buf_put(&buf, piece, k);
            memcpy(want + n, piece, k);
            n += k;
        }
        check(&buf, want, n);
    }
    td_buf_fini(&buf);
}

static void test_buf_double(void **state) {
    (void)state;
    static const struct {
        double value;
        const char *text;
    } rows[] = {{0, "0"},          {-2, "-2"},
                {0.1, "0.1"},      {1.0 / 3, "0.3333333333333333"},
                {1e300, "1e+300"}, {0.1 + 0.2, "0.30000000000000004"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct td_buf buf = {0};
        td_buf_double(&buf, rows[i].value);
        assert_string_equal(td_buf_str(&buf), rows[i].text);
        td_buf_fini(&buf);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buf_double),
        cmocka_unit_test(test_buf_is_text_while_empty),
        cmocka_unit_test(test_buf_puts_and_prints),
        cmocka_unit_test(test_buf_room_is_added_by_the_caller),
        cmocka_unit_test(test_buf_random_against_an_array),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
