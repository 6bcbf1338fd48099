// Generation on each backend: what was sampled, and that nothing but a sequence itself decides it.
#include "tests/unit/engine/generate_fixture.h"

#include <math.h>
#include <stdio.h>

// ref computes in double and samples with a float temperature: only an exact one gives equal bits.
static const struct kind {
    const char *isa; // NULL: the widest
    int threads;     // 0: ref
    double temperature;
} kinds[] = {{NULL, 0, 0.5}, {NULL, 1, 0.7}, {NULL, 3, 0.7}, {"scalar", 2, 0.7}};

enum { KINDS = sizeof kinds / sizeof *kinds, CPU = 1 };

static struct td_backend *backend_of(int kind) {
    struct td_backend *be = NULL;
    struct td_err err;
    if (kinds[kind].threads == 0) {
        return td_backend_ref_new();
    }
    must(td_backend_cpu_new(kinds[kind].threads, kinds[kind].isa, &be, &err), &err);
    return be;
}

static const struct way ways[] = {
    {"pages of 1", 1, 1024, 4096, false, false, 1, SEQUENCES},
    {"pages of 5", 5, 1024, 4096, false, false, 1, SEQUENCES},
    {"one token a step", 16, 1, 4096, false, false, 1, SEQUENCES},
    {"chunks of 3", 16, 3, 4096, false, false, 1, SEQUENCES},
    {"chunks of 17, pages of 3", 3, 17, 4096, false, false, 1, SEQUENCES},
    {"one at a time", 16, 1024, 4096, false, false, 1, 1},
    {"five at a time, backwards", 4, 10, 4096, false, true, 1, 5},
    {"preempted", 4, 64, 72, false, false, 1, SEQUENCES},
    {"preempted, forks", 4, 64, 72, true, false, 1, SEQUENCES},
    {"forks", 16, 1024, 4096, true, false, 1, SEQUENCES},
    {"forks, pages of 2, chunks of 9", 2, 9, 4096, true, true, 1, SEQUENCES},
    {"two generators", 16, 1024, 4096, false, false, 2, SEQUENCES},
    {"three generators, forks", 8, 20, 4096, true, false, 3, 4},
};

static void check_ways(int kind, struct outcome plain[SEQUENCES]) {
    struct fixture f;
    static struct outcome other[SEQUENCES];
    double temperature = kinds[kind].temperature;
    fixture_open(&f, backend_of(kind));
    run_way(&f, plain_way(), temperature, plain);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        uint64_t preempted = run_way(&f, &ways[i], temperature, other);
        assert_int_equal(preempted > 0, ways[i].kv_tokens_max < 4096);
        same_outcomes(ways[i].name, plain, other);
    }
    fixture_close(&f);
    int stopped = 0, full = 0;
    for (int i = 0; i < SEQUENCES; i++) {
        bool stop = plain[i].finish == TD_FINISH_STOP;
        assert_int_equal(stop, plain[i].ids[plain[i].n - 1] == STOP_ID);
        stopped += stop;
        full += plain[i].n == 5 + i % 17;
    }
    assert_true(stopped > 0 && full > 0 && stopped + full >= SEQUENCES);
}

static void test_generate_nothing_but_the_sequence_decides(void **state) {
    (void)state;
    static struct outcome first[SEQUENCES], plain[SEQUENCES];
    check_ways(0, first);
    check_ways(CPU, first);
    for (int kind = CPU + 1; kind < KINDS; kind++) { // threads and instruction set neither
        check_ways(kind, plain);
        same_outcomes("another cpu", first, plain);
    }
}

// Log-prob of each generated token by a packed forward of all sequences together.
static void packed_logp(struct fixture *f, enum td_forward_mode mode, double temperature,
                        const struct outcome *out, double *logp) {
    enum { MOST = SEQUENCES * POSITIONS };
    static int32_t ids[MOST], pos[MOST], rows[MOST], target[MOST];
    int32_t cu[SEQUENCES + 1] = {0}, tokens = 0, n = 0;
    for (int i = 0; i < SEQUENCES; i++) {
        int32_t prompt = prompt_of(i, ids + tokens), len = prompt + out[i].n;
        memcpy(ids + tokens + prompt, out[i].ids, (size_t)out[i].n * sizeof *ids);
        for (int32_t t = 0; t < len; t++) {
            pos[tokens + t] = t;
            if (t >= prompt) {
                rows[n] = tokens + t - 1;
                target[n++] = ids[tokens + t];
            }
        }
        tokens += len;
        cu[i + 1] = tokens;
    }
    struct td_packed batch = {
        .tokens = tokens, .batch = SEQUENCES, .ids = ids, .pos = pos, .cu = cu};
    struct td_head_rows head = {
        .n = n, .rows = rows, .target = target, .temperature = temperature, .logp = logp};
    struct td_tensor hidden;
    struct td_err err;
    must(td_model_forward(f->model, &f->weights, &batch, mode, &hidden, &err), &err);
    must(td_model_logprob(f->model, &f->weights, &hidden, &head, &err), &err);
}

static void test_generate_logp_is_that_of_a_packed_forward(void **state) {
    (void)state;
    static const enum td_forward_mode modes[] = {TD_FORWARD_SCORE, TD_FORWARD_TRAIN};
    static struct outcome out[SEQUENCES];
    static double logp[SEQUENCES * POSITIONS];
    for (int kind = 0; kind < KINDS; kind++) {
        struct fixture f;
        double temperature = kinds[kind].temperature;
        fixture_open(&f, backend_of(kind));
        run_way(&f, plain_way(), temperature, out);
        for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
            packed_logp(&f, modes[m], temperature, out, logp);
            int32_t n = 0;
            for (int i = 0; i < SEQUENCES; i++) {
                for (int32_t t = 0; t < out[i].n; t++, n++) {
                    bool greedy = sampling_of(i, temperature).temperature == 0;
                    assert_true(greedy || (float)logp[n] == out[i].logp[t]);
                }
            }
        }
        fixture_close(&f);
    }
}

static void test_generate_score_equals_generation(void **state) {
    (void)state;
    static struct outcome out[SEQUENCES];
    for (int kind = 0; kind < KINDS; kind++) {
        struct fixture f;
        struct td_err err;
        fixture_open(&f, backend_of(kind));
        run_way(&f, plain_way(), kinds[kind].temperature, out);
        struct td_generate_config config = {16, 256, 64, 4, NULL};
        struct td_generator *g = generator_open(&f, &config);
        for (int i = 0; i < SEQUENCES; i += 5) {
            double logp[POSITIONS];
            int32_t ids[2 * POSITIONS], prompt = prompt_of(i, ids);
            memcpy(ids + prompt, out[i].ids, sizeof out[i].ids);
            double temperature = sampling_of(i, kinds[kind].temperature).temperature;
            temperature = temperature > 0 ? temperature : 1;
            must(td_generator_score(g, ids, prompt + out[i].n, temperature, logp, &err), &err);
            for (int32_t t = 0; t < out[i].n; t++) {
                assert_true((float)logp[prompt - 1 + t] == out[i].logp[t]);
            }
        }
        td_generator_free(g);
        fixture_close(&f);
    }
}

static void step_until_idle(struct td_generator *g) {
    struct td_err err;
    bool busy = true;
    while (busy) {
        must(td_generator_step(g, &busy, &err), &err);
    }
}

static void check_prefilled(struct td_generator *g, uint64_t want) {
    step_until_idle(g);
    assert_int_equal(td_generator_counters(g).prefilled, want);
}

static void test_generate_group_prefills_once(void **state) {
    (void)state;
    struct fixture f;
    struct td_err err;
    fixture_open(&f, backend_of(CPU));
    struct td_generate_config config = {4, 512, 128, 16, NULL};
    struct td_generator *g = generator_open(&f, &config);
    int32_t ids[POSITIONS], n = prompt_of(SEQUENCES - 1, ids);
    must(td_generator_open(g, 0, &err), &err);
    must(td_generator_extend(g, 0, ids, n, &err), &err);
    struct td_sampling s = {.temperature = 1, .top_p = 1, .max_new_tokens = 6};
    for (uint64_t i = 1; i <= 8; i++) {
        must(td_generator_fork(g, 0, i, &err), &err);
        s.key = i;
        must(td_generator_generate(g, i, &s, &err), &err);
    }
    check_prefilled(g, (uint64_t)n);
    assert_int_equal(td_generator_tokens(g), 8 * 6);
    assert_int_equal(td_generator_counters(g).decoded, 8 * 5);
    assert_int_equal(td_generator_counters(g).steps, 6);
    must(td_generator_fork(g, 0, 9, &err), &err); // a late one: the prompt's last token only
    must(td_generator_generate(g, 9, &s, &err), &err);
    check_prefilled(g, (uint64_t)n + 1);
    must(td_generator_open(g, 10, &err), &err); // no kin
    must(td_generator_extend(g, 10, ids, n, &err), &err);
    must(td_generator_generate(g, 10, &s, &err), &err);
    check_prefilled(g, 2 * (uint64_t)n + 1);
    struct td_generated got, last = {0};
    for (int i = 0; td_generator_next(g, &got); i++) { // 8, 9 and 10 have one key
        if (i >= 8) {
            assert_memory_equal(got.ids, last.ids, 6 * sizeof *got.ids);
            assert_memory_equal(got.logp, last.logp, 6 * sizeof *got.logp);
        }
        last = got;
    }
    assert_int_equal(last.sequence, 10);
    td_generator_free(g);
    fixture_close(&f);
}

// Generates in pieces: some here, aborted, the rest by another generator that is given the tokens.
static void test_generate_resumes_elsewhere(void **state) {
    (void)state;
    static struct outcome plain[SEQUENCES];
    struct fixture f;
    struct td_err err;
    fixture_open(&f, backend_of(CPU));
    run_way(&f, plain_way(), kinds[CPU].temperature, plain);
    for (int i = 0; i < SEQUENCES; i += 3) {
        struct td_generate_config config = {4, 512, 128, 16, NULL};
        struct td_generator *g = generator_open(&f, &config), *h = generator_open(&f, &config);
        struct outcome o = {0};
        struct td_generated got;
        int32_t ids[POSITIONS], n = prompt_of(i, ids);
        open_one(g, plain_way(), i, kinds[CPU].temperature);
        bool busy = true;
        for (int k = 0; k < 3 && busy; k++) {
            must(td_generator_step(g, &busy, &err), &err);
        }
        if (busy) {
            must(td_generator_abort(g, (uint64_t)i, &err), &err);
        }
        assert_true(td_generator_next(g, &got));
        assert_int_equal(got.finish, busy ? TD_FINISH_ABORTED : plain[i].finish);
        memcpy(o.ids, got.ids, (size_t)got.n * sizeof *got.ids);
        memcpy(o.logp, got.logp, (size_t)got.n * sizeof *got.logp);
        o.n = got.n;
        if (busy) {
            must(td_generator_open(h, 5, &err), &err);
            must(td_generator_extend(h, 5, ids, n, &err), &err);
            must(td_generator_extend(h, 5, o.ids, o.n, &err), &err);
            struct td_sampling s = sampling_of(i, kinds[CPU].temperature);
            s.max_new_tokens -= o.n;
            must(td_generator_generate(h, 5, &s, &err), &err);
            step_until_idle(h);
            assert_true(td_generator_next(h, &got));
            memcpy(o.ids + o.n, got.ids, (size_t)got.n * sizeof *got.ids);
            memcpy(o.logp + o.n, got.logp, (size_t)got.n * sizeof *got.logp);
            o.n += got.n;
        }
        assert_int_equal(o.n, plain[i].n);
        assert_int_equal(got.finish, plain[i].finish);
        assert_memory_equal(o.ids, plain[i].ids, sizeof o.ids);
        assert_memory_equal(o.logp, plain[i].logp, sizeof o.logp);
        td_generator_free(g);
        td_generator_free(h);
    }
    fixture_close(&f);
}

// Two turns in one session give what one long prompt gives.
static void test_generate_goes_on_after_extend(void **state) {
    (void)state;
    struct fixture f;
    struct td_err err;
    fixture_open(&f, backend_of(CPU));
    struct td_generate_config config = {4, 512, 128, 16, NULL};
    struct td_generator *g = generator_open(&f, &config);
    struct td_sampling s = {.key = 9, .temperature = 1, .top_p = 1, .max_new_tokens = 5};
    static const int32_t first[] = {1, 2, 3}, second[] = {4, 5};
    int32_t whole[10] = {1, 2, 3};
    struct td_generated got;
    must(td_generator_open(g, 1, &err), &err);
    must(td_generator_extend(g, 1, first, 3, &err), &err);
    must(td_generator_generate(g, 1, &s, &err), &err);
    step_until_idle(g);
    assert_true(td_generator_next(g, &got));
    memcpy(whole + 3, got.ids, 5 * sizeof *whole);
    memcpy(whole + 8, second, sizeof second);
    must(td_generator_extend(g, 1, second, 2, &err), &err);
    must(td_generator_generate(g, 1, &s, &err), &err);
    uint64_t before = td_generator_counters(g).prefilled;
    check_prefilled(g, before + 3); // the last of the first turn, and the second
    must(td_generator_open(g, 2, &err), &err);
    must(td_generator_extend(g, 2, whole, 10, &err), &err);
    must(td_generator_generate(g, 2, &s, &err), &err);
    step_until_idle(g);
    struct td_generated other;
    assert_true(td_generator_next(g, &got) && td_generator_next(g, &other));
    assert_int_equal(got.n, 5);
    assert_memory_equal(got.ids, other.ids, 5 * sizeof *got.ids);
    assert_memory_equal(got.logp, other.logp, 5 * sizeof *got.logp);
    td_generator_free(g);
    fixture_close(&f);
}

static void test_generate_ends_at_the_last_position(void **state) {
    (void)state;
    struct fixture f;
    struct td_err err;
    fixture_open(&f, backend_of(CPU));
    struct td_generate_config config = {4, 512, 128, 16, NULL};
    struct td_generator *g = generator_open(&f, &config);
    struct td_sampling s = {.key = 9, .temperature = 1, .top_p = 1, .max_new_tokens = INT32_MAX};
    int32_t ids[POSITIONS] = {0};
    struct td_generated got;
    must(td_generator_open(g, 1, &err), &err);
    must(td_generator_extend(g, 1, ids, POSITIONS - 3, &err), &err);
    must(td_generator_generate(g, 1, &s, &err), &err);
    step_until_idle(g);
    assert_true(td_generator_next(g, &got));
    assert_int_equal(got.n, 3);
    assert_int_equal(got.finish, TD_FINISH_LENGTH);
    assert_int_equal(td_generator_extend(g, 1, ids, 1, &err), TD_ELIMIT);
    must(td_generator_generate(g, 1, &s, &err), &err); // no room for a single one
    assert_true(td_generator_next(g, &got));
    assert_int_equal(got.n, 0);
    assert_int_equal(got.finish, TD_FINISH_LENGTH);
    td_generator_free(g);
    fixture_close(&f);
}

static void test_generate_samples_allowed_ids_only(void **state) {
    (void)state;
    struct fixture f;
    struct td_err err;
    fixture_open(&f, backend_of(CPU));
    uint8_t allowed[64] = {0};
    allowed[3] = allowed[11] = allowed[52] = 1;
    struct td_generate_config config = {4, 512, 128, 16, allowed};
    struct td_generator *g = generator_open(&f, &config);
    struct td_sampling s = {.key = 9, .temperature = 1, .top_p = 1, .max_new_tokens = 40};
    static const int32_t prompt[] = {1, 2};
    struct td_generated got;
    must(td_generator_open(g, 1, &err), &err);
    must(td_generator_extend(g, 1, prompt, 2, &err), &err);
    must(td_generator_generate(g, 1, &s, &err), &err);
    step_until_idle(g);
    assert_true(td_generator_next(g, &got));
    int seen[64] = {0};
    for (int32_t i = 0; i < got.n; i++) {
        assert_true(allowed[got.ids[i]]);
        seen[got.ids[i]]++;
    }
    assert_true((seen[3] > 0) + (seen[11] > 0) + (seen[52] > 0) >= 2);
    td_generator_free(g);
    fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generate_nothing_but_the_sequence_decides),
        cmocka_unit_test(test_generate_logp_is_that_of_a_packed_forward),
        cmocka_unit_test(test_generate_score_equals_generation),
        cmocka_unit_test(test_generate_group_prefills_once),
        cmocka_unit_test(test_generate_resumes_elsewhere),
        cmocka_unit_test(test_generate_goes_on_after_extend),
        cmocka_unit_test(test_generate_ends_at_the_last_position),
        cmocka_unit_test(test_generate_samples_allowed_ids_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
