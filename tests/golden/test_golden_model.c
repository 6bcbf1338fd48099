// The model and the trainer against PyTorch: values of tests/golden/make_model.py, on the double
// backend (1e-12) and the cpu backend (1e-4), relative to the largest or the norm of what is
// compared.
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/base/rng.h"
#include "tests/unit/cmocka_all.h"
#include "workers/engine/train_int.h"
#include "workers/model/convert.h"
#include "workers/model/model.h"
#include "workers/model/transfer.h"

#define GOLDEN TD_TEST_SOURCE_DIR "/tests/golden/model/"

enum { TOKENS_MAX = 64, ROWS_MAX = 8 };

static json_t *cases; // of the whole file

static int load_cases(void **state) {
    (void)state;
    json_error_t where;
    cases = json_load_file(GOLDEN "cases.json", 0, &where);
    return json_array_size(cases) >= 4 ? 0 : -1;
}

static int drop_cases(void **state) {
    (void)state;
    json_decref(cases);
    return 0;
}

// unit_of of the script: a number of [-1, 1).
static double unit_of(const char *name, int64_t i) {
    uint64_t h = 0xCBF29CE484222325u;
    for (; *name; name++) {
        h = (h ^ (uint8_t)*name) * 0x100000001B3u;
    }
    return ((double)(td_mix64(h + (uint64_t)i) >> 40) - 8388608) / 8388608;
}

static double weight_of(const struct td_param *p, int64_t i) {
    double x = unit_of(p->name, i) / 4;
    return strstr(p->name, "norm.weight") ? 1 + x : x;
}

static void fill_weights(struct td_model *m, struct td_weights *w) {
    for (int i = 0; i < td_model_param_count(m); i++) {
        const struct td_param *p = td_model_param(m, i);
        for (int64_t k = 0; k < p->rows * p->cols; k++) {
            double x = weight_of(p, k);
            td_transfer_put_f64(td_model_backend(m),
                                td_transfer_at(td_model_backend(m), w->flat.p, p->offset + k), &x,
                                1);
        }
    }
}

// The configuration as a user's folder would give it.
static struct td_model_config read_config(json_t *c) {
    char dir[] = "/tmp/td_golden_XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *path = td_asprintf("%s/config.json", dir);
    assert_int_equal(json_dump_file(json_object_get(c, "config"), path, 0), 0);
    struct td_model_config out;
    struct td_err err = {0};
    if (td_model_config_load(dir, &out, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
    assert_int_equal(td_remove_tree(dir, NULL), TD_OK);
    td_free(path);
    return out;
}

struct packed_case {
    struct td_packed packed;
    int32_t ids[TOKENS_MAX], pos[TOKENS_MAX], cu[ROWS_MAX + 1], rows[TOKENS_MAX],
        target[TOKENS_MAX];
    int32_t n;
};

static void pack(json_t *c, struct packed_case *x) {
    json_t *all = json_object_get(c, "sequences"), *s, *id;
    size_t i, k;
    int32_t t = 0;
    x->n = 0;
    x->cu[0] = 0;
    json_array_foreach(all, i, s) {
        json_array_foreach(s, k, id) {
            x->ids[t] = (int32_t)json_integer_value(id);
            x->pos[t] = (int32_t)k;
            if (k > 0) {
                x->rows[x->n] = t - 1;
                x->target[x->n++] = x->ids[t];
            }
            t++;
        }
        x->cu[i + 1] = t;
    }
    x->packed = (struct td_packed){.tokens = t,
                                   .batch = (int32_t)json_array_size(all),
                                   .ids = x->ids,
                                   .pos = x->pos,
                                   .cu = x->cu};
}

static double number(json_t *array, size_t i) {
    return json_number_value(json_array_get(array, i));
}

// The largest difference of n values, relative to the largest of the golden ones.
static double worst_of(const double *got, json_t *want) {
    double most = 0, diff = 0;
    for (size_t i = 0; i < json_array_size(want); i++) {
        most = fmax(most, fabs(number(want, i)));
        diff = fmax(diff, fabs(got[i] - number(want, i)));
    }
    assert_true(most > 0);
    return diff / most;
}

// Norm and sampled elements of every tensor; the largest difference relative to the norm.
static double worst_sampled(struct td_model *m, const struct td_tensor *flat, json_t *want) {
    double worst = 0;
    assert_int_equal(json_array_size(want), td_model_param_count(m));
    for (int i = 0; i < td_model_param_count(m); i++) {
        const struct td_param *p = td_model_param(m, i);
        json_t *t = NULL, *index;
        size_t k;
        json_array_foreach(want, k, t) {
            if (strcmp(json_string_value(json_object_get(t, "name")), p->name) == 0) {
                break;
            }
        }
        assert_non_null(t);
        size_t n = (size_t)(p->rows * p->cols);
        double *x = td_alloc_array(n, sizeof *x), sum = 0;
        td_transfer_get_f64(td_model_backend(m), x,
                            td_transfer_at(td_model_backend(m), flat->p, p->offset), n);
        for (size_t e = 0; e < n; e++) {
            sum += x[e] * x[e];
        }
        double norm = json_number_value(json_object_get(t, "norm"));
        assert_true(norm > 0);
        worst = fmax(worst, fabs(sqrt(sum) - norm) / norm);
        json_t *value = json_object_get(t, "value");
        json_array_foreach(json_object_get(t, "index"), k, index) {
            worst = fmax(worst, fabs(x[json_integer_value(index)] - number(value, k)) / norm);
        }
        td_free(x);
    }
    return worst;
}

static void check_case(struct td_backend *be, json_t *c, double bound) {
    struct td_model_config config = read_config(c);
    struct td_model *m;
    struct td_weights w;
    struct td_tensor grads, hidden, z;
    assert_int_equal(td_model_new(be, &config, &m, NULL), TD_OK);
    assert_int_equal(td_weights_new(m, &w, NULL), TD_OK);
    assert_int_equal(td_model_flat_new(m, &grads, NULL), TD_OK);
    fill_weights(m, &w);
    assert_int_equal(td_weights_prepare(m, &w, NULL), TD_OK);
    struct packed_case x;
    pack(c, &x);
    assert_int_equal(td_model_forward(m, &w, &x.packed, TD_FORWARD_TRAIN, &hidden, NULL), TD_OK);

    json_t *rows = json_object_get(c, "logit_rows"), *row;
    size_t i;
    double worst = 0, *one = td_alloc_array((size_t)config.vocab_size, sizeof *one);
    struct td_head_rows head = {.n = x.n, .rows = x.rows, .target = x.target};
    assert_int_equal(td_model_logits(m, &w, &hidden, &head, &z, NULL), TD_OK);
    json_array_foreach(rows, i, row) {
        td_transfer_get_f64(be, one, td_transfer_at(be, z.p, json_integer_value(row) * z.ld),
                            (size_t)config.vocab_size);
        worst = fmax(worst, worst_of(one, json_array_get(json_object_get(c, "logits"), i)));
    }
    td_free(one);

    double logp[TOKENS_MAX], entropy[TOKENS_MAX], dlogp[TOKENS_MAX], dentropy[TOKENS_MAX];
    head.temperature = json_number_value(json_object_get(c, "temperature"));
    head.logp = logp;
    head.entropy = entropy;
    assert_int_equal(td_model_logprob(m, &w, &hidden, &head, NULL), TD_OK);
    worst = fmax(worst, worst_of(logp, json_object_get(c, "logp")));
    worst = fmax(worst, worst_of(entropy, json_object_get(c, "entropy")));
    for (int32_t k = 0; k < x.n; k++) {
        dlogp[k] = unit_of("dlogp", k);
        dentropy[k] = unit_of("dentropy", k);
    }
    assert_int_equal(td_model_backward(m, &w, dlogp, dentropy, &grads, NULL), TD_OK);
    double gradient = worst_sampled(m, &grads, json_object_get(c, "gradients"));
    print_message("%s on %s: values %.2g, gradients %.2g\n",
                  json_string_value(json_object_get(c, "name")), be->ops->name, worst, gradient);
    assert_true(worst < bound);
    assert_true(gradient < bound);
    be->ops->release(be, grads.p);
    td_weights_fini(m, &w);
    td_model_free(m);
}

static struct td_backend *new_backend(bool cpu) {
    struct td_backend *be = NULL;
    if (cpu) {
        assert_int_equal(td_backend_cpu_new(2, NULL, &be, NULL), TD_OK);
    } else {
        be = td_backend_ref_new();
    }
    return be;
}

static const struct {
    bool cpu;
    double bound;
} backends[] = {{false, 1e-12}, {true, 1e-4}};

static void test_golden_model_values_and_gradients(void **state) {
    (void)state;
    json_t *c;
    size_t i;
    for (int b = 0; b < 2; b++) {
        json_array_foreach(cases, i, c) {
            struct td_backend *be = new_backend(backends[b].cpu);
            check_case(be, c, backends[b].bound);
            td_backend_free(be);
        }
    }
}

// The golden batch as rows of an SFT round: loss = mean of −logp.
static struct td_batch *make_batch(const struct packed_case *x) {
    uint8_t mask[TOKENS_MAX];
    float rollout[TOKENS_MAX] = {0};
    double advantage[ROWS_MAX] = {0}, tokens = x->n, sequences = x->packed.batch - 1;
    uint32_t start[ROWS_MAX + 1], mini[2] = {0, (uint32_t)x->packed.batch};
    for (int i = 0; i <= x->packed.batch; i++) {
        start[i] = (uint32_t)x->cu[i];
    }
    for (int t = 0; t < x->packed.tokens; t++) {
        mask[t] = x->pos[t] > 0;
    }
    struct td_batch b = {.rows = (uint32_t)x->packed.batch,
                         .tokens = (uint32_t)x->packed.tokens,
                         .updates = 1,
                         .row_start = start,
                         .ids = x->ids,
                         .loss_mask = mask,
                         .rollout_logp = rollout,
                         .advantage = advantage,
                         .mini = mini,
                         .token_count = &tokens,
                         .sequence_count = &sequences};
    int fd = -1;
    struct td_batch *out = NULL;
    assert_int_equal(td_batch_write(&b, &fd, NULL), TD_OK);
    assert_int_equal(td_batch_map(fd, &out, NULL), TD_OK);
    close(fd);
    return out;
}

static struct td_train_config read_adamw(json_t *a) {
    json_t *betas = json_object_get(a, "betas");
    return (struct td_train_config){
        .sft = true,
        .temperature = 1,
        .micro_batch_rows = 3,
        .lr = json_number_value(json_object_get(a, "lr")),
        .weight_decay = json_number_value(json_object_get(a, "weight_decay")),
        .beta1 = number(betas, 0),
        .beta2 = number(betas, 1),
        .eps = json_number_value(json_object_get(a, "eps")),
        .grad_clip = json_number_value(json_object_get(a, "grad_clip"))};
}

static void check_adamw(struct td_backend *be, json_t *c, double bound) {
    json_t *a = json_object_get(c, "adamw"), *step;
    struct td_model_config config = read_config(c);
    struct td_train_config train = read_adamw(a);
    struct td_model *m;
    struct td_trainer *t;
    assert_int_equal(td_model_new(be, &config, &m, NULL), TD_OK);
    assert_int_equal(td_trainer_new(be, m, &train, &t, NULL), TD_OK);
    fill_weights(m, td_trainer_weights(t));
    assert_int_equal(td_trainer_load(t, 1, 0, NULL, NULL), TD_OK);
    struct packed_case x;
    pack(c, &x);
    size_t i;
    double worst = 0;
    json_array_foreach(json_object_get(a, "steps"), i, step) {
        struct td_round_key key = {1, i + 1, 1};
        struct td_metrics metrics = {0};
        assert_int_equal(td_trainer_prep(t, &key, make_batch(&x), &metrics, NULL), TD_OK);
        assert_int_equal(td_trainer_step(t, &key, 1, 0, &metrics, NULL), TD_OK);
        assert_int_equal(td_trainer_finish(t, &key, 0, NULL), TD_OK);
        static const char *const pairs[][2] = {{"train/loss", "loss"},
                                               {"train/grad_norm", "grad_norm"}};
        for (int k = 0; k < 2; k++) {
            double got = td_metrics_find(&metrics, pairs[k][0])->value;
            double want = json_number_value(json_object_get(step, pairs[k][1]));
            assert_true(k == 0 || want > train.grad_clip); // clipping is in force
            worst = fmax(worst, fabs(got - want) / want);
        }
    }
    double weights = worst_sampled(m, &t->weights.flat, json_object_get(a, "weights"));
    print_message("%s on %s: losses and norms %.2g, weights after 3 steps %.2g\n",
                  json_string_value(json_object_get(c, "name")), be->ops->name, worst, weights);
    assert_true(worst < bound);
    assert_true(weights < bound);
    td_trainer_free(t);
    td_model_free(m);
}

static void test_golden_model_adamw(void **state) {
    (void)state;
    json_t *c;
    size_t i;
    for (int b = 0; b < 2; b++) {
        json_array_foreach(cases, i, c) {
            struct td_backend *be = new_backend(backends[b].cpu);
            check_adamw(be, c, backends[b].bound);
            td_backend_free(be);
        }
    }
}

// A folder that transformers saved in bfloat16: every weight, exactly.
static void test_golden_model_reads_a_transformers_folder(void **state) {
    (void)state;
    struct td_model_config config;
    struct td_backend *be = td_backend_ref_new();
    struct td_model *m;
    struct td_weights w;
    struct td_err err = {0};
    assert_int_equal(td_model_config_load(GOLDEN "hf_tiny", &config, &err), TD_OK);
    assert_true(config.file_dtype == TD_BF16 && config.tied && config.rope_theta == 500 &&
                config.rope.factor == 4 && config.rope.original_max_positions == 32 &&
                config.stop_count == 1 && config.stop_ids[0] == 1);
    assert_int_equal(td_model_new(be, &config, &m, NULL), TD_OK);
    assert_int_equal(td_weights_new(m, &w, NULL), TD_OK);
    if (td_weights_load(m, &w, GOLDEN "hf_tiny", &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
    for (int i = 0; i < td_model_param_count(m); i++) {
        const struct td_param *p = td_model_param(m, i);
        for (int64_t k = 0; k < p->rows * p->cols; k++) {
            float exact = (float)weight_of(p, k), rounded;
            uint16_t half;
            assert_int_equal(td_convert_from_f32(TD_BF16, &exact, 1, &half), -1);
            td_convert_to_f32(TD_BF16, &half, 1, &rounded);
            assert_true(((double *)w.flat.p)[p->offset + k] == (double)rounded);
        }
    }
    td_weights_fini(m, &w);
    td_model_free(m);
    td_backend_free(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_model_values_and_gradients),
        cmocka_unit_test(test_golden_model_adamw),
        cmocka_unit_test(test_golden_model_reads_a_transformers_folder),
    };
    return cmocka_run_group_tests(tests, load_cases, drop_cases);
}
