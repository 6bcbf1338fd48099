// Every error code of generate.h, and that a refused call changes nothing.
#include "tests/unit/engine/generate_fixture.h"

#include <math.h>

static const struct td_generate_config usual = {4, 256, 32, 3, NULL};

static struct td_sampling usual_sampling(void) {
    return (struct td_sampling){.key = 1, .temperature = 1, .top_p = 1, .max_new_tokens = 4};
}

static void test_generate_errors_of_configuration(void **state) {
    (void)state;
    static const uint8_t none[64] = {0};
    static const struct {
        struct td_generate_config config;
        enum td_rc want;
        const char *says;
    } rows[] = {
        {{0, 256, 32, 3, NULL}, TD_EINVAL, "page_tokens 0"},
        {{5000, 256, 32, 3, NULL}, TD_EINVAL, "page_tokens 5000"},
        {{16, 15, 32, 3, NULL}, TD_EINVAL, "kv_tokens_max 15"},
        {{1, INT64_MAX, 32, 3, NULL}, TD_EINVAL, "kv_tokens_max"},
        {{16, 256, 0, 3, NULL}, TD_EINVAL, "batch_tokens_max 0"},
        {{16, 256, 32, 0, NULL}, TD_EINVAL, "sequences_max 0"},
        {{16, 256, 32, INT32_MAX, NULL}, TD_EINVAL, "sequences_max"},
        {{16, 256, 32, 3, none}, TD_EINVAL, "no token id is allowed"},
    };
    struct fixture f;
    fixture_open(&f, td_backend_ref_new());
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct td_generator *g = NULL;
        struct td_err err;
        assert_int_equal(td_generator_new(f.model, &rows[i].config, &g, &err), rows[i].want);
        assert_non_null(strstr(err.msg, rows[i].says));
        assert_null(g);
    }
    fixture_close(&f);
}

static void test_generate_errors_of_memory(void **state) {
    (void)state;
    struct fixture f;
    struct td_err err;
    fixture_open(&f, td_backend_ref_new());
    for (int at = 0; at < 2; at++) { // of each layer
        struct td_generator *g = NULL;
        td_mem_fail_at(at);
        assert_int_equal(td_generator_new(f.model, &usual, &g, &err), TD_ENOMEM);
        assert_non_null(strstr(err.msg, "no memory for 64 pages"));
        assert_null(g);
    }
    td_mem_fail_at(-1);
    fixture_close(&f);
}

static void test_generate_errors_of_sessions(void **state) {
    (void)state;
    struct fixture f;
    struct td_err err;
    int32_t ids[POSITIONS + 1] = {1, 2, 3};
    fixture_open(&f, td_backend_ref_new());
    struct td_generator *g = generator_open(&f, &usual);
    struct td_sampling s = usual_sampling();
    assert_int_equal(td_generator_extend(g, 1, ids, 3, &err), TD_ENOENT);
    assert_int_equal(td_generator_generate(g, 1, &s, &err), TD_ENOENT);
    assert_int_equal(td_generator_fork(g, 1, 2, &err), TD_ENOENT);
    assert_int_equal(td_generator_abort(g, 1, &err), TD_ENOENT);
    assert_int_equal(td_generator_close(g, 1, &err), TD_ENOENT);
    assert_non_null(strstr(err.msg, "sequence 1"));
    must(td_generator_open(g, 1, &err), &err);
    assert_int_equal(td_generator_open(g, 1, &err), TD_ECONFLICT);
    assert_int_equal(td_generator_fork(g, 1, 1, &err), TD_ECONFLICT);
    assert_int_equal(td_generator_abort(g, 1, &err), TD_ECONFLICT);
    assert_int_equal(td_generator_set_weights(g, &f.weights, &err), TD_ECONFLICT);
    assert_int_equal(td_generator_generate(g, 1, &s, &err), TD_EINVAL); // no tokens
    ids[1] = small_config()->vocab_size;
    assert_int_equal(td_generator_extend(g, 1, ids, 3, &err), TD_EINVAL);
    ids[1] = -1;
    assert_int_equal(td_generator_extend(g, 1, ids, 3, &err), TD_EINVAL);
    ids[1] = 2;
    assert_int_equal(td_generator_extend(g, 1, ids, -1, &err), TD_ELIMIT);
    assert_int_equal(td_generator_extend(g, 1, ids, POSITIONS + 1, &err), TD_ELIMIT);
    must(td_generator_extend(g, 1, NULL, 0, &err), &err);
    must(td_generator_extend(g, 1, ids, 3, &err), &err);
    must(td_generator_fork(g, 1, 2, &err), &err);
    must(td_generator_fork(g, 1, 3, &err), &err);
    assert_int_equal(td_generator_open(g, 4, &err), TD_ELIMIT);
    assert_int_equal(td_generator_fork(g, 1, 4, &err), TD_ELIMIT);
    must(td_generator_generate(g, 1, &s, &err), &err);
    assert_int_equal(td_generator_generate(g, 1, &s, &err), TD_ECONFLICT);
    assert_int_equal(td_generator_extend(g, 1, ids, 3, &err), TD_ECONFLICT);
    assert_int_equal(td_generator_fork(g, 1, 5, &err), TD_ECONFLICT);
    must(td_generator_abort(g, 1, &err), &err);
    assert_int_equal(td_generator_extend(g, 1, ids, 3, &err), TD_ECONFLICT); // result not taken
    must(td_generator_generate(g, 2, &s, &err), &err);
    must(td_generator_abort(g, 2, &err), &err);
    must(td_generator_close(g, 1, &err), &err); // takes its result with it
    struct td_generated got;
    assert_true(td_generator_next(g, &got));
    assert_int_equal(got.sequence, 2);
    assert_int_equal(got.finish, TD_FINISH_ABORTED);
    assert_int_equal(got.n, 0);
    assert_false(td_generator_next(g, &got));
    td_generator_close_all(g);
    must(td_generator_set_weights(g, &f.weights, &err), &err);
    td_generator_free(g);
    td_generator_free(NULL);
    fixture_close(&f);
}

static void test_generate_errors_of_sampling(void **state) {
    (void)state;
    static const struct {
        double temperature, top_p;
        int32_t max_new_tokens, stop_count;
        enum td_rc want;
        const char *says;
    } rows[] = {
        {-1, 1, 4, 0, TD_EINVAL, "temperature -1"},
        {(double)NAN, 1, 4, 0, TD_EINVAL, "temperature"},
        {(double)INFINITY, 1, 4, 0, TD_EINVAL, "temperature inf"},
        {1e-300, 1, 4, 0, TD_EINVAL, "temperature"},
        {1, 0, 4, 0, TD_EINVAL, "top_p 0"},
        {1, (double)NAN, 4, 0, TD_EINVAL, "top_p"},
        {1, 1, 0, 0, TD_EINVAL, "max_new_tokens 0"},
        {1, 1, 4, TD_STOP_IDS_MAX + 1, TD_ELIMIT, "17 stop ids"},
        {1, 1, 4, -1, TD_ELIMIT, "-1 stop ids"},
        {1, 1, 30, 0, TD_ELIMIT, "up to 32 tokens, but the cache holds 28"},
    };
    struct fixture f;
    struct td_err err;
    static const int32_t ids[TD_STOP_IDS_MAX + 1] = {1, 2};
    fixture_open(&f, td_backend_ref_new());
    struct td_generate_config config = {4, 28, 32, 3, NULL};
    struct td_generator *g = generator_open(&f, &config);
    must(td_generator_open(g, 1, &err), &err);
    must(td_generator_extend(g, 1, ids, 2, &err), &err);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct td_sampling s = {
            .temperature = rows[i].temperature,
            .top_p = rows[i].top_p,
            .max_new_tokens = rows[i].max_new_tokens,
            .stop_ids = ids,
            .stop_count = rows[i].stop_count,
        };
        assert_int_equal(td_generator_generate(g, 1, &s, &err), rows[i].want);
        if (!strstr(err.msg, rows[i].says)) {
            fail_msg("'%s' is not in '%s'", rows[i].says, err.msg);
        }
    }
    struct td_sampling s = usual_sampling();
    s.max_new_tokens = 26; // fills the pool to the last place
    must(td_generator_generate(g, 1, &s, &err), &err);
    bool busy = true;
    while (busy) {
        must(td_generator_step(g, &busy, &err), &err);
    }
    struct td_generated got;
    assert_true(td_generator_next(g, &got));
    assert_int_equal(got.n, 26);
    td_generator_free(g);
    fixture_close(&f);
}

static void test_generate_errors_of_score(void **state) {
    (void)state;
    struct fixture f;
    struct td_err err;
    double logp[POSITIONS + 1];
    int32_t ids[POSITIONS + 1] = {1, 2, 3};
    fixture_open(&f, td_backend_ref_new());
    struct td_generator *g = generator_open(&f, &usual);
    assert_int_equal(td_generator_score(g, ids, 0, 1, logp, &err), TD_EINVAL);
    assert_int_equal(td_generator_score(g, ids, 3, 0, logp, &err), TD_EINVAL);
    assert_int_equal(td_generator_score(g, ids, 3, (double)NAN, logp, &err), TD_EINVAL);
    assert_int_equal(td_generator_score(g, ids, POSITIONS + 1, 1, logp, &err), TD_ELIMIT);
    must(td_generator_score(g, ids, 1, 1, logp, &err), &err); // nothing to tell
    ids[1] = small_config()->vocab_size;
    assert_int_equal(td_generator_score(g, ids, 3, 1, logp, &err), TD_EINVAL);
    td_generator_free(g);
    fixture_close(&f);
}

static void test_generate_errors_without_weights(void **state) {
    (void)state;
    struct fixture f;
    struct td_err err;
    double logp[2];
    static const int32_t ids[] = {1, 2};
    struct td_generator *g = NULL;
    struct td_sampling s = usual_sampling();
    fixture_open(&f, td_backend_ref_new());
    must(td_generator_new(f.model, &usual, &g, &err), &err);
    must(td_generator_open(g, 1, &err), &err);
    must(td_generator_extend(g, 1, ids, 2, &err), &err);
    assert_int_equal(td_generator_generate(g, 1, &s, &err), TD_ECONFLICT);
    assert_int_equal(td_generator_score(g, ids, 2, 1, logp, &err), TD_ECONFLICT);
    bool busy = true;
    must(td_generator_step(g, &busy, &err), &err); // nothing to do
    assert_false(busy);
    td_generator_free(g);
    fixture_close(&f);
}

// Weights that overflow give an error, not tokens; good ones then go on as if nothing had been.
static void test_generate_errors_of_bad_weights(void **state) {
    (void)state;
    struct fixture f;
    struct td_err err;
    static const int32_t ids[] = {1, 2};
    fixture_open(&f, td_backend_ref_new());
    struct td_weights bad;
    must(td_weights_new(f.model, &bad, &err), &err);
    f.be->ops->fill(f.be, &(struct td_fill_args){.y = bad.flat, .value = 1e200});
    must(td_weights_prepare(f.model, &bad, &err), &err);
    struct td_generator *g = NULL;
    struct td_sampling s = usual_sampling();
    must(td_generator_new(f.model, &usual, &g, &err), &err);
    must(td_generator_set_weights(g, &bad, &err), &err);
    for (int round = 0; round < 2; round++) {
        bool busy = true;
        enum td_rc rc = TD_OK;
        must(td_generator_open(g, 1, &err), &err);
        must(td_generator_extend(g, 1, ids, 2, &err), &err);
        must(td_generator_generate(g, 1, &s, &err), &err);
        while (rc == TD_OK && busy) {
            rc = td_generator_step(g, &busy, &err);
        }
        assert_int_equal(rc, round == 0 ? TD_ECORRUPT : TD_OK);
        if (round == 0) {
            assert_non_null(strstr(err.msg, "not finite"));
            assert_int_equal(td_generator_step(g, &busy, &err), TD_ECORRUPT); // and again
            assert_int_equal(td_generator_tokens(g), 0);
        }
        td_generator_close_all(g);
        must(td_generator_set_weights(g, &f.weights, &err), &err);
    }
    td_generator_free(g);
    td_weights_fini(f.model, &bad);
    fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generate_errors_of_configuration),
        cmocka_unit_test(test_generate_errors_of_memory),
        cmocka_unit_test(test_generate_errors_of_sessions),
        cmocka_unit_test(test_generate_errors_of_sampling),
        cmocka_unit_test(test_generate_errors_of_score),
        cmocka_unit_test(test_generate_errors_without_weights),
        cmocka_unit_test(test_generate_errors_of_bad_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
