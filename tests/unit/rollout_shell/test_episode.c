// Groups under way: which results are taken, and what they score.
#include "controllers/rollout/episode.h"

#include "tests/unit/rollout_shell/rig.h"

static void test_episode_life(void **state) {
    (void)state;
    struct rig r;
    rig_init(&r);
    for (uint64_t ticket = 1; ticket <= 50; ticket++) {
        struct td_episode *g = rig_start(&r, ticket, false, ticket % TINY_JOB_ROWS, 3);
        assert_ptr_equal(td_episodes_find(r.episodes, ticket), g);
        struct td_row want;
        td_dataset_at(r.data->train, 0, ticket % TINY_JOB_ROWS, &want);
        assert_true(g->row.ids == want.ids && g->row.n == want.n);
        assert_true(g->attempt.term == 3 && g->attempt.n == 4 && g->worker == 1);
    }
    td_episodes_remove(r.episodes, 17);
    td_episodes_remove(r.episodes, 17);
    assert_null(td_episodes_find(r.episodes, 17));
    assert_non_null(td_episodes_find(r.episodes, 18));
    struct td_episode *eval = rig_start(&r, 99, true, 2, 1);
    struct td_row want;
    td_dataset_row(r.data->val, 2, &want);
    assert_ptr_equal(eval->row.ids, want.ids);
    rig_fini(&r); // frees what is under way
    td_episodes_free(NULL);
}

// Ids of sequences are ids of (ticket, sample), without a collision.
static void test_episode_sequences(void **state) {
    (void)state;
    struct rig r;
    rig_init(&r);
    static const uint64_t tickets[] = {1, 2, 4095, 4096, 1ull << 40};
    for (size_t i = 0; i < sizeof tickets / sizeof *tickets; i++) {
        struct td_episode *g = rig_start(&r, tickets[i], false, 0, TD_EPISODE_SAMPLES_MAX);
        for (uint32_t s = 0; s < TD_EPISODE_SAMPLES_MAX; s += 5) {
            uint64_t id = td_episode_sequence(g, s);
            assert_int_equal(td_sequence_ticket(id), tickets[i]);
            assert_int_equal(td_sequence_sample(id), s);
        }
    }
    rig_fini(&r);
}

struct spoil {
    const char *name;
    void (*spoil)(struct generated *x, const struct td_episode *g);
};

static void other_sample(struct generated *x, const struct td_episode *g) {
    x->m.sequence = td_episode_sequence(g, 3);
}
static void no_version(struct generated *x, const struct td_episode *g) {
    (void)g;
    x->m.version = NULL;
}
static void other_step(struct generated *x, const struct td_episode *g) {
    (void)g;
    x->version.step++;
}
static void other_lineage(struct generated *x, const struct td_episode *g) {
    (void)g;
    x->version.lineage++;
}
static void fewer_logp(struct generated *x, const struct td_episode *g) {
    (void)g;
    x->m.n_logp--;
}
static void nothing(struct generated *x, const struct td_episode *g) {
    (void)g;
    x->m.n_logp = x->m.n_ids = 0;
}
static void aborted(struct generated *x, const struct td_episode *g) {
    (void)g;
    x->m.finish = TANDEM__WORKER__FINISHED__ABORTED;
}
static void unfinished(struct generated *x, const struct td_episode *g) {
    (void)g;
    x->m.finish = TANDEM__WORKER__FINISHED__NONE;
}

static void test_episode_takes(void **state) {
    (void)state;
    static const struct spoil spoils[] = {
        {"a sample it does not have", other_sample},
        {"no version", no_version},
        {"other step", other_step},
        {"other lineage", other_lineage},
        {"fewer log-probs", fewer_logp},
        {"no token", nothing},
        {"aborted", aborted},
        {"unfinished", unfinished},
    };
    struct rig r;
    rig_init(&r);
    struct td_episode *g = rig_start(&r, 5, false, 0, 3);
    struct generated x;
    for (size_t i = 0; i < sizeof spoils / sizeof *spoils; i++) {
        generate(&r, g, 1, "12", &x);
        spoils[i].spoil(&x, g);
        if (td_episode_take(g, &x.m)) {
            fail_msg("taken: %s", spoils[i].name);
        }
    }
    assert_int_equal(g->done, 0);
    generate(&r, g, 1, "12", &x);
    x.m.finish = TANDEM__WORKER__FINISHED__LENGTH;
    assert_true(td_episode_take(g, &x.m));
    assert_false(td_episode_take(g, &x.m)); // twice
    assert_true(g->done == 1 && g->samples[1].done && g->samples[1].clipped);
    assert_int_equal(g->samples[1].n, 3);
    assert_memory_equal(g->samples[1].ids, x.ids, 3 * sizeof *x.ids); // a copy
    assert_true(g->samples[1].ids != x.ids && g->samples[1].logp[2] == -1.0f);
    take(&r, g, 0, "1");
    take(&r, g, 2, "4");
    assert_true(g->done == 3 && !g->samples[0].clipped);
    rig_fini(&r);
}

// The grader sees the answer without special tokens: the pattern of the job is [0-3].
static void test_episode_scores(void **state) {
    (void)state;
    struct rig r;
    rig_init(&r);
    static const struct {
        const char *text;
        double score;
    } cases[] = {{"3", 1}, {"45", 0}, {"9 2", 1}, {"", 0}, {"<pad>", 0}};
    enum { N = sizeof cases / sizeof *cases };
    struct td_episode *g = rig_start(&r, 5, false, 0, N);
    for (uint32_t i = 0; i < N; i++) {
        take(&r, g, i, cases[i].text);
    }
    rig_score(&r, g);
    for (int i = 0; i < N; i++) {
        if (g->samples[i].score != cases[i].score) {
            fail_msg("'%s': %g, expected %g", cases[i].text, g->samples[i].score, cases[i].score);
        }
    }
    rig_fini(&r);
}

// A pattern that runs away on one answer: it scores 0, the others count. An error would have the
// group generated again, with the same samples.
static void test_episode_runaway_pattern(void **state) {
    (void)state;
    const char *overrides[] = {
        "tandem.rewards=[{data_source: sum, grader: regex, pattern: '^(?:a+)+$'}]", NULL};
    struct rig r;
    rig_init_with(&r, overrides);
    struct td_episode *g = rig_start(&r, 5, false, 0, 2);
    char text[202];
    memset(text, 'a', 200);
    memcpy(text + 200, "!", 2);
    take(&r, g, 0, text);
    take(&r, g, 1, "aaaaa");
    g->samples[0].score = 7;
    rig_score(&r, g);
    assert_true(g->samples[0].score == 0 && g->samples[1].score == 1);
    rig_fini(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_episode_life),
        cmocka_unit_test(test_episode_sequences),
        cmocka_unit_test(test_episode_takes),
        cmocka_unit_test(test_episode_scores),
        cmocka_unit_test(test_episode_runaway_pattern),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
