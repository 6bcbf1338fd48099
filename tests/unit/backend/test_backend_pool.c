// The thread pool: every part runs once a turn, writes are seen afterwards, sleepers wake.
#include "tests/unit/cmocka_all.h"

#include <time.h>

#include "workers/backend/cpu/pool.h"

enum { PARTS_MAX = 4 };

struct turns {
    uint64_t sum[PARTS_MAX]; // written by part i only
    int parts;
};

static void add(void *arg, int part, int parts) {
    struct turns *t = arg;
    t->sum[part] += 1 + (uint64_t)part;
    if (part == 0) {
        t->parts = parts;
    }
}

static void test_pool_every_part_runs_each_turn(void **state) {
    (void)state;
    for (int threads = 1; threads <= PARTS_MAX; threads++) {
        struct td_pool *pool = NULL;
        struct td_err err;
        assert_int_equal(td_pool_new(threads, &pool, &err), TD_OK);
        struct turns t = {0};
        for (uint64_t turn = 1; turn <= 3000; turn++) {
            td_pool_run(pool, add, &t);
            if (turn % 500 == 0) { // let them fall asleep
                nanosleep(&(struct timespec){.tv_nsec = 5 * 1000 * 1000}, NULL);
            }
            for (int part = 0; part < threads; part++) {
                assert_int_equal(t.sum[part], turn * (1 + (uint64_t)part));
            }
        }
        assert_int_equal(t.parts, threads);
        td_pool_free(pool);
    }
}

static void test_pool_shares_cover_all_once(void **state) {
    (void)state;
    for (int64_t n = 0; n < 70; n++) {
        for (int64_t grain = 1; grain <= 32; grain *= 2) {
            for (int parts = 1; parts <= PARTS_MAX; parts++) {
                int64_t next = 0;
                for (int part = 0; part < parts; part++) {
                    struct td_share s = td_pool_share(n, grain, part, parts);
                    assert_int_equal(s.lo, next);
                    assert_true(s.hi >= s.lo && (s.lo % grain == 0 || s.lo == n));
                    next = s.hi;
                }
                assert_int_equal(next, n);
            }
        }
    }
}

static void test_pool_refuses_no_threads(void **state) {
    (void)state;
    struct td_pool *pool = NULL;
    struct td_err err;
    assert_int_equal(td_pool_new(0, &pool, &err), TD_EINVAL);
    assert_null(pool);
    td_pool_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool_every_part_runs_each_turn),
        cmocka_unit_test(test_pool_shares_cover_all_once),
        cmocka_unit_test(test_pool_refuses_no_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
