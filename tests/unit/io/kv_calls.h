// Calls of a store that are waited for, one at a time.
#ifndef TD_TESTS_IO_KV_CALLS_H
#define TD_TESTS_IO_KV_CALLS_H

#include <stdlib.h>
#include <string.h>

#include "lib/base/buf.h"
#include "lib/base/mem.h"
#include "lib/io/kv.h"
#include "tests/unit/io/wait.h"

struct answer {
    int count; // how often it came
    enum td_rc rc;
    struct td_err err;
    bool found;
    struct td_buf value;
    size_t pairs;
    struct td_buf text; // "key=value;" of a list, sorted
};

static inline void answer_take(struct answer *a, enum td_rc rc, const struct td_err *err) {
    a->count++;
    a->rc = rc;
    assert_int_equal(rc == TD_OK, err == NULL);
    if (err) {
        assert_int_equal(err->code, rc);
        a->err = *err;
    }
}

static inline void answer_done(void *user, enum td_rc rc, const struct td_err *err) {
    answer_take(user, rc, err);
}

static inline void answer_value(void *user, enum td_rc rc, const void *value, size_t n,
                                const struct td_err *err) {
    struct answer *a = user;
    answer_take(a, rc, err);
    a->found = value != NULL;
    if (value) {
        td_buf_put(&a->value, value, n);
    }
}

static inline int pair_order(const void *a, const void *b) {
    return strcmp(((const struct td_kv_pair *)a)->key, ((const struct td_kv_pair *)b)->key);
}

static inline void answer_list(void *user, enum td_rc rc, const struct td_kv_pair *pairs, size_t n,
                               const struct td_err *err) {
    struct answer *a = user;
    answer_take(a, rc, err);
    a->pairs = n;
    struct td_kv_pair *sorted = td_memdup(pairs, n * sizeof *pairs);
    qsort(sorted, n, sizeof *sorted, pair_order);
    for (size_t i = 0; i < n; i++) {
        td_buf_printf(&a->text, "%s=%.*s;", sorted[i].key, (int)sorted[i].n,
                      (const char *)sorted[i].value);
    }
    td_free(sorted);
}

static inline void answer_fini(struct answer *a) {
    td_buf_fini(&a->value);
    td_buf_fini(&a->text);
    *a = (struct answer){0};
}

static inline void put(struct td_kv *kv, const char *key, const char *value, int64_t ttl_ms,
                       struct answer *a) {
    td_kv_set(kv, &(struct td_kv_set){key, value, strlen(value), ttl_ms}, answer_done, a);
}

static inline enum td_rc put_now(struct td_loop *loop, struct td_kv *kv, const char *key,
                                 const char *value) {
    struct answer a = {0};
    put(kv, key, value, 0, &a);
    wait_until(loop, &a.count, 1);
    return a.rc;
}

// The value as text, "-": there is none, "!": the call failed (*err says why; may be NULL).
static inline char *get_now(struct td_loop *loop, struct td_kv *kv, const char *key,
                            struct td_err *err) {
    struct answer a = {0};
    td_kv_get(kv, key, answer_value, &a);
    wait_until(loop, &a.count, 1);
    char *text = td_strdup(a.rc != TD_OK ? "!" : a.found ? td_buf_str(&a.value) : "-");
    if (err) {
        *err = a.err;
    }
    answer_fini(&a);
    return text;
}

static inline void assert_value(struct td_loop *loop, struct td_kv *kv, const char *key,
                                const char *want) {
    struct td_err err = {0};
    char *got = get_now(loop, kv, key, &err);
    if (strcmp(got, want) != 0) {
        fail_msg("%s is %s (%s), expected %s", key, got, err.msg, want);
    }
    td_free(got);
}

static inline void assert_list(struct td_loop *loop, struct td_kv *kv, const char *prefix,
                               const char *want) {
    struct answer a = {0};
    td_kv_list(kv, prefix, answer_list, &a);
    wait_until(loop, &a.count, 1);
    assert_int_equal(a.rc, TD_OK);
    assert_string_equal(td_buf_str(&a.text), want);
    answer_fini(&a);
}

// ---- waiting for a state

typedef bool kv_state_fn(struct td_kv *kv);

static inline bool kv_up(struct td_kv *kv) {
    return td_kv_connected(kv);
}

static inline bool kv_down(struct td_kv *kv) {
    return !td_kv_connected(kv);
}

static inline bool kv_new(struct td_kv *kv) {
    return td_kv_renewed(kv);
}

struct kv_waiting {
    struct td_loop *loop;
    struct td_timer *timer;
    struct td_kv *kv;
    kv_state_fn *state;
    int64_t deadline_ms;
    bool reached;
};

static inline void kv_look(void *user) {
    struct kv_waiting *w = user;
    w->reached = w->state(w->kv);
    if (w->reached || td_clock_ms() > w->deadline_ms) {
        td_loop_stop(w->loop);
    } else {
        td_timer_start(w->timer, 2);
    }
}

static inline void wait_for_state(struct td_loop *loop, struct td_kv *kv, kv_state_fn *state) {
    struct kv_waiting w = {loop, NULL, kv, state, td_clock_ms() + WAIT_MS, false};
    w.timer = td_timer_new(loop, kv_look, &w);
    td_timer_start(w.timer, 0);
    td_loop_run(loop);
    td_timer_close(w.timer);
    assert_true(w.reached);
}

#endif
