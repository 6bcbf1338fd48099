// The map against a linear list under random operations; the seed is printed.
#include "lib/base/map.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/clock.h"
#include "lib/base/rng.h"
#include "tests/unit/cmocka_all.h"

enum { KEYS = 300, KEY_MAX = 12 };

struct reference {
    bool there;
    uint64_t value;
};

// Key k: of varying length, the empty one among them.
static size_t key_of(uint32_t k, uint8_t key[KEY_MAX]) {
    size_t n = k == 0 ? 0 : 4 + k % 9;
    memset(key, 0, KEY_MAX);
    memcpy(key, &k, n < sizeof k ? n : sizeof k);
    return n;
}

static void check_all(const struct td_map *map, const struct reference *want) {
    size_t count = 0;
    for (uint32_t k = 0; k < KEYS; k++) {
        uint8_t key[KEY_MAX];
        size_t n = key_of(k, key);
        uint64_t value = 12345;
        assert_int_equal(td_map_get(map, key, n, &value), want[k].there);
        assert_int_equal(value, want[k].there ? want[k].value : 12345);
        count += want[k].there;
    }
    assert_int_equal(td_map_count(map), count);
}

static void run(uint64_t seed) {
    struct td_rng rng = {seed};
    struct reference want[KEYS] = {0};
    struct td_map *map = td_map_new();
    for (int i = 0; i < 4000; i++) {
        // Waves: mostly growing, then mostly shrinking.
        uint32_t k = td_rng_below(&rng, KEYS), adds = i / 500 % 2 ? 3 : 7;
        uint8_t key[KEY_MAX];
        size_t n = key_of(k, key);
        if (td_rng_below(&rng, 10) < adds) {
            uint64_t value = td_rng_next(&rng);
            assert_int_equal(td_map_put(map, key, n, value), !want[k].there);
            want[k] = (struct reference){true, value};
        } else {
            assert_int_equal(td_map_remove(map, key, n), want[k].there);
            want[k].there = false;
        }
        if (i % 50 == 0) {
            check_all(map, want);
        }
    }
    check_all(map, want);
    td_map_free(map);
}

static void test_map_random_against_a_list(void **state) {
    (void)state;
    const char *given = getenv("TD_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 10) : (uint64_t)td_clock_ns();
    print_message("TD_SEED=%" PRIu64 "\n", seed);
    run(1);
    run(seed);
}

static void test_map_keys_are_copied_and_lengths_count(void **state) {
    (void)state;
    struct td_map *map = td_map_new();
    char key[] = "ab";
    assert_true(td_map_put(map, key, 2, 1));
    key[0] = 'x';
    assert_true(td_map_get(map, "ab", 2, NULL));
    assert_false(td_map_get(map, "xb", 2, NULL));
    assert_true(td_map_put(map, "ab", 3, 2)); // with its zero byte
    assert_true(td_map_put(map, NULL, 0, 3));
    assert_false(td_map_put(map, "", 0, 4));
    uint64_t value = 0;
    assert_true(td_map_get(map, NULL, 0, &value));
    assert_int_equal(value, 4);
    assert_int_equal(td_map_count(map), 3);
    td_map_free(map);
    td_map_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_map_random_against_a_list),
        cmocka_unit_test(test_map_keys_are_copied_and_lengths_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
