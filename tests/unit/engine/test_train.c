// The trainer: overfitting, micro-batch splits, keys, failures that change nothing, schedules.
#include "workers/engine/train.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "lib/base/buf.h"
#include "lib/base/clock.h"
#include "lib/base/file.h"
#include "tests/unit/engine/batch_of.h"
#include "tests/unit/model/tiny.h"
#include "workers/engine/train_int.h"

struct rig {
    struct td_backend *be;
    struct td_model *m;
    struct td_trainer *t;
};

static struct td_train_config sft_config(void) {
    return (struct td_train_config){.sft = true,
                                    .temperature = 1,
                                    .micro_batch_tokens = 64,
                                    .lr = 1e-2,
                                    .beta1 = 0.9,
                                    .beta2 = 0.999,
                                    .eps = 1e-8,
                                    .grad_clip = 1};
}

static struct td_train_config grpo_config(void) {
    struct td_train_config c = sft_config();
    c.sft = false;
    c.temperature = 0.8;
    c.use_reference = true;
    c.loss = (struct td_policy_loss_config){.clip_low = 0.2,
                                            .clip_high = 0.28,
                                            .clip_c = 3,
                                            .agg = TD_AGG_TOKEN_MEAN,
                                            .entropy_coeff = 0.01,
                                            .use_kl_loss = true,
                                            .kl_coef = 0.05,
                                            .kl = TD_KL_LOW_VAR};
    return c;
}

static void set_up(struct rig *r, struct td_backend *be, const struct td_train_config *c) {
    struct td_model_config shape = tiny_config(&tiny_cases[2]);
    struct td_err err = {0};
    r->be = be;
    assert_int_equal(td_model_new(be, &shape, &r->m, NULL), TD_OK);
    if (td_trainer_new(be, r->m, c, &r->t, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
    tiny_fill(r->m, td_trainer_weights(r->t), 17);
    assert_int_equal(td_trainer_load(r->t, 1, 0, NULL, NULL), TD_OK);
    if (c->use_reference) {
        assert_int_equal(td_trainer_set_reference(r->t, NULL, NULL), TD_OK);
    }
}

static void tear_down(struct rig *r) {
    td_trainer_free(r->t);
    td_model_free(r->m);
    td_backend_free(r->be);
}

static double metric(const struct td_metrics *metrics, const char *name) {
    const struct td_metric *m = td_metrics_find(metrics, name);
    if (!m) {
        fail_msg("no metric %s", name);
        return 0;
    }
    return m->value;
}

// One whole round; every update's metrics joined.
static void run_round(struct rig *r, const struct batch_of *x, uint64_t ref,
                      struct td_metrics *metrics) {
    struct td_round_key key = {.generation = 1, .ref_offset = ref, .ref_crc = 7};
    struct td_err err = {0};
    enum td_rc rc = td_trainer_prep(r->t, &key, batch_of_map(x), metrics, &err);
    for (uint32_t k = 1; rc == TD_OK && k <= x->b.updates; k++) {
        rc = td_trainer_step(r->t, &key, k, 0, metrics, &err);
    }
    rc = rc ? rc : td_trainer_finish(r->t, &key, 0, &err);
    if (rc != TD_OK) {
        fail_msg("%s", err.msg);
    }
}

static void test_train_overfits_one_batch(void **state) {
    (void)state;
    struct rig r;
    struct batch_of x;
    struct td_train_config c = sft_config();
    set_up(&r, td_backend_ref_new(), &c);
    batch_of_fill(&x, 83, 1, 1, 9);
    double loss = 0, first = 0;
    for (int round = 0; round < 200; round++) {
        struct td_metrics metrics = {0};
        run_round(&r, &x, (uint64_t)round + 1, &metrics);
        loss = metric(&metrics, "train/loss");
        first = round == 0 ? loss : first;
        assert_true(metric(&metrics, "train/lr") == 1e-2);
        if (loss < 0.01) {
            break;
        }
    }
    print_message("loss %.3f -> %.4f\n", first, loss);
    assert_true(loss < 0.01);
    tear_down(&r);
}

// The gradient of the first update under a number of rows per micro-batch.
static double *gradient(struct td_backend *be, int64_t rows, uint64_t *digest) {
    struct rig r;
    struct batch_of x;
    struct td_train_config c = grpo_config();
    c.micro_batch_rows = rows;
    c.loss.agg = TD_AGG_SEQ_MEAN_TOKEN_MEAN;
    set_up(&r, be, &c);
    batch_of_fill(&x, 83, 1, 2, 21);
    struct td_metrics metrics = {0};
    run_round(&r, &x, 1, &metrics);
    size_t n = (size_t)td_model_elements(r.m);
    double *g = td_alloc_array(n, sizeof *g);
    uint64_t weight;
    td_transfer_get_f64(r.be, g, r.t->grads.p, n);
    td_trainer_digest(r.t, &weight, digest);
    tear_down(&r);
    return g;
}

static void test_train_gradient_is_independent_of_the_split(void **state) {
    (void)state;
    struct td_model_config shape = tiny_config(&tiny_cases[2]);
    uint64_t digest[4];
    double *g[4];
    static const int64_t rows[] = {8, 4, 1, 1};
    for (int i = 0; i < 4; i++) {
        g[i] = gradient(td_backend_ref_new(), rows[i], &digest[i]);
    }
    struct td_backend *be = td_backend_ref_new();
    struct td_model *m;
    assert_int_equal(td_model_new(be, &shape, &m, NULL), TD_OK);
    for (int p = 0; p < td_model_param_count(m); p++) {
        const struct td_param *param = td_model_param(m, p);
        double most = 0, diff = 0;
        for (int64_t k = param->offset; k < param->offset + param->rows * param->cols; k++) {
            most = fmax(most, fabs(g[0][k]));
            diff = fmax(diff, fmax(fabs(g[0][k] - g[1][k]), fabs(g[0][k] - g[2][k])));
        }
        assert_true(most > 0);
        assert_true(diff <= 1e-11 * most);
    }
    assert_true(digest[2] == digest[3]);
    td_model_free(m);
    td_backend_free(be);
    for (int i = 0; i < 4; i++) {
        td_free(g[i]);
    }
}

// On policy and with the sampler's log-probs equal to ours: no ratio, no KL, no difference.
static void test_train_on_policy_metrics(void **state) {
    (void)state;
    struct rig r;
    struct batch_of x;
    struct td_train_config c = grpo_config();
    set_up(&r, td_backend_ref_new(), &c);
    batch_of_fill(&x, 83, 2, 1, 4);
    struct td_round_key key = {.generation = 1, .ref_offset = 5, .ref_crc = 6};
    struct td_metrics metrics = {0};
    uint32_t first = batch_of_skip_first(&x);
    assert_int_equal(td_trainer_prep(r.t, &key, batch_of_map(&x), &metrics, NULL), TD_OK);
    assert_true(metric(&metrics, "training/rollout_probs_diff_max") > 0.01);
    for (uint32_t i = 0; i < x.b.tokens; i++) {
        x.rollout_logp[i] = x.loss_mask[i] ? (float)r.t->old_logp[i] : 0;
    }
    metrics.count = 0;
    x.mini[0] = first;
    assert_int_equal(td_trainer_prep(r.t, &key, batch_of_map(&x), &metrics, NULL), TD_OK);
    assert_int_equal(td_trainer_step(r.t, &key, 1, 0, &metrics, NULL), TD_OK);
    assert_true(metric(&metrics, "training/rollout_probs_diff_max") == 0);
    assert_true(metric(&metrics, "training/rollout_probs_diff_mean") == 0);
    assert_true(metric(&metrics, "actor/entropy") > 1);
    assert_true(metric(&metrics, "actor/ppo_kl") == 0);
    assert_true(metric(&metrics, "actor/kl_loss") == 0);
    assert_true(metric(&metrics, "actor/pg_clipfrac") == 0);
    assert_true(metric(&metrics, "actor/grad_norm") > 0);
    assert_int_equal(td_trainer_step(r.t, &key, 2, 0, &metrics, NULL), TD_OK);
    assert_true(metric(&metrics, "actor/kl_loss") > 0);
    tear_down(&r);
}

static void test_train_refuses_stale_keys(void **state) {
    (void)state;
    struct rig r;
    struct batch_of x;
    struct td_train_config c = sft_config();
    set_up(&r, td_backend_ref_new(), &c);
    batch_of_fill(&x, 83, 2, 1, 4);
    struct td_metrics mx = {0};
    struct td_err err;
    const struct td_round_key good = {1, 40, 9}, low = {0, 40, 9}, high = {2, 40, 9},
                              other = {1, 41, 9}, crc = {1, 40, 8};
    // nothing prepped
    assert_int_equal(td_trainer_step(r.t, &good, 1, 0, &mx, &err), TD_ECONFLICT);
    assert_int_equal(td_trainer_prep(r.t, &low, batch_of_map(&x), &mx, &err), TD_ECONFLICT);
    assert_int_equal(td_trainer_prep(r.t, &high, batch_of_map(&x), &mx, &err), TD_ECONFLICT);
    // a prep without updates may be replaced
    assert_int_equal(td_trainer_prep(r.t, &other, batch_of_map(&x), &mx, &err), TD_OK);
    assert_int_equal(td_trainer_prep(r.t, &good, batch_of_map(&x), &mx, &err), TD_OK);
    const struct {
        const struct td_round_key *key;
        uint32_t k;
        enum td_rc rc;
    } rows[] = {{&low, 1, TD_ECONFLICT}, {&high, 1, TD_ECONFLICT}, {&other, 1, TD_ECONFLICT},
                {&crc, 1, TD_ECONFLICT}, {&good, 0, TD_ECONFLICT}, {&good, 2, TD_ECONFLICT},
                {&good, 1, TD_OK},       {&good, 1, TD_ECONFLICT}, {&good, 3, TD_ECONFLICT}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(td_trainer_step(r.t, rows[i].key, rows[i].k, 0, &mx, &err), rows[i].rc);
    }
    // half done: neither finished, nor replaced, nor saved
    assert_int_equal(td_trainer_finish(r.t, &good, 0, &err), TD_ECONFLICT);
    assert_int_equal(td_trainer_prep(r.t, &other, batch_of_map(&x), &mx, &err), TD_ECONFLICT);
    assert_int_equal(td_trainer_prep(r.t, &good, batch_of_map(&x), &mx, &err), TD_ECONFLICT);
    assert_int_equal(td_trainer_export(r.t, "/nonexistent", "/nonexistent", true, &err),
                     TD_ECONFLICT);
    struct td_train_status st;
    td_trainer_status(r.t, &st);
    assert_true(st.applied == 1 && st.updates == 2 && st.prepped == 1 && st.ref_offset == 40 &&
                st.ref_crc == 9 && st.step == 0 && st.optimizer_steps == 1);
    assert_int_equal(td_trainer_step(r.t, &good, 2, 0, &mx, &err), TD_OK);
    assert_int_equal(td_trainer_finish(r.t, &other, 0, &err), TD_ECONFLICT);
    assert_int_equal(td_trainer_finish(r.t, &good, 3, &err), TD_OK);
    assert_int_equal(td_trainer_finish(r.t, &good, 3, &err), TD_ECONFLICT);
    td_trainer_status(r.t, &st);
    assert_true(st.prepped == 0 && st.step == 1 && st.lineage == 3 && st.ref_offset == 0);
    // generations only rise
    assert_int_equal(td_trainer_load(r.t, 1, 0, NULL, &err), TD_ECONFLICT);
    assert_int_equal(td_trainer_load(r.t, 3, 0, NULL, &err), TD_OK);
    assert_int_equal(td_trainer_load(r.t, 2, 0, NULL, &err), TD_ECONFLICT);
    assert_int_equal(td_trainer_load(r.t, 4, 0, "/nonexistent", &err), TD_ENOENT);
    td_trainer_status(r.t, &st);
    assert_true(st.generation == 0);
    assert_int_equal(td_trainer_load(r.t, 3, 0, NULL, &err), TD_ECONFLICT);
    assert_int_equal(td_trainer_load(r.t, 4, 0, NULL, &err), TD_OK);
    tear_down(&r);
}

static void test_train_non_finite_changes_nothing(void **state) {
    (void)state;
    struct rig r;
    struct batch_of x;
    struct td_train_config c = sft_config();
    set_up(&r, td_backend_ref_new(), &c);
    batch_of_fill(&x, 83, 1, 1, 4);
    struct td_round_key key = {1, 1, 1};
    struct td_metrics metrics = {0};
    struct td_err err;
    struct td_weights *w = td_trainer_weights(r.t);
    double *place = (double *)w->flat.p + (int64_t)x.ids[0] * 44, good = *place, bad = NAN;
    assert_int_equal(td_trainer_prep(r.t, &key, batch_of_map(&x), &metrics, &err), TD_OK);
    uint64_t before[2], after[2];
    td_trainer_digest(r.t, &before[0], &before[1]);
    *place = bad;
    assert_int_equal(td_weights_prepare(r.m, w, NULL), TD_OK);
    assert_int_equal(td_trainer_step(r.t, &key, 1, 0, &metrics, &err), TD_EINVAL);
    assert_non_null(strstr(err.msg, "step 1, update 1: loss"));
    *place = good;
    assert_int_equal(td_weights_prepare(r.m, w, NULL), TD_OK);
    td_trainer_digest(r.t, &after[0], &after[1]);
    assert_memory_equal(before, after, sizeof before);
    assert_int_equal(td_trainer_step(r.t, &key, 1, 0, &metrics, &err), TD_OK);
    tear_down(&r);
}

// transformers' and verl's lambdas, evaluated by hand.
static void test_train_lr_factors(void **state) {
    (void)state;
    static const struct {
        enum td_lr_schedule schedule;
        int64_t warmup, total;
        double min_ratio;
        uint64_t step;
        double factor;
    } rows[] = {
        {TD_LR_CONSTANT, 0, 0, 0, 0, 1},     {TD_LR_CONSTANT, 4, 0, 0, 0, 0},
        {TD_LR_CONSTANT, 4, 0, 0, 3, 0.75},  {TD_LR_CONSTANT, 4, 0, 0, 4, 1},
        {TD_LR_COSINE, 2, 10, 0.1, 1, 0.5},  {TD_LR_COSINE, 2, 10, 0.1, 2, 1},
        {TD_LR_COSINE, 2, 10, 0.1, 6, 0.55}, {TD_LR_COSINE, 2, 10, 0.1, 10, 0.1},
        {TD_LR_COSINE, 0, 8, 0, 4, 0.5},     {TD_LR_COSINE, 0, 8, 0, 2, 0.8535533905932737},
        {TD_LR_COSINE, 3, 3, 0.2, 3, 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct td_train_config c = {.schedule = rows[i].schedule,
                                    .warmup_steps = rows[i].warmup,
                                    .total_steps = rows[i].total,
                                    .min_lr_ratio = rows[i].min_ratio};
        assert_true(fabs(td_lr_factor(&c, rows[i].step) - rows[i].factor) < 1e-15);
    }
}

static void test_train_refuses_bad_settings(void **state) {
    (void)state;
    struct td_model_config shape = tiny_config(&tiny_cases[0]);
    struct td_backend *be = td_backend_ref_new();
    struct td_model *m;
    assert_int_equal(td_model_new(be, &shape, &m, NULL), TD_OK);
    struct td_train_config good = grpo_config(), bad[7];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        bad[i] = good;
    }
    bad[0].lr = NAN;
    bad[1].beta1 = 1;
    bad[2].eps = 0;
    bad[3].temperature = 0;
    bad[4].micro_batch_tokens = 0;
    bad[5].use_reference = false;
    bad[6].loss.use_kl_loss = false;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct td_trainer *t = NULL;
        struct td_err err;
        assert_int_equal(td_trainer_new(be, m, &bad[i], &t, &err), TD_EINVAL);
        assert_null(t);
    }
    td_model_free(m);
    td_backend_free(be);
}

// Three GRPO rounds of two epochs over two mini-batches each.
static void run_rounds(struct rig *r, uint64_t from, uint64_t to) {
    for (uint64_t i = from; i < to; i++) {
        struct batch_of x;
        struct td_metrics metrics = {0};
        batch_of_fill(&x, 83, 2, 2, 100 + i);
        run_round(r, &x, i + 1, &metrics);
    }
}

static struct td_backend *cpu(int threads, const char *isa) {
    struct td_backend *be = NULL;
    assert_int_equal(td_backend_cpu_new(threads, isa, &be, NULL), TD_OK);
    return be;
}

static void test_train_threads_and_isa_give_equal_bits(void **state) {
    (void)state;
    static const struct {
        int threads;
        const char *isa;
    } rows[] = {{1, NULL}, {2, NULL}, {3, "scalar"}};
    struct td_train_config c = grpo_config();
    uint64_t first[2] = {0}, digest[2];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct rig r;
        set_up(&r, cpu(rows[i].threads, rows[i].isa), &c);
        run_rounds(&r, 0, 3);
        td_trainer_digest(r.t, &digest[0], &digest[1]);
        tear_down(&r);
        memcpy(i ? digest : first, digest, sizeof digest);
        assert_memory_equal(first, digest, sizeof digest);
    }
    // For comparing builds of one machine: all must print the same.
    print_message("digest %016llx %016llx\n", (unsigned long long)first[0],
                  (unsigned long long)first[1]);
}

// The sampler's and the trainer's log-probs of one engine differ in nothing, also when the rows are
// cut into other micro-batches than before.
static void test_train_old_logp_does_not_depend_on_the_split(void **state) {
    (void)state;
    double *old[2];
    struct batch_of x;
    batch_of_fill(&x, 83, 2, 1, 8);
    (void)batch_of_skip_first(&x);
    for (int i = 0; i < 2; i++) {
        struct rig r;
        struct td_train_config c = grpo_config();
        c.micro_batch_rows = i ? 8 : 1;
        set_up(&r, cpu(2, NULL), &c);
        struct td_round_key key = {1, 1, 1};
        struct td_metrics metrics = {0};
        assert_int_equal(td_trainer_prep(r.t, &key, batch_of_map(&x), &metrics, NULL), TD_OK);
        old[i] = td_memdup(r.t->old_logp, x.b.tokens * sizeof **old);
        tear_down(&r);
    }
    assert_memory_equal(old[0], old[1], x.b.tokens * sizeof **old);
    td_free(old[0]);
    td_free(old[1]);
}

// The first update gives the old log-probs of its rows: the bits and the metrics that scoring every
// row gives (here a batch whose first update trains none).
static void test_train_first_update_gives_old_logp(void **state) {
    (void)state;
    const char *names[] = {"actor/entropy", "training/rollout_probs_diff_max",
                           "training/rollout_probs_diff_mean"};
    for (uint32_t minis = 1; minis <= 4; minis *= 2) {
        struct batch_of x;
        double *old[2], value[2][3];
        for (int scored = 0; scored < 2; scored++) {
            struct rig r;
            struct td_metrics m = {0};
            struct td_round_key key = {1, 1, 1};
            struct td_train_config c = grpo_config();
            c.micro_batch_rows = 3;
            set_up(&r, cpu(2, NULL), &c);
            batch_of_fill(&x, 83, minis, 1, 8);
            if (scored) {
                (void)batch_of_skip_first(&x);
            }
            assert_int_equal(td_trainer_prep(r.t, &key, batch_of_map(&x), &m, NULL), TD_OK);
            if (!scored) {
                assert_int_equal(td_trainer_step(r.t, &key, 1, 0, &m, NULL), TD_OK);
            }
            old[scored] = td_memdup(r.t->old_logp, x.b.tokens * sizeof **old);
            for (int i = 0; i < 3; i++) {
                value[scored][i] = metric(&m, names[i]);
            }
            tear_down(&r);
        }
        assert_memory_equal(old[0], old[1], x.b.tokens * sizeof **old);
        for (int i = 0; i < 3; i++) {
            assert_true(fabs(value[0][i] - value[1][i]) < 1e-12 * value[1][i]);
        }
        td_free(old[0]);
        td_free(old[1]);
    }
}

static char *make_dir(void) {
    char *dir = td_strdup("/tmp/td_test_train_XXXXXX");
    assert_non_null(mkdtemp(dir));
    return dir;
}

static void flip_byte(const char *dir, const char *file, size_t from_end) {
    struct td_buf text = {0};
    char *path = td_asprintf("%s/%s", dir, file);
    assert_int_equal(td_file_read(path, 1 << 30, &text, NULL), TD_OK);
    text.data[text.len - from_end] ^= 1;
    assert_int_equal(td_file_write(path, text.data, text.len, NULL), TD_OK);
    td_buf_fini(&text);
    td_free(path);
}

// Saved after one round and loaded by another trainer, which goes on to the same bits.
static void test_train_save_and_load_continue(void **state) {
    (void)state;
    struct rig a, b;
    struct td_train_config c = grpo_config();
    c.warmup_steps = 2; // the step counters matter
    char *dir = make_dir(), *at = td_asprintf("%s/ckpt", dir);
    struct td_saved_file files[TD_SAVED_FILES_MAX];
    uint64_t end[2], again[2];
    struct td_err err = {0};
    struct td_train_status st;
    int count = 0;
    set_up(&a, cpu(1, NULL), &c);
    set_up(&b, cpu(1, NULL), &c);
    run_rounds(&a, 0, 2);
    assert_int_equal(td_trainer_save(a.t, at, files, &count, &err), TD_OK);
    assert_int_equal(count, 3);
    for (int i = 0; i < count; i++) {
        char *path = td_asprintf("%s/%s", at, files[i].name);
        uint64_t digest, size;
        assert_int_equal(td_file_digest(path, &digest, &size, NULL), TD_OK);
        assert_true(digest == files[i].digest && size == files[i].size && size > 0);
        td_free(path);
    }
    assert_int_equal(td_trainer_save(a.t, at, files, &count, &err), TD_ECONFLICT);
    run_rounds(&a, 2, 3);
    td_trainer_digest(a.t, &end[0], &end[1]);

    assert_int_equal(td_trainer_load(b.t, 9, 4, at, &err), TD_OK);
    td_trainer_status(b.t, &st);
    assert_true(st.generation == 9 && st.lineage == 4 && st.step == 2 && st.optimizer_steps == 8);
    struct batch_of x;
    struct td_metrics metrics = {0};
    batch_of_fill(&x, 83, 2, 2, 102);
    struct td_round_key key = {9, 3, 7};
    assert_int_equal(td_trainer_prep(b.t, &key, batch_of_map(&x), &metrics, NULL), TD_OK);
    for (uint32_t k = 1; k <= 4; k++) {
        assert_int_equal(td_trainer_step(b.t, &key, k, 0, &metrics, NULL), TD_OK);
    }
    assert_int_equal(td_trainer_finish(b.t, &key, 4, NULL), TD_OK);
    td_trainer_digest(b.t, &again[0], &again[1]);
    assert_memory_equal(end, again, sizeof end);

    static const struct {
        const char *file;
        size_t from_end;
        const char *part;
    } flips[] = {{"model.safetensors", 5, "state digest"},
                 {"optimizer.safetensors", 9, "state digest"},
                 {"trainer.json", 6, "state digest"},
                 {"trainer.json", 2, "not a trainer state"}};
    for (size_t i = 0; i < sizeof flips / sizeof *flips; i++) {
        flip_byte(at, flips[i].file, flips[i].from_end);
        assert_int_equal(td_trainer_load(b.t, 10 + i, 4, at, &err), TD_ECORRUPT);
        assert_non_null(strstr(err.msg, flips[i].part));
        assert_non_null(strstr(err.msg, at));
        td_trainer_status(b.t, &st);
        assert_true(st.generation == 0);
        flip_byte(at, flips[i].file, flips[i].from_end);
    }
    assert_int_equal(td_trainer_load(b.t, 20, 4, at, &err), TD_OK);
    tear_down(&a);
    tear_down(&b);
    assert_int_equal(td_remove_tree(dir, NULL), TD_OK);
    td_free(at);
    td_free(dir);
}

static void test_train_export_is_a_model_folder(void **state) {
    (void)state;
    struct rig r;
    struct td_train_config c = sft_config();
    char *dir = make_dir(), *config = td_asprintf("%s/config.json", dir);
    char *folder = td_asprintf("%s/global_step_1/actor/huggingface", dir);
    char *optimizer = td_asprintf("%s/global_step_1/actor/optimizer.safetensors", dir);
    char *to = td_asprintf("%s/global_step_1", dir);
    set_up(&r, cpu(1, NULL), &c);
    assert_int_equal(td_file_write(config, "{}", 2, NULL), TD_OK);
    assert_int_equal(td_trainer_export(r.t, to, dir, true, NULL), TD_OK);
    uint64_t before = td_weights_digest(r.m, &td_trainer_weights(r.t)->flat);
    struct td_weights back;
    assert_int_equal(td_weights_new(r.m, &back, NULL), TD_OK);
    assert_int_equal(td_weights_load(r.m, &back, folder, NULL), TD_OK);
    assert_true(before == td_weights_digest(r.m, &back.flat));
    assert_true(td_file_exists(optimizer));
    td_weights_fini(r.m, &back);
    tear_down(&r);
    assert_int_equal(td_remove_tree(dir, NULL), TD_OK);
    void *strings[] = {dir, config, folder, optimizer, to};
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) {
        td_free(strings[i]);
    }
}

// One rank of two: even or odd rows, denominators of all.
struct rank {
    struct td_comm_listener *listener;
    const char *const *addresses;
    int rank;
    uint64_t digest[2];
    struct td_metrics metrics;
    enum td_rc rc;
};

static void split_rows(struct batch_of *x, const struct batch_of *all, int rank) {
    *x = *all;
    uint32_t at = 0, rows = 0;
    for (uint32_t r = (uint32_t)rank; r < BATCH_ROWS; r += 2) {
        uint32_t start = all->row_start[r], length = all->row_start[r + 1] - start;
        x->row_start[rows] = at;
        x->advantage[rows++] = all->advantage[r];
        memcpy(x->ids + at, all->ids + start, length * sizeof *x->ids);
        memcpy(x->loss_mask + at, all->loss_mask + start, length);
        memcpy(x->rollout_logp + at, all->rollout_logp + start, length * sizeof(float));
        at += length;
    }
    x->row_start[rows] = at;
    for (uint32_t u = 0; u < 2 * all->b.updates; u++) {
        x->mini[u] = all->mini[u] / 2;
    }
    x->b.rows = rows;
    x->b.tokens = at;
    x->b.row_start = x->row_start;
    x->b.ids = x->ids;
    x->b.loss_mask = x->loss_mask;
    x->b.rollout_logp = x->rollout_logp;
    x->b.advantage = x->advantage;
    x->b.mini = x->mini;
}

static void *run_rank(void *arg) {
    struct rank *me = arg;
    struct rig r;
    struct td_train_config c = grpo_config();
    struct td_comm *comm = NULL;
    struct batch_of all, x;
    set_up(&r, cpu(1, NULL), &c);
    struct td_comm_place place = {
        .addresses = me->addresses, .rank = me->rank, .size = 2, .key = 5};
    me->rc = td_comm_tcp_new(me->listener, &place, td_clock_ms() + 20000, &comm, NULL);
    td_trainer_set_comm(r.t, comm);
    batch_of_fill(&all, 83, 2, 2, 55);
    split_rows(&x, &all, me->rank);
    struct td_round_key key = {1, 1, 1};
    me->rc = me->rc ? me->rc : td_trainer_prep(r.t, &key, batch_of_map(&x), &me->metrics, NULL);
    for (uint32_t k = 1; me->rc == TD_OK && k <= x.b.updates; k++) {
        me->rc = td_trainer_step(r.t, &key, k, td_clock_ms() + 20000, &me->metrics, NULL);
    }
    td_trainer_digest(r.t, &me->digest[0], &me->digest[1]);
    td_trainer_set_comm(r.t, NULL);
    td_comm_free(comm);
    tear_down(&r);
    return NULL;
}

static void test_train_two_ranks_end_equal(void **state) {
    (void)state;
    struct rank ranks[2] = {{.rank = 0}, {.rank = 1}};
    char *addresses[2];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(td_comm_listen("127.0.0.1", &ranks[i].listener, &addresses[i], NULL),
                         TD_OK);
    }
    for (int i = 0; i < 2; i++) {
        ranks[i].addresses = (const char *const *)addresses;
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &ranks[i]), 0);
    }
    struct td_metrics joined = {0};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(ranks[i].rc, TD_OK);
        td_metrics_merge(&joined, &ranks[i].metrics);
        td_comm_listener_free(ranks[i].listener);
        td_free(addresses[i]);
    }
    assert_memory_equal(ranks[0].digest, ranks[1].digest, sizeof ranks[0].digest);

    // and their metrics join to those of one rank
    struct rig r;
    struct batch_of all;
    struct td_train_config c = grpo_config();
    struct td_metrics one = {0};
    set_up(&r, cpu(1, NULL), &c);
    batch_of_fill(&all, 83, 2, 2, 55);
    run_round(&r, &all, 1, &one);
    tear_down(&r);
    assert_int_equal(one.count, joined.count);
    for (int i = 0; i < one.count; i++) {
        double a = one.m[i].value, b = metric(&joined, one.m[i].name);
        if (!(fabs(a - b) <= 1e-4 * fabs(a) + 1e-7)) {
            fail_msg("%s: one rank %g, two ranks %g", one.m[i].name, a, b);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_train_overfits_one_batch),
        cmocka_unit_test(test_train_gradient_is_independent_of_the_split),
        cmocka_unit_test(test_train_on_policy_metrics),
        cmocka_unit_test(test_train_refuses_stale_keys),
        cmocka_unit_test(test_train_non_finite_changes_nothing),
        cmocka_unit_test(test_train_lr_factors),
        cmocka_unit_test(test_train_refuses_bad_settings),
        cmocka_unit_test(test_train_threads_and_isa_give_equal_bits),
        cmocka_unit_test(test_train_old_logp_does_not_depend_on_the_split),
        cmocka_unit_test(test_train_first_update_gives_old_logp),
        cmocka_unit_test(test_train_save_and_load_continue),
        cmocka_unit_test(test_train_export_is_a_model_folder),
        cmocka_unit_test(test_train_two_ranks_end_equal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
