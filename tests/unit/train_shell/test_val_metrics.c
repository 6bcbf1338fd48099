// Validation scores as metrics: by data source, in the order of rows whatever the order of scores.
#include "controllers/train/val_metrics.h"

#include <stdio.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/rng.h"
#include "tests/unit/cmocka_all.h"
#include "tests/unit/job/tiny_job.h"

enum { ROWS = 40, SAMPLES = 3 };

static struct tiny_job job;
static struct td_job_data *data;

static int make_job(void **state) {
    (void)state;
    const char *overrides[] = {"actor_rollout_ref.rollout.val_kwargs.n=3",
                               "actor_rollout_ref.rollout.val_kwargs.do_sample=true", NULL};
    tiny_job_new(&job, TD_JOB_GRPO, overrides);
    struct td_buf rows = {0};
    for (int i = 0; i < ROWS; i++) { // every fourth row from another source, graded alike
        td_buf_printf(&rows,
                      "{\"prompt\": \"%d+1=\", \"data_source\": \"%s\", \"reward_model\": "
                      "{\"ground_truth\": \"1\"}}\n",
                      i, i % 4 ? "sum" : "openai/gsm8k");
    }
    tiny_job_put(&job, "val.jsonl", td_buf_str(&rows));
    td_buf_fini(&rows);
    struct td_err err;
    if (td_job_data_load(job.spec, &data, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
    return 0;
}

static int remove_job(void **state) {
    (void)state;
    td_job_data_free(data);
    tiny_job_free(&job);
    return 0;
}

struct scores {
    Tandem__Sync__EvalScore item[ROWS], *items[ROWS];
    double score[ROWS][SAMPLES];
    Tandem__Sync__Orders orders;
};

static void make_scores(struct scores *s) {
    struct td_rng rng = {7};
    tandem__sync__orders__init(&s->orders);
    for (uint64_t i = 0; i < ROWS; i++) {
        tandem__sync__eval_score__init(&s->item[i]);
        for (int k = 0; k < SAMPLES; k++) {
            s->score[i][k] = td_rng_unit(&rng); // sums of these depend on their order
        }
        s->item[i].index = i;
        s->item[i].score = s->score[i];
        s->item[i].n_score = SAMPLES;
        s->items[i] = &s->item[i];
    }
    s->orders.eval = s->items;
    s->orders.n_eval = ROWS;
}

static double value(const struct td_metrics *m, const char *name) {
    const struct td_metric *x = td_metrics_find(m, name);
    if (!x) {
        fail_msg("no %s", name);
    }
    return x->value;
}

static void test_val_metrics_by_source(void **state) {
    (void)state;
    struct scores s;
    struct td_metrics m = {0};
    make_scores(&s);
    td_val_metrics(data, &s.orders, &m);
    double sums[2] = {0};
    for (int i = 0; i < ROWS; i++) {
        sums[i % 4 == 0] += (s.score[i][0] + s.score[i][1] + s.score[i][2]) / SAMPLES;
    }
    assert_int_equal(m.count, 2);
    assert_true(value(&m, "val-core/sum/reward/mean@3") == sums[0] / 30);
    assert_true(value(&m, "val-core/openai/gsm8k/reward/mean@3") == sums[1] / 10);
}

static void test_val_metrics_any_order(void **state) {
    (void)state;
    struct scores s;
    struct td_metrics want = {0};
    uint64_t seed = (uint64_t)(uintptr_t)&s;
    struct td_rng rng = {seed};
    print_message("seed %llu\n", (unsigned long long)seed);
    make_scores(&s);
    td_val_metrics(data, &s.orders, &want);
    for (int turn = 0; turn < 200; turn++) {
        for (uint32_t i = ROWS - 1; i > 0; i--) {
            uint32_t k = td_rng_below(&rng, i + 1);
            Tandem__Sync__EvalScore *x = s.items[i];
            s.items[i] = s.items[k];
            s.items[k] = x;
        }
        struct td_metrics got = {0};
        td_val_metrics(data, &s.orders, &got);
        assert_int_equal(got.count, want.count);
        for (int i = 0; i < want.count; i++) {
            assert_true(value(&got, want.m[i].name) == want.m[i].value);
        }
    }
}

static void test_val_metrics_odd_scores(void **state) {
    (void)state;
    struct scores s;
    struct td_metrics m = {0};
    td_val_metrics(data, NULL, &m);
    assert_int_equal(m.count, 0);
    make_scores(&s);
    s.orders.n_eval = 0;
    td_val_metrics(data, &s.orders, &m);
    assert_int_equal(m.count, 0);
    s.orders.n_eval = 3;
    s.item[0].index = ROWS; // no such row
    s.item[1].n_score = 0;  // nothing generated
    s.item[2].index = 1;    // twice: the last one counts
    td_val_metrics(data, &s.orders, &m);
    assert_int_equal(m.count, 1);
    double want = (s.score[2][0] + s.score[2][1] + s.score[2][2]) / SAMPLES;
    assert_true(value(&m, "val-core/sum/reward/mean@3") == want);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_val_metrics_by_source),
        cmocka_unit_test(test_val_metrics_any_order),
        cmocka_unit_test(test_val_metrics_odd_scores),
    };
    return cmocka_run_group_tests(tests, make_job, remove_job);
}
