// Philox against published vectors; the permutation is one; sampling keys differ.
#include "lib/base/rng.h"

#include <stdlib.h>

#include "lib/base/mem.h"
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

static int compare(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

// Every field counts, also small values in the place of others.
static void test_rng_sampling_keys_do_not_collide(void **state) {
    (void)state;
    enum { VALUES = 8, KEYS = VALUES * VALUES * VALUES * VALUES * VALUES * 2 };
    uint64_t *keys = td_alloc_array(KEYS, sizeof *keys);
    for (uint32_t i = 0; i < KEYS; i++) {
        uint32_t rest = i / 2, field[5];
        for (int k = 0; k < 5; k++) {
            field[k] = rest % VALUES;
            rest /= VALUES;
        }
        keys[i] = td_sampling_key(field[0], i % 2, field[1], field[2], field[3], field[4]);
    }
    qsort(keys, KEYS, sizeof *keys, compare);
    for (uint32_t i = 1; i < KEYS; i++) {
        assert_true(keys[i] != keys[i - 1]);
    }
    td_free(keys);
    assert_true(td_sampling_key(1, 0, UINT64_MAX, 0, 0, 0) !=
                td_sampling_key(1, 0, 0, UINT64_MAX, 0, 0));
    assert_true(td_sampling_key(1, 0, 2, 3, 4, 5) == td_sampling_key(1, 0, 2, 3, 4, 5));
}

static void test_rng_ranges(void **state) {
    (void)state;
    struct td_rng rng = {5}, same = {5};
    int hits[7] = {0};
    double sum = 0;
    for (int i = 0; i < 70000; i++) {
        hits[td_rng_below(&rng, 7)]++;
        double unit = td_rng_unit(&rng);
        assert_true(unit >= 0 && unit < 1);
        sum += unit;
    }
    for (int i = 0; i < 7; i++) { // 10 000 expected, standard deviation 93
        assert_true(hits[i] > 9500 && hits[i] < 10500);
    }
    assert_true(sum > 34500 && sum < 35500);
    assert_int_equal(td_rng_below(&rng, 1), 0);
    rng = (struct td_rng){5};
    assert_true(td_rng_next(&rng) == td_rng_next(&same));
}

static void test_rng_hash_depends_on_order(void **state) {
    (void)state;
    uint64_t ab = td_hash_u64(td_hash_u64(0, 1), 2), ba = td_hash_u64(td_hash_u64(0, 2), 1);
    assert_true(ab != ba);
    assert_true(td_hash_u64(0, 0) != 0);
    assert_true(td_mix64(1) != td_mix64(2));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rng_philox_known_answers),
        cmocka_unit_test(test_rng_permute_is_a_permutation),
        cmocka_unit_test(test_rng_sampling_keys_do_not_collide),
        cmocka_unit_test(test_rng_ranges),
        cmocka_unit_test(test_rng_hash_depends_on_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
