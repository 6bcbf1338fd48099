// The rollout record: there and back, and no damage passes.
#include "controllers/common/record.h"

#include <math.h>
#include <string.h>

#include "lib/base/crc.h"
#include "lib/base/mem.h"
#include "lib/base/rng.h"
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
    case 10:
        f->header.purpose = (Tandem__Rollout__Purpose)7;
        break;
    case 11:
        f->status[2] = (Tandem__Rollout__Status)9;
        break;
    case 12:
        f->segment[0].kind = (Tandem__Rollout__SegmentKind)3;
        break;
    default:
        f->tok[3] = -1;
        break;
    }
}

static void test_record_contradictions_are_refused(void **state) {
    (void)state;
    for (int how = 0; how <= 13; how++) {
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

// Makes the header's CRC right again after the header was changed in place.
static void seal(struct td_buf *bytes) {
    uint32_t n;
    memcpy(&n, bytes->data + 8, sizeof n);
    uint32_t crc = td_crc32c(0, bytes->data + 16, n);
    memcpy(bytes->data + 12, &crc, sizeof crc);
}

static void test_record_components_and_extra_columns(void **state) {
    (void)state;
    struct fixture f;
    make(&f);
    char *names[] = {"score", "format"};
    const double rewards[2 * SAMPLES] = {1, 10, 2, 20, 3, 30}, teacher[2] = {1.5, -2};
    f.header.reward_components = names;
    f.header.n_reward_components = 2;
    f.record.components = 2;
    f.record.reward = rewards;
    f.record.extra[0] = (struct td_rollout_column){"teacher_logp", "f64", teacher, 2};
    f.record.extra[1] = (struct td_rollout_column){"routes", "u8", "abc", 3};
    f.record.extra_count = 2;
    struct td_buf bytes = {0}, again = {0};
    struct td_err err;
    struct td_rollout_record *r = NULL;
    td_rollout_record_encode(&f.record, &bytes);
    assert_int_equal(td_rollout_record_decode(bytes.data, bytes.len, &r, &err), TD_OK);
    assert_int_equal(r->components, 2);
    assert_memory_equal(r->reward, rewards, sizeof rewards);
    assert_int_equal(r->extra_count, 2);
    assert_string_equal(r->extra[0].name, "teacher_logp");
    assert_memory_equal(r->extra[0].data, teacher, sizeof teacher);
    assert_int_equal((uintptr_t)r->extra[0].data % 64, 0);
    assert_memory_equal(r->extra[1].data, "abc", 3);
    uint64_t trainable;
    double sum;
    td_rollout_record_sums(r, &trainable, &sum);
    assert_true(sum == 6); // the first component
    td_rollout_record_encode(r, &again);
    assert_int_equal(again.len, bytes.len);
    assert_memory_equal(again.data, bytes.data, bytes.len);
    td_rollout_record_free(r);
    // A name twice, and a count that is not samples × components.
    td_buf_clear(&bytes);
    f.record.extra[1].name = "teacher_logp";
    td_rollout_record_encode(&f.record, &bytes);
    assert_int_equal(td_rollout_record_decode(bytes.data, bytes.len, &r, &err), TD_ECORRUPT);
    assert_non_null(strstr(err.msg, "twice"));
    td_buf_clear(&bytes);
    f.record.extra_count = 0;
    f.record.components = 1;
    td_rollout_record_encode(&f.record, &bytes);
    assert_int_equal(td_rollout_record_decode(bytes.data, bytes.len, &r, &err), TD_ECORRUPT);
    assert_non_null(strstr(err.msg, "column reward has a wrong count"));
    td_buf_fini(&bytes);
    td_buf_fini(&again);
}

static void test_record_narrow_rewards(void **state) {
    (void)state;
    struct fixture f;
    make(&f);
    struct td_buf bytes = {0};
    td_rollout_record_encode(&f.record, &bytes);
    uint32_t n;
    memcpy(&n, bytes.data + 8, sizeof n);
    Tandem__Rollout__Header *h = tandem__rollout__header__unpack(NULL, n, bytes.data + 16);
    const float rewards[SAMPLES] = {0.25f, 0.5f, 1};
    Tandem__Rollout__Column *c = h->columns[3];
    memcpy(c->type, "f32", 3);
    c->crc = td_crc32c(0, rewards, sizeof rewards);
    assert_int_equal(tandem__rollout__header__pack(h, bytes.data + 16), n);
    memcpy(bytes.data + (16 + n + 63) / 64 * 64 + c->offset, rewards, sizeof rewards);
    bytes.len -= SAMPLES * (sizeof(double) - sizeof(float));
    seal(&bytes);
    struct td_err err;
    struct td_rollout_record *r = NULL;
    assert_int_equal(td_rollout_record_decode(bytes.data, bytes.len, &r, &err), TD_OK);
    assert_true(r->reward[0] == 0.25 && r->reward[2] == 1);
    td_rollout_record_free(r);
    tandem__rollout__header__free_unpacked(h, NULL);
    td_buf_fini(&bytes);
}

// Headers whose CRC is right and whose content is not.
static void test_record_random_headers(void **state) {
    (void)state;
    struct td_rng rng = {20240611};
    print_message("seed %llu\n", (unsigned long long)rng.state);
    struct fixture f;
    make(&f);
    struct td_buf bytes = {0}, work = {0};
    td_rollout_record_encode(&f.record, &bytes);
    uint32_t n;
    memcpy(&n, bytes.data + 8, sizeof n);
    int accepted = 0;
    for (int i = 0; i < 20000; i++) {
        td_buf_clear(&work);
        td_buf_put(&work, bytes.data, bytes.len);
        for (uint32_t k = 0; k <= td_rng_below(&rng, 3); k++) {
            work.data[16 + td_rng_below(&rng, n)] = (uint8_t)td_rng_next(&rng);
        }
        seal(&work);
        struct td_err err;
        struct td_rollout_record *r = NULL;
        enum td_rc rc = td_rollout_record_decode(work.data, work.len, &r, &err);
        accepted += rc == TD_OK;
        assert_true(rc == TD_OK || rc == TD_ECORRUPT || rc == TD_ELIMIT);
        td_rollout_record_free(r);
    }
    assert_in_range(accepted, 1, 19999);
    td_buf_fini(&bytes);
    td_buf_fini(&work);
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
        cmocka_unit_test(test_record_components_and_extra_columns),
        cmocka_unit_test(test_record_narrow_rewards),
        cmocka_unit_test(test_record_random_headers),
        cmocka_unit_test(test_record_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
