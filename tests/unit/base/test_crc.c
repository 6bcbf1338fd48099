// CRC-32C: published vectors; the instruction, the table and a bit-by-bit loop agree. The 64-bit
// digest: every bit and the length count.
#include "lib/base/crc.h"

#include <string.h>

#include "lib/base/rng.h"
#include "tests/unit/cmocka_all.h"

static uint32_t bit_by_bit(uint32_t crc, const uint8_t *bytes, size_t n) {
    crc = ~crc;
    for (size_t i = 0; i < n; i++) {
        crc ^= bytes[i];
        for (int k = 0; k < 8; k++) {
            crc = crc & 1 ? crc >> 1 ^ 0x82F63B78u : crc >> 1;
        }
    }
    return ~crc;
}

static void test_crc_known_answers(void **state) {
    (void)state;
    uint8_t zeros[32] = {0}, ones[32], up[32];
    memset(ones, 0xff, sizeof ones);
    for (int i = 0; i < 32; i++) {
        up[i] = (uint8_t)i;
    }
    // RFC 3720 B.4, and the usual check value
    const struct {
        const void *bytes;
        size_t n;
        uint32_t crc;
    } rows[] = {{"123456789", 9, 0xE3069283},
                {zeros, 32, 0x8A9136AA},
                {ones, 32, 0x62A8AB43},
                {up, 32, 0x46DD794E},
                {"", 0, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(td_crc32c(0, rows[i].bytes, rows[i].n), rows[i].crc);
        assert_int_equal(td_crc32c_portable(0, rows[i].bytes, rows[i].n), rows[i].crc);
    }
}

static void test_crc_all_forms_agree_on_any_cut(void **state) {
    (void)state;
    uint8_t bytes[300];
    struct td_rng rng = {11};
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)td_rng_next(&rng);
    }
    for (int i = 0; i < 3000; i++) {
        size_t from = td_rng_below(&rng, 16), n = td_rng_below(&rng, sizeof bytes - 16);
        size_t cut = td_rng_below(&rng, (uint32_t)n + 1);
        uint32_t want = bit_by_bit(0, bytes + from, n);
        uint32_t head = td_crc32c(0, bytes + from, cut);
        assert_int_equal(td_crc32c(0, bytes + from, n), want);
        assert_int_equal(td_crc32c(head, bytes + from + cut, n - cut), want);
        assert_int_equal(td_crc32c_portable(head, bytes + from + cut, n - cut), want);
    }
}

static void test_digest_depends_on_every_bit_and_the_length(void **state) {
    (void)state;
    uint8_t bytes[40] = {0};
    uint64_t seen[40 * 8 + 41];
    size_t count = 0;
    for (size_t n = 0; n <= sizeof bytes; n++) {
        seen[count++] = td_digest64(0, bytes, n);
    }
    for (size_t bit = 0; bit < sizeof bytes * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        seen[count++] = td_digest64(0, bytes, sizeof bytes);
        bytes[bit / 8] = 0;
    }
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < i; k++) {
            assert_true(seen[i] != seen[k]);
        }
    }
    uint64_t two = td_digest64(td_digest64(0, "ab", 2), "cd", 2);
    assert_true(two != td_digest64(0, "abcd", 4));
    assert_true(two != td_digest64(td_digest64(0, "cd", 2), "ab", 2));
    assert_true(two == td_digest64(td_digest64(0, "ab", 2), "cd", 2));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crc_known_answers),
        cmocka_unit_test(test_crc_all_forms_agree_on_any_cut),
        cmocka_unit_test(test_digest_depends_on_every_bit_and_the_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
