// Philox against published vectors; the permutation is one.
#include "lib/base/rng.h"

#include "tests/unit/cmocka_all.h"

static void test_rng_philox_known_answers(void **state) {
    (void)state;
    static const struct {
        uint64_t key;
        uint32_t ctr[4], out[4];
    } rows[] = {
        // from Random123's kat_vectors
        {0, {0, 0, 0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {0xffffffffffffffffu,
         {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822u,
         {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const uint32_t *c = rows[i].ctr;
        struct td_philox got = td_philox4x32(rows[i].key, c[0], c[1], c[2], c[3]);
        assert_memory_equal(got.v, rows[i].out, sizeof got.v);
    }
}

static void test_rng_permute_is_a_permutation(void **state) {
    (void)state;
    for (uint64_t n = 1; n <= 300; n += 13) {
        uint8_t seen[300] = {0};
        for (uint64_t i = 0; i < n; i++) {
            uint64_t to = td_permute(42, 3, n, i);
            assert_true(to < n);
            assert_int_equal(seen[to]++, 0);
        }
    }
    int moved = 0;
    for (uint64_t i = 0; i < 100; i++) {
        moved += td_permute(1, 0, 100, i) != td_permute(1, 1, 100, i);
    }
    assert_true(moved > 80);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rng_philox_known_answers),
        cmocka_unit_test(test_rng_permute_is_a_permutation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
