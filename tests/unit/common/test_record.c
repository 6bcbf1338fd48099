// The rollout record: there and back, and no damage passes.
#include "controllers/common/record.h"

#include <math.h>
#include <string.h>

#include "lib/base/mem.h"
#include "tests/unit/cmocka_all.h"

enum { SAMPLES = 3, PROMPT = 5, ANSWER = 4, TOKENS = SAMPLES * (PROMPT + ANSWER) };

struct fixture {
    Tandem__Rollout__Header header;
    Tandem__Rollout__Model model, *models[1];
    Tandem__Rollout__Sequence sequence[SAMPLES], *sequences[SAMPLES];
    Tandem__Rollout__Segment segment[2 * SAMPLES], *segments[2 * SAMPLES];
    uint32_t samples[SAMPLES];
    Tandem__Rollout__Status status[SAMPLES];
    int32_t tok[TOKENS];
    float logp[TOKENS];
    uint8_t mask[TOKENS];
    double reward[SAMPLES];
    struct td_rollout_record record;
};

static void add_segment(struct fixture *f, uint32_t sequence, bool model, uint64_t from,
                        uint64_t to) {
    Tandem__Rollout__Segment *g = &f->segment[f->header.n_segments];
    tandem__rollout__segment__init(g);
    g->sequence = sequence;
    g->kind = model ? TANDEM__ROLLOUT__SEGMENT_KIND__MODEL : TANDEM__ROLLOUT__SEGMENT_KIND__PROMPT;
    g->from = from;
    g->to = to;
    f->segments[f->header.n_segments++] = g;
}

static void make(struct fixture *f) {
    *f = (struct fixture){0};
    tandem__rollout__header__init(&f->header);
    tandem__rollout__model__init(&f->model);
    f->model.name = "actor";
    f->models[0] = &f->model;
    f->header.job = 7;
    f->header.parts = 1;
    f->header.models = f->models;
    f->header.n_models = 1;
    for (uint32_t i = 0; i < SAMPLES; i++) {
        uint64_t from = i * (PROMPT + ANSWER);
        tandem__rollout__sequence__init(&f->sequence[i]);
        f->sequence[i].sample = i;
        f->sequence[i].parent = -1;
        f->sequence[i].from = from;
        f->sequence[i].to = from + PROMPT + ANSWER;
        f->sequences[i] = &f->sequence[i];
        f->samples[i] = i;
        f->reward[i] = i * 0.5;
        add_segment(f, i, false, from, from + PROMPT);
        add_segment(f, i, true, from + PROMPT, from + PROMPT + ANSWER);
        for (uint64_t t = from; t < from + PROMPT + ANSWER; t++) {
            f->tok[t] = (int32_t)t;
            f->mask[t] = t >= from + PROMPT;
            f->logp[t] = f->mask[t] ? -0.25f * (float)t : 0;
        }
    }
    f->header.samples = f->samples;
    f->header.n_samples = SAMPLES;
    f->header.status = f->status;
    f->header.n_status = SAMPLES;
    f->header.sequences = f->sequences;
    f->header.n_sequences = SAMPLES;
    f->header.segments = f->segments;
    f->record = (struct td_rollout_record){.header = &f->header,
                                           .tokens = TOKENS,
                                           .samples = SAMPLES,
                                           .tok = f->tok,
                                           .logp = f->logp,
                                           .loss_mask = f->mask,
                                           .reward = f->reward};
}

static void test_record_there_and_back(void **state) {
    (void)state;
    struct fixture f;
    make(&f);
    struct td_buf bytes = {0};
    struct td_err err;
    struct td_rollout_record *r = NULL;
    td_rollout_record_encode(&f.record, &bytes);
    assert_int_equal(td_rollout_record_decode(bytes.data, bytes.len, &r, &err), TD_OK);
    assert_int_equal(r->tokens, TOKENS);
    assert_int_equal(r->header->job, 7);
    assert_memory_equal(r->tok, f.tok, sizeof f.tok);
    assert_memory_equal(r->logp, f.logp, sizeof f.logp);
    assert_memory_equal(r->loss_mask, f.mask, sizeof f.mask);
    assert_memory_equal(r->reward, f.reward, sizeof f.reward);
    uint64_t trainable;
    double sum;
    td_rollout_record_sums(r, &trainable, &sum);
    assert_int_equal(trainable, SAMPLES * ANSWER);
    assert_true(sum == 1.5);
    td_rollout_record_free(r);
    td_buf_fini(&bytes);
}

static void test_record_cut_or_flipped_is_refused(void **state) {
    (void)state;
    struct fixture f;
    make(&f);
    struct td_buf bytes = {0};
    struct td_err err;
    struct td_rollout_record *r = NULL;
    td_rollout_record_encode(&f.record, &bytes);
    for (size_t n = 0; n < bytes.len; n++) {
        uint8_t *cut = td_memdup(bytes.data, n);
        assert_int_not_equal(td_rollout_record_decode(cut, n, &r, &err), TD_OK);
        td_free(cut);
    }
    for (size_t bit = 0; bit < bytes.len * 8; bit++) {
        bytes.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_not_equal(td_rollout_record_decode(bytes.data, bytes.len, &r, &err), TD_OK);
        bytes.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    td_buf_fini(&bytes);
}

static void spoil(struct fixture *f, int how) {
    switch (how) {
    case 0:
        f->mask[0] = 1; // a prompt's token trained
        break;
    case 1:
        f->logp[PROMPT] = NAN;
        break;
    case 2:
        f->reward[1] = INFINITY;
        break;
    case 3:
        f->sequence[1].from++;
        break;
    case 4:
        f->segment[1].to--;
        break;
    case 5:
        f->header.parts = 0;
        break;
    case 6:
        f->header.n_status = 1;
        break;
    case 7:
        f->sequence[0].sample = SAMPLES;
        break;
    case 8:
        f->segment[0].model = 1;
        break;
    case 9:
        f->header.n_models = 0;
        break;
    default:
        f->tok[3] = -1;
        break;
    }
}

static void test_record_contradictions_are_refused(void **state) {
    (void)state;
    for (int how = 0; how <= 10; how++) {
        struct fixture f;
        make(&f);
        spoil(&f, how);
        struct td_buf bytes = {0};
        struct td_err err = {0};
        struct td_rollout_record *r = NULL;
        td_rollout_record_encode(&f.record, &bytes);
        assert_int_equal(td_rollout_record_decode(bytes.data, bytes.len, &r, &err), TD_ECORRUPT);
        assert_non_null(strstr(err.msg, "rollout record: "));
        td_buf_fini(&bytes);
    }
}

static void test_record_no_memory(void **state) {
    (void)state;
    struct fixture f;
    make(&f);
    struct td_buf bytes = {0};
    struct td_err err;
    struct td_rollout_record *r = NULL;
    td_rollout_record_encode(&f.record, &bytes);
    td_mem_fail_at(0);
    assert_int_equal(td_rollout_record_decode(bytes.data, bytes.len, &r, &err), TD_ENOMEM);
    td_mem_fail_at(-1);
    td_buf_fini(&bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_record_there_and_back),
        cmocka_unit_test(test_record_cut_or_flipped_is_refused),
        cmocka_unit_test(test_record_contradictions_are_refused),
        cmocka_unit_test(test_record_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
