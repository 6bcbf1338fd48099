// A round's batches: sealed records (or rows) as one memfd per rank, and what is missing.
#include "controllers/train/round.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "controllers/common/proto.h"
#include "controllers/common/record.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/io/log_memory.h"
#include "lib/ipc/batch.h"
#include "tests/unit/io/wait.h"
#include "tests/unit/ipc/pair.h"
#include "tests/unit/job/tiny_job.h"

enum { GROUPS = 4, SAMPLES = 3, ROWS = GROUPS * SAMPLES, LOG = 0x10c, PARTITIONS = 2 };

struct fixture {
    struct tiny_job job;
    struct td_job_data *data;
    struct td_loop *loop;
    struct td_log *log; // NULL: rows
    struct td_round_request request;
    int appended;
};

// ---- what the records hold: a function of (group, sample) ----

static uint32_t response_length(uint64_t group, uint32_t sample) {
    return 1 + (uint32_t)(group * 5 + sample * 3) % 7;
}

static double reward_of(uint64_t group, uint32_t sample) {
    return group == 2 ? 1 : (double)((group + sample) % 3) * 0.5; // group 2: all equal
}

static struct td_row prompt_of(const struct fixture *f, uint64_t group) {
    struct td_row row;
    td_dataset_at(f->data->train, 1, group, &row);
    return row;
}

// What a test may spoil.
struct record_options {
    uint64_t job, log, epoch, index;
    uint32_t parts;
    bool fewer_trained;
};

static void encode_record(const struct fixture *f, uint64_t group, const struct record_options *o,
                          struct td_buf *out) {
    struct td_row prompt = prompt_of(f, group);
    int32_t tok[SAMPLES * 64];
    float logp[SAMPLES * 64] = {0};
    uint8_t mask[SAMPLES * 64] = {0};
    double reward[SAMPLES];
    uint32_t samples[SAMPLES];
    Tandem__Rollout__Status status[SAMPLES];
    Tandem__Rollout__Sequence sequence[SAMPLES], *sequences[SAMPLES];
    Tandem__Rollout__Segment segment[2 * SAMPLES], *segments[2 * SAMPLES];
    uint64_t at = 0;
    for (uint32_t i = 0; i < SAMPLES; i++) {
        tandem__rollout__sequence__init(&sequence[i]);
        sequence[i].sample = i;
        sequence[i].parent = -1;
        sequence[i].from = at;
        for (int half = 0; half < 2; half++) {
            Tandem__Rollout__Segment *g = &segment[2 * i + (uint32_t)half];
            tandem__rollout__segment__init(g);
            g->sequence = i;
            g->kind =
                half ? TANDEM__ROLLOUT__SEGMENT_KIND__MODEL : TANDEM__ROLLOUT__SEGMENT_KIND__PROMPT;
            g->from = at;
            at += half ? response_length(group, i) : prompt.n;
            g->to = at;
            segments[2 * i + (uint32_t)half] = g;
            for (uint64_t t = g->from; t < at; t++) {
                tok[t] = half ? (int32_t)(2 + (t + group) % 90) : prompt.ids[t - g->from];
                mask[t] = (uint8_t)half;
                logp[t] = half ? -0.25f * (float)(t % 5) : 0;
            }
        }
        sequence[i].to = at;
        sequences[i] = &sequence[i];
        samples[i] = i;
        status[i] = i ? TANDEM__ROLLOUT__STATUS__COMPLETE : TANDEM__ROLLOUT__STATUS__LENGTH;
        reward[i] = reward_of(group, i);
    }
    mask[at - 1] = !o->fewer_trained;
    Tandem__Rollout__Model model = TANDEM__ROLLOUT__MODEL__INIT, *models[] = {&model};
    Tandem__Rollout__Header h = TANDEM__ROLLOUT__HEADER__INIT;
    h.log = o->log;
    h.job = o->job;
    h.data_epoch = o->epoch;
    h.index = o->index;
    h.parts = o->parts;
    h.models = models;
    h.n_models = 1;
    h.samples = samples;
    h.n_samples = SAMPLES;
    h.status = status;
    h.n_status = SAMPLES;
    h.sequences = sequences;
    h.n_sequences = SAMPLES;
    h.segments = segments;
    h.n_segments = 2 * SAMPLES;
    struct td_rollout_record r = {.header = &h,
                                  .tokens = at,
                                  .samples = SAMPLES,
                                  .tok = tok,
                                  .logp = logp,
                                  .loss_mask = mask,
                                  .reward = reward};
    td_rollout_record_encode(&r, out);
}

static struct record_options options_of(uint64_t group) {
    return (struct record_options){TINY_JOB_ID, LOG, 1, group, 1, false};
}

struct append_wait {
    struct fixture *f;
    Tandem__Journal__LogPosition *at;
};

static void on_appended(void *user, const struct td_log_result *r) {
    struct append_wait *w = user;
    assert_int_equal(r->outcome, TD_LOG_APPENDED);
    w->at->offset = r->offset;
    w->at->crc = r->crc;
    w->f->appended++;
}

// Appends a record for entry i and makes the entry name it.
static void put_record(struct fixture *f, size_t i, const struct record_options *o) {
    struct td_buf bytes = {0};
    td_entry *e = f->request.entries[i];
    encode_record(f, e->group->index, o, &bytes);
    struct append_wait w = {f, e->parts[0]};
    struct td_log_append a = {.partition = e->parts[0]->partition,
                              .bytes = bytes.data,
                              .n = bytes.len,
                              .done = on_appended,
                              .user = &w};
    assert_int_equal(td_log_append(f->log, &a, NULL), TD_OK);
    wait_until(f->loop, &f->appended, f->appended + 1);
    td_buf_fini(&bytes);
}

static td_entry *new_entry(const struct fixture *f, uint64_t group) {
    Tandem__Journal__LogPosition part = TANDEM__JOURNAL__LOG_POSITION__INIT, *parts[] = {&part};
    Tandem__Journal__Group g = TANDEM__JOURNAL__GROUP__INIT;
    td_entry e = TANDEM__JOURNAL__ENTRY__INIT;
    g.data_epoch = 1;
    g.index = group;
    e.group = &g;
    if (f->log) {
        part.partition = (uint32_t)(group % PARTITIONS);
        e.parts = parts;
        e.n_parts = 1;
        e.log = LOG;
        e.samples = SAMPLES;
        for (uint32_t i = 0; i < SAMPLES; i++) {
            e.tokens += response_length(group, i);
        }
    } else {
        e.row_digest = prompt_of(f, group).digest;
    }
    return td_proto_dup(&e);
}

static void make(struct fixture *f, enum td_job_kind kind, const char *const *overrides,
                 uint32_t ranks) {
    *f = (struct fixture){.loop = new_loop()};
    tiny_job_new(&f->job, kind, overrides);
    struct td_err err;
    if (td_job_data_load(f->job.spec, &f->data, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
    if (kind == TD_JOB_GRPO) {
        f->log = td_log_memory_new(f->loop, LOG, PARTITIONS);
    }
    f->request = (struct td_round_request){.data = f->data,
                                           .rollouts = f->log,
                                           .job = TINY_JOB_ID,
                                           .round = 5,
                                           .ref = {70, 71},
                                           .ranks = ranks,
                                           .entries = td_alloc_array(GROUPS, sizeof(td_entry *)),
                                           .entry_count = GROUPS};
    for (uint64_t i = 0; i < GROUPS; i++) {
        f->request.entries[i] = new_entry(f, i);
        struct record_options o = options_of(i);
        if (f->log) {
            put_record(f, i, &o);
        }
    }
}

static int log_closed;

static void on_closed(void *user) {
    (void)user;
    log_closed++;
}

static void fini(struct fixture *f) {
    td_round_request_fini(&f->request);
    if (f->log) {
        log_closed = 0;
        td_log_close(f->log, on_closed, NULL);
        wait_until(f->loop, &log_closed, 1);
    }
    td_loop_free(f->loop);
    td_job_data_free(f->data);
    tiny_job_free(&f->job);
}

static struct td_round *build(const struct fixture *f) {
    struct td_round *r = NULL;
    struct td_err err;
    if (td_round_build(&f->request, &r, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
    assert_true(r->job == TINY_JOB_ID && r->round == 5 && r->ref.offset == 70);
    assert_int_equal(r->ranks, f->request.ranks);
    return r;
}

static struct td_batch *batch_of(const struct td_round *r, uint32_t rank) {
    struct td_batch *b = NULL;
    struct td_err err;
    if (td_batch_map(r->fds[rank], &b, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
    assert_int_equal(b->updates, r->updates);
    return b;
}

// Row `row` of the batch is sample `sample` of group `group`.
static void expect_row(const struct fixture *f, const struct td_batch *b, uint32_t row,
                       uint64_t group, uint32_t sample) {
    struct td_row prompt = prompt_of(f, group);
    uint32_t from = b->row_start[row], n = b->row_start[row + 1] - from;
    assert_int_equal(n, prompt.n + response_length(group, sample));
    assert_memory_equal(b->ids + from, prompt.ids, prompt.n * sizeof *b->ids);
    for (uint32_t t = 0; t < n; t++) {
        bool trained = t >= prompt.n;
        assert_int_equal(b->loss_mask[from + t], trained);
        assert_true(trained || b->rollout_logp[from + t] == 0);
        assert_true(!trained || b->ids[from + t] >= 2);
    }
    double mean = 0, square = 0; // of the group, with Bessel's correction as verl has it
    for (uint32_t i = 0; i < SAMPLES; i++) {
        mean += reward_of(group, i) / SAMPLES;
    }
    for (uint32_t i = 0; i < SAMPLES; i++) {
        square += pow(reward_of(group, i) - mean, 2) / (SAMPLES - 1);
    }
    double want = (reward_of(group, sample) - mean) / (sqrt(square) + 1e-6);
    assert_true(fabs(b->advantage[row] - want) < 1e-9);
}

static void test_round_of_records(void **state) {
    (void)state;
    const char *overrides[] = {"actor_rollout_ref.actor.ppo_epochs=2", NULL};
    int before = count_fds();
    struct fixture f;
    make(&f, TD_JOB_GRPO, overrides, 1);
    struct td_round *r = build(&f);
    assert_int_equal(r->missing_count, 0);
    assert_int_equal(r->updates, 4); // two mini-batches of two groups, twice
    struct td_batch *b = batch_of(r, 0);
    assert_int_equal(b->rows, ROWS);
    for (uint32_t row = 0; row < ROWS; row++) {
        expect_row(&f, b, row, row / SAMPLES, row % SAMPLES);
    }
    for (uint32_t u = 0; u < 4; u++) {
        uint32_t first = u % 2 * 6;
        assert_true(b->mini[2 * u] == first && b->mini[2 * u + 1] == first + 6);
        double tokens = 0;
        for (uint32_t row = first; row < first + 6; row++) {
            tokens += response_length(row / SAMPLES, row % SAMPLES);
        }
        assert_true(b->token_count[u] == tokens && b->sequence_count[u] == 6);
    }
    td_batch_free(b);
    td_round_free(r);
    td_round_free(NULL);
    fini(&f);
    assert_int_equal(count_fds(), before);
}

// A log that does not answer has lost nothing: asked again, the round is whole.
static void test_round_when_the_log_does_not_answer(void **state) {
    (void)state;
    struct fixture f;
    struct td_round *r = NULL;
    struct td_err err;
    make(&f, TD_JOB_GRPO, NULL, 1);
    td_log_memory_set_outage(f.log, true);
    assert_int_equal(td_round_build(&f.request, &r, &err), TD_ETIMEOUT);
    assert_true(err.retriable && !r);
    td_log_memory_set_outage(f.log, false);
    r = build(&f);
    assert_int_equal(r->missing_count, 0);
    td_round_free(r);
    fini(&f);
}

// Two ranks share each mini-batch; denominators are those of the whole.
static void test_round_of_two_ranks(void **state) {
    (void)state;
    struct fixture f;
    make(&f, TD_JOB_GRPO, NULL, 2);
    struct td_round *r = build(&f);
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct td_batch *b = batch_of(r, rank);
        assert_true(b->rows == ROWS / 2 && b->updates == 2);
        for (uint32_t row = 0; row < b->rows; row++) {
            uint64_t group = row / SAMPLES * 2 + rank; // half of {0, 1}, half of {2, 3}
            expect_row(&f, b, row, group, row % SAMPLES);
        }
        for (uint32_t u = 0; u < 2; u++) {
            double tokens = 0;
            for (uint32_t i = 0; i < 6; i++) {
                tokens += response_length(u * 2 + i / SAMPLES, i % SAMPLES);
            }
            assert_true(b->token_count[u] == tokens && b->sequence_count[u] == 6);
            assert_true(b->mini[2 * u] == u * 3 && b->mini[2 * u + 1] == u * 3 + 3);
        }
        td_batch_free(b);
    }
    td_round_free(r);
    fini(&f);
}

// More ranks than rows of a mini-batch: each row is somewhere, once; some ranks have none.
static void test_round_of_many_ranks(void **state) {
    (void)state;
    const char *overrides[] = {"actor_rollout_ref.actor.ppo_mini_batch_size=1", NULL};
    struct fixture f;
    make(&f, TD_JOB_GRPO, overrides, 5);
    struct td_round *r = build(&f);
    assert_int_equal(r->updates, GROUPS);
    uint32_t rows = 0, empty = 0;
    double of_update[GROUPS] = {0};
    for (uint32_t rank = 0; rank < 5; rank++) {
        struct td_batch *b = batch_of(r, rank);
        rows += b->rows;
        empty += b->rows == 0;
        for (uint32_t u = 0; u < GROUPS; u++) {
            of_update[u] += b->mini[2 * u + 1] - b->mini[2 * u];
            assert_true(b->sequence_count[u] == SAMPLES);
        }
        td_batch_free(b);
    }
    assert_true(rows == ROWS && empty > 0);
    for (uint32_t u = 0; u < GROUPS; u++) {
        assert_true(of_update[u] == SAMPLES);
    }
    td_round_free(r);
    fini(&f);
}

static double metric(const struct td_round *r, const char *name) {
    const struct td_metric *m = td_metrics_find(&r->metrics, name);
    if (!m) {
        fail_msg("no %s", name);
    }
    return m->value;
}

static void test_round_metrics(void **state) {
    (void)state;
    struct fixture f;
    make(&f, TD_JOB_GRPO, NULL, 1);
    struct td_round *r = build(&f);
    double reward = 0, length = 0, most = 0;
    for (uint64_t g = 0; g < GROUPS; g++) {
        for (uint32_t i = 0; i < SAMPLES; i++) {
            reward += reward_of(g, i);
            length += response_length(g, i);
            most = fmax(most, response_length(g, i));
        }
    }
    assert_true(metric(r, "critic/score/mean") == reward / ROWS);
    assert_true(metric(r, "critic/score/max") == 1 && metric(r, "critic/score/min") == 0);
    assert_true(metric(r, "response_length/mean") == length / ROWS);
    assert_true(metric(r, "response_length/max") == most);
    assert_true(metric(r, "response_length/clip_ratio") == 1.0 / SAMPLES);
    assert_true(metric(r, "training/epoch") == 1);
    assert_true(metric(r, "perf/total_num_tokens") == (double)r->tokens);
    td_round_free(r);
    fini(&f);
}

static void test_round_of_rows(void **state) {
    (void)state;
    for (uint32_t ranks = 1; ranks <= 2; ranks++) {
        struct fixture f;
        make(&f, TD_JOB_SFT, NULL, ranks);
        struct td_round *r = build(&f);
        assert_true(r->missing_count == 0 && r->updates == 1);
        double trained = 0;
        for (uint64_t g = 0; g < GROUPS; g++) {
            struct td_row row = prompt_of(&f, g);
            for (size_t t = 0; t < row.n; t++) {
                trained += row.loss_mask[t];
            }
        }
        for (uint32_t rank = 0; rank < ranks; rank++) {
            struct td_batch *b = batch_of(r, rank);
            assert_int_equal(b->rows, GROUPS / ranks);
            assert_true(b->token_count[0] == trained && b->sequence_count[0] == GROUPS);
            for (uint32_t i = 0; i < b->rows; i++) {
                struct td_row row = prompt_of(&f, rank * b->rows + i);
                uint32_t from = b->row_start[i];
                assert_int_equal(b->row_start[i + 1] - from, row.n);
                assert_memory_equal(b->ids + from, row.ids, row.n * sizeof *row.ids);
                assert_memory_equal(b->loss_mask + from, row.loss_mask, row.n);
                assert_true(b->advantage[i] == 0 && b->rollout_logp[from] == 0);
            }
            td_batch_free(b);
        }
        assert_null(td_metrics_find(&r->metrics, "critic/score/mean"));
        td_round_free(r);
        fini(&f);
    }
}

// ---- what is missing ----

static void expect_missing(const struct fixture *f, const uint32_t *want, size_t n,
                           const char *part) {
    struct td_round *r = build(f);
    assert_int_equal(r->missing_count, n);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(r->missing[i], want[i]);
    }
    if (!r->cause || !strstr(r->cause, part)) {
        fail_msg("'%s' lacks '%s'", r->cause ? r->cause : "", part);
    }
    assert_int_equal(r->fds[0], -1);
    td_round_free(r);
}

static void test_round_missing_positions(void **state) {
    (void)state;
    struct fixture f;
    make(&f, TD_JOB_GRPO, NULL, 1);
    Tandem__Journal__LogPosition *p1 = f.request.entries[1]->parts[0],
                                 *p3 = f.request.entries[3]->parts[0];
    char part[64];
    uint32_t crc = p1->crc;
    p1->crc ^= 1; // a flipped bit somewhere
    snprintf(part, sizeof part, "%08x", crc);
    expect_missing(&f, (const uint32_t[]){1}, 1, part); // found and
    snprintf(part, sizeof part, "%08x", crc ^ 1);
    expect_missing(&f, (const uint32_t[]){1}, 1, part); // expected
    expect_missing(&f, (const uint32_t[]){1}, 1, "partition 1 offset 0");
    p3->offset = 99; // never written, or trimmed
    expect_missing(&f, (const uint32_t[]){1, 3}, 2, "partition 1 offset 0");
    p1->crc = crc;
    expect_missing(&f, (const uint32_t[]){3}, 1, "offset 99");
    p3->partition = PARTITIONS;
    expect_missing(&f, (const uint32_t[]){3}, 1, "the log has 2 partitions");
    f.request.entries[3]->n_parts = 0;
    expect_missing(&f, (const uint32_t[]){3}, 1, "0 parts");
    f.request.entries[3]->n_parts = 1;
    fini(&f);
}

// A record that is whole but is not the one that was sealed.
static void test_round_foreign_records(void **state) {
    (void)state;
    struct fixture f;
    make(&f, TD_JOB_GRPO, NULL, 2);
    struct record_options bad[6];
    for (int i = 0; i < 6; i++) {
        bad[i] = options_of(2);
    }
    bad[0].job++;
    bad[1].log++;
    bad[2].epoch++;
    bad[3].index++;
    bad[4].parts = 2;
    bad[5].fewer_trained = true;
    for (int i = 0; i < 6; i++) {
        put_record(&f, 2, &bad[i]);
        expect_missing(&f, (const uint32_t[]){2}, 1, "another record");
    }
    struct record_options good = options_of(2);
    put_record(&f, 2, &good);
    f.request.entries[2]->samples++;
    expect_missing(&f, (const uint32_t[]){2}, 1, "another record");
    f.request.entries[2]->samples--;
    struct td_round *r = build(&f);
    assert_int_equal(r->missing_count, 0);
    td_round_free(r);
    // Bytes that are no record at all.
    struct append_wait w = {&f, f.request.entries[0]->parts[0]};
    struct td_log_append a = {.bytes = "junk", .n = 4, .done = on_appended, .user = &w};
    assert_int_equal(td_log_append(f.log, &a, NULL), TD_OK);
    wait_until(f.loop, &f.appended, f.appended + 1);
    expect_missing(&f, (const uint32_t[]){0}, 1, "no magic");
    fini(&f);
}

static void test_round_foreign_rows(void **state) {
    (void)state;
    struct fixture f;
    make(&f, TD_JOB_SFT, NULL, 1);
    f.request.entries[0]->row_digest ^= 1;
    f.request.entries[3]->row_digest ^= 1;
    expect_missing(&f, (const uint32_t[]){0, 3}, 2, "row (1, 0) has digest");
    fini(&f);
}

// trainer.rollout_data_dir: the samples as lines, in the order of the seal.
static void test_round_dump(void **state) {
    (void)state;
    struct fixture f;
    make(&f, TD_JOB_GRPO, NULL, 2);
    char *dir = tiny_job_path(&f.job, "samples"), *path = td_asprintf("%s/5.jsonl", dir);
    char *override = td_asprintf("trainer.rollout_data_dir=%s", dir);
    const char *overrides[] = {override, NULL};
    tiny_job_respec(&f.job, TD_JOB_GRPO, overrides);
    f.data->spec = f.job.spec;
    td_round_free(build(&f));
    struct td_buf text = {0};
    assert_int_equal(td_file_read(path, 1 << 20, &text, NULL), TD_OK);
    int lines = 0;
    for (size_t i = 0; i < text.len; i++) {
        lines += text.data[i] == '\n';
    }
    assert_int_equal(lines, ROWS);
    td_buf_fini(&text);
    td_free(override);
    td_free(path);
    td_free(dir);
    fini(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_of_records),
        cmocka_unit_test(test_round_when_the_log_does_not_answer),
        cmocka_unit_test(test_round_of_two_ranks),
        cmocka_unit_test(test_round_of_many_ranks),
        cmocka_unit_test(test_round_metrics),
        cmocka_unit_test(test_round_of_rows),
        cmocka_unit_test(test_round_missing_positions),
        cmocka_unit_test(test_round_foreign_records),
        cmocka_unit_test(test_round_foreign_rows),
        cmocka_unit_test(test_round_dump),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
