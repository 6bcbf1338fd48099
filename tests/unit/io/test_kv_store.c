// The store: one table of tests for every kind.
#include "lib/io/kv.h"

#include "tests/unit/io/kv_calls.h"
#include "tests/unit/io/redis_server.h"

struct world {
    bool redis;
    struct redis_server server;
    struct td_loop *loop;
    struct td_kv *kv;
};

static int open_memory(void **state) {
    struct world *w = td_alloc(sizeof *w);
    w->loop = new_loop();
    w->kv = td_kv_new_memory(w->loop);
    *state = w;
    return 0;
}

static int open_redis(void **state) {
    struct world *w = td_alloc(sizeof *w);
    w->redis = true;
    if (!redis_open(&w->server, NULL, 0)) {
        td_free(w);
        *state = NULL;
        return 0;
    }
    w->loop = new_loop();
    w->kv = td_kv_new_redis(
        w->loop, &(struct td_kv_redis_opts){.address = w->server.address, .timeout_ms = WAIT_MS});
    wait_for_state(w->loop, w->kv, kv_up);
    *state = w;
    return 0;
}

static int close_world(void **state) {
    struct world *w = *state;
    if (w) {
        td_kv_free(w->kv);
        td_loop_free(w->loop);
        if (w->redis) {
            redis_close(&w->server);
        }
        td_free(w);
    }
    return 0;
}

// Without a server there is no world.
static struct world *world_of(void **state) {
    if (!*state) {
        skip();
    }
    return *state;
}

static void wipe(struct world *w) {
    if (w->redis) {
        assert_true(redis_says(&w->server, "FLUSHALL\r\n", "+OK"));
    } else {
        td_kv_memory_wipe(w->kv);
    }
}

static void test_kv_set_get_delete(void **state) {
    struct world *w = world_of(state);
    struct answer a = {0};
    assert_value(w->loop, w->kv, "k", "-");
    assert_int_equal(put_now(w->loop, w->kv, "k", "one"), TD_OK);
    assert_value(w->loop, w->kv, "k", "one");
    assert_int_equal(put_now(w->loop, w->kv, "k", "two"), TD_OK);
    assert_value(w->loop, w->kv, "k", "two");
    td_kv_delete(w->kv, "k", answer_done, &a);
    td_kv_delete(w->kv, "k", answer_done, &a); // one that is not there is no error
    wait_until(w->loop, &a.count, 2);
    assert_int_equal(a.rc, TD_OK);
    assert_value(w->loop, w->kv, "k", "-");
    td_kv_set(w->kv, &(struct td_kv_set){"k", "x", 1, 0}, NULL, NULL);
    td_kv_delete(w->kv, "other", NULL, NULL);
    assert_value(w->loop, w->kv, "k", "x");
}

static void test_kv_values_are_bytes(void **state) {
    struct world *w = world_of(state);
    struct answer a = {0};
    struct td_buf large = {0};
    for (uint32_t i = 0; i < TD_KV_VALUE_MAX; i++) {
        td_buf_put(&large, &(uint8_t){(uint8_t)(i * 2654435761u >> 24)}, 1);
    }
    assert_int_equal(put_now(w->loop, w->kv, "empty", ""), TD_OK);
    assert_value(w->loop, w->kv, "empty", ""); // and not "-"
    td_kv_set(w->kv, &(struct td_kv_set){"void", NULL, 0, 0}, NULL, NULL);
    assert_value(w->loop, w->kv, "void", "");
    td_kv_set(w->kv, &(struct td_kv_set){"large \r\n key", large.data, large.len, 0}, NULL, NULL);
    assert_list(w->loop, w->kv, "e", "empty=;");
    assert_list(w->loop, w->kv, "v", "void=;");
    td_buf_fini(&large); // arguments are copied
    td_kv_get(w->kv, "large \r\n key", answer_value, &a);
    wait_until(w->loop, &a.count, 1);
    assert_int_equal(a.value.len, TD_KV_VALUE_MAX);
    for (uint32_t i = 0; i < TD_KV_VALUE_MAX; i++) {
        assert_int_equal(a.value.data[i], (uint8_t)(i * 2654435761u >> 24));
    }
    answer_fini(&a);
}

static void test_kv_ttl(void **state) {
    struct world *w = world_of(state);
    struct answer a = {0};
    put(w->kv, "long", "x", 3600000, &a);
    put(w->kv, "renewed", "x", 40, &a);
    put(w->kv, "renewed", "y", 3600000, &a);
    put(w->kv, "for good", "x", 40, &a);
    put(w->kv, "for good", "y", 0, &a);
    put(w->kv, "short", "x", 40, &a);
    wait_until(w->loop, &a.count, 6);
    assert_int_equal(a.rc, TD_OK);
    int64_t deadline_ms = td_clock_ms() + WAIT_MS;
    char *got = get_now(w->loop, w->kv, "short", NULL);
    while (strcmp(got, "-") != 0) {
        assert_true(td_clock_ms() < deadline_ms);
        td_free(got);
        run_for(w->loop, 5);
        got = get_now(w->loop, w->kv, "short", NULL);
    }
    td_free(got);
    assert_value(w->loop, w->kv, "long", "x");
    assert_value(w->loop, w->kv, "renewed", "y");
    assert_value(w->loop, w->kv, "for good", "y");
    assert_list(w->loop, w->kv, "s", "");
}

static void test_kv_list_by_prefix(void **state) {
    static const char *const keys[] = {"a",     "a/1",  "a/2",   "a*/1", "a?/1", "a[b]/1", "a[b",
                                       "a\\/1", "ab/1", "a^b/1", "A/1",  "a-z",  "é/1",    "a b"};
    static const struct {
        const char *prefix, *want;
    } rows[] = {
        {"a/", "a/1=a/1;a/2=a/2;"},
        {"a*", "a*/1=a*/1;"},
        {"a?", "a?/1=a?/1;"},
        {"a[b]", "a[b]/1=a[b]/1;"},
        {"a[b", "a[b=a[b;a[b]/1=a[b]/1;"},
        {"a\\", "a\\/1=a\\/1;"},
        {"a^", "a^b/1=a^b/1;"},
        {"é", "é/1=é/1;"},
        {"a ", "a b=a b;"},
        {"none", ""},
        {"A", "A/1=A/1;"},
    };
    struct world *w = world_of(state);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        assert_int_equal(put_now(w->loop, w->kv, keys[i], keys[i]), TD_OK);
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_list(w->loop, w->kv, rows[i].prefix, rows[i].want);
    }
}

enum { MANY = 5000, OTHERS = 700 };

static void test_kv_list_of_many(void **state) {
    struct world *w = world_of(state);
    struct answer a = {0}, listed = {0};
    struct td_buf want = {0};
    for (int i = 0; i < MANY + OTHERS; i++) {
        char key[32], value[32];
        snprintf(key, sizeof key, "%s/%05d", i < MANY ? "many" : "other", i);
        snprintf(value, sizeof value, "v%d", i);
        if (i < MANY) {
            td_buf_printf(&want, "%s=%s;", key, value);
        }
        put(w->kv, key, value, 0, &a);
        if (i % 500 == 499) {
            wait_until(w->loop, &a.count, i + 1);
        }
    }
    wait_until(w->loop, &a.count, MANY + OTHERS);
    assert_int_equal(a.rc, TD_OK);
    td_kv_list(w->kv, "many/", answer_list, &listed);
    wait_until(w->loop, &listed.count, 1);
    assert_int_equal(listed.rc, TD_OK);
    assert_int_equal(listed.pairs, MANY);
    assert_string_equal(td_buf_str(&listed.text), td_buf_str(&want));
    td_buf_fini(&want);
    answer_fini(&listed);
}

static void test_kv_limits(void **state) {
    struct world *w = world_of(state);
    struct answer good = {0}, bad = {0};
    static char value[TD_KV_VALUE_MAX + 1];
    td_kv_set(w->kv, &(struct td_kv_set){"k", value, sizeof value, 0}, answer_done, &bad);
    assert_int_equal(bad.count, 0); // in a later turn
    wait_until(w->loop, &bad.count, 1);
    assert_int_equal(bad.rc, TD_ELIMIT);
    for (int i = 0; i < TD_KV_OUTSTANDING_MAX; i++) {
        td_kv_set(w->kv, &(struct td_kv_set){"k", "v", 1, 0}, answer_done, &good);
    }
    td_kv_get(w->kv, "k", answer_value, &bad);
    td_kv_list(w->kv, "k", answer_list, &bad);
    wait_until(w->loop, &bad.count, 3);
    wait_until(w->loop, &good.count, TD_KV_OUTSTANDING_MAX);
    assert_int_equal(bad.rc, TD_ELIMIT);
    assert_int_equal(good.rc, TD_OK);
    good.count = bad.count = 0;
    int fit = TD_KV_OUTSTANDING_BYTES_MAX / TD_KV_VALUE_MAX - 1; // keys count, too
    for (int i = 0; i <= fit; i++) {
        td_kv_set(w->kv, &(struct td_kv_set){"k", value, TD_KV_VALUE_MAX, 0}, answer_done,
                  i < fit ? &good : &bad);
    }
    wait_until(w->loop, &good.count, fit);
    assert_int_equal(bad.count, 1);
    assert_int_equal(bad.rc, TD_ELIMIT);
    assert_int_equal(good.rc, TD_OK);
    assert_value(w->loop, w->kv, "other", "-");
}

static void note(void *user, enum td_rc rc, const struct td_err *err) {
    struct td_buf *out = user;
    (void)err;
    td_buf_printf(out, "%d", rc);
}

static void test_kv_answers_come_later_and_in_order(void **state) {
    struct world *w = world_of(state);
    struct answer last = {0};
    struct td_buf trail = {0};
    td_kv_set(w->kv, &(struct td_kv_set){"k", "1", 1, 0}, note, &trail);
    td_kv_delete(w->kv, "k", note, &trail);
    td_kv_set(w->kv, &(struct td_kv_set){"k", "2", 1, 0}, note, &trail);
    assert_int_equal(trail.len, 0);
    td_kv_get(w->kv, "k", answer_value, &last);
    assert_int_equal(last.count, 0);
    wait_until(w->loop, &last.count, 1);
    assert_string_equal(td_buf_str(&trail), "000");
    assert_string_equal(td_buf_str(&last.value), "2");
    answer_fini(&last);
    td_buf_fini(&trail);
}

static void test_kv_renewed_after_a_wipe(void **state) {
    struct world *w = world_of(state);
    assert_true(td_kv_renewed(w->kv));
    assert_false(td_kv_renewed(w->kv));
    assert_true(td_kv_connected(w->kv));
    assert_int_equal(put_now(w->loop, w->kv, "k", "x"), TD_OK);
    assert_false(td_kv_renewed(w->kv));
    int64_t since_ms = td_kv_since_ms(w->kv);
    assert_true(since_ms > 0 && since_ms <= td_clock_ms());
    wipe(w);
    wait_for_state(w->loop, w->kv, kv_new);
    assert_false(td_kv_renewed(w->kv));
    assert_value(w->loop, w->kv, "k", "-");
    assert_int_equal(td_kv_since_ms(w->kv), since_ms); // it was connected all the time
}

static void test_kv_free_with_calls_under_way(void **state) {
    struct world *w = world_of(state);
    struct answer a = {0};
    assert_int_equal(put_now(w->loop, w->kv, "k", "x"), TD_OK);
    put(w->kv, "k", "y", 0, &a);
    td_kv_get(w->kv, "k", answer_value, &a);
    td_kv_list(w->kv, "", answer_list, &a);
    td_kv_delete(w->kv, "k", answer_done, &a);
    td_kv_delete(w->kv, "k", NULL, NULL);
    td_kv_free(w->kv);
    w->kv = NULL;
    assert_int_equal(a.count, 4);
    assert_int_equal(a.rc, TD_ESTOPPED);
    run_for(w->loop, 20);
    assert_int_equal(a.count, 4);
}

static void free_it(void *user, enum td_rc rc, const struct td_err *err) {
    struct world *w = user;
    (void)rc, (void)err;
    td_kv_free(w->kv);
    w->kv = NULL;
}

static void test_kv_free_from_a_callback(void **state) {
    struct world *w = world_of(state);
    struct answer a = {0};
    td_kv_set(w->kv, &(struct td_kv_set){"k", "y", 1, 0}, free_it, w);
    td_kv_get(w->kv, "k", answer_value, &a);
    td_kv_list(w->kv, "", answer_list, &a);
    wait_until(w->loop, &a.count, 2);
    assert_int_equal(a.rc, TD_ESTOPPED);
    assert_null(w->kv);
    td_kv_free(NULL);
}

#define OF_KIND(kind, test)                                                                        \
    { #test " " #kind, test, open_##kind, close_world, NULL }
#define ALL_OF(kind)                                                                               \
    OF_KIND(kind, test_kv_set_get_delete), OF_KIND(kind, test_kv_values_are_bytes),                \
        OF_KIND(kind, test_kv_ttl), OF_KIND(kind, test_kv_list_by_prefix),                         \
        OF_KIND(kind, test_kv_list_of_many), OF_KIND(kind, test_kv_limits),                        \
        OF_KIND(kind, test_kv_answers_come_later_and_in_order),                                    \
        OF_KIND(kind, test_kv_renewed_after_a_wipe),                                               \
        OF_KIND(kind, test_kv_free_with_calls_under_way),                                          \
        OF_KIND(kind, test_kv_free_from_a_callback)

int main(void) {
    const struct CMUnitTest tests[] = {ALL_OF(memory), ALL_OF(redis)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
