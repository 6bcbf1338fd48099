// A round's batches: see round.h.
#include "controllers/train/round.h"

#include <inttypes.h>
#include <stdio.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "controllers/common/proto.h"
#include "controllers/common/record.h"
#include "controllers/train/round_dump.h"
#include "lib/base/mem.h"
#include "lib/ipc/batch.h"
#include "lib/rl/loss.h"

struct source_row { // one sequence to be trained, borrowed from records or the data set
    const int32_t *ids;
    const uint8_t *mask;
    const float *logp; // NULL: none
    uint32_t n;
    uint64_t entry;
    double reward, advantage;
    bool clipped;
    uint32_t trained;
};

struct builder {
    const struct td_round_request *request;
    struct td_round *round;
    struct td_rollout_record **records; // entries: owned
    struct source_row *rows;
    size_t row_count, row_cap;
    size_t missing_cap;
};

static void add_missing(struct builder *b, uint32_t entry, const char *cause) {
    struct td_round *r = b->round;
    TD_GROW(r->missing, b->missing_cap, r->missing_count + 1);
    r->missing[r->missing_count++] = entry;
    if (!r->cause) {
        r->cause = td_strdup(cause);
    }
}

// ---- rows of the data set ----

static void add_data_row(struct builder *b, uint32_t i) {
    const td_entry *e = b->request->entries[i];
    struct td_row row;
    td_dataset_at(b->request->data->train, e->group->data_epoch, e->group->index, &row);
    if (e->row_digest && row.digest != e->row_digest) { // 0: the index speaks for all rows
        char cause[256];
        snprintf(cause, sizeof cause,
                 "row (%" PRIu64 ", %" PRIu64 ") has digest %016" PRIx64
                 ", the journal says %016" PRIx64,
                 e->group->data_epoch, e->group->index, row.digest, e->row_digest);
        add_missing(b, i, cause);
        return;
    }
    TD_GROW(b->rows, b->row_cap, b->row_count + 1);
    b->rows[b->row_count++] = (struct source_row){
        .ids = row.ids, .mask = row.loss_mask, .n = (uint32_t)row.n, .entry = i};
}

// ---- records of the rollout log ----

static bool record_fits(const struct builder *b, const td_entry *e,
                        const struct td_rollout_record *r) {
    const Tandem__Rollout__Header *h = r->header;
    uint64_t tokens;
    double rewards;
    td_rollout_record_sums(r, &tokens, &rewards);
    return h->job == b->request->job && h->log == e->log && h->parts == 1 &&
           h->data_epoch == e->group->data_epoch && h->index == e->group->index &&
           r->samples == e->samples && tokens == e->tokens && h->n_sequences == r->samples;
}

static void add_record_rows(struct builder *b, uint32_t i, const struct td_rollout_record *r) {
    for (size_t q = 0; q < r->header->n_sequences; q++) {
        const Tandem__Rollout__Sequence *s = r->header->sequences[q];
        TD_GROW(b->rows, b->row_cap, b->row_count + 1);
        b->rows[b->row_count++] = (struct source_row){.ids = r->tok + s->from,
                                                      .mask = r->loss_mask + s->from,
                                                      .logp = r->logp + s->from,
                                                      .n = (uint32_t)(s->to - s->from),
                                                      .entry = i,
                                                      .reward = r->reward[s->sample],
                                                      .clipped = r->header->status[s->sample] ==
                                                                 TANDEM__ROLLOUT__STATUS__LENGTH};
    }
}

// An error is one that passes: a log that does not answer says nothing about its records.
static enum td_rc add_record(struct builder *b, uint32_t i, struct td_err *out_err) {
    const td_entry *e = b->request->entries[i];
    struct td_buf bytes = {0};
    struct td_err err = {0};
    enum td_rc rc = e->n_parts == 1
                        ? TD_OK
                        : td_fail(&err, TD_EUNSUPPORTED, "%zu parts of a group", e->n_parts);
    const Tandem__Journal__LogPosition *p = e->n_parts ? e->parts[0] : NULL;
    if (rc == TD_OK && p->partition >= td_log_partitions(b->request->rollouts)) {
        rc = td_fail(&err, TD_ENOENT, "the log has %u partitions",
                     td_log_partitions(b->request->rollouts));
    }
    if (rc == TD_OK) {
        rc = td_log_read_one(b->request->rollouts, p->partition, p->offset, p->crc, &bytes, &err);
    }
    if (rc == TD_OK) {
        rc = td_rollout_record_decode(bytes.data, bytes.len, &b->records[i], &err);
    }
    if (rc == TD_OK && !record_fits(b, e, b->records[i])) {
        rc = td_fail(&err, TD_ECORRUPT, "it is another record than the one that was sealed");
    }
    if (rc == TD_OK) {
        add_record_rows(b, i, b->records[i]);
    } else if (!err.retriable) {
        char cause[TD_ERR_MAX + 96];
        snprintf(cause, sizeof cause, "rollout log partition %u offset %" PRId64 ": %s",
                 p ? p->partition : 0, p ? p->offset : -1, err.msg);
        add_missing(b, i, cause);
    }
    td_buf_fini(&bytes);
    if (rc == TD_OK || !err.retriable) {
        return TD_OK;
    }
    if (out_err) {
        *out_err = err;
    }
    return rc;
}

// ---- advantages and metrics ----

static void count_trained(struct builder *b) {
    for (size_t i = 0; i < b->row_count; i++) {
        struct source_row *r = &b->rows[i];
        for (uint32_t t = 0; t < r->n; t++) {
            r->trained += r->mask[t];
        }
        b->round->tokens += r->n;
    }
}

static void fill_advantages(struct builder *b) {
    double *score = td_alloc_array(b->row_count, sizeof *score);
    double *advantage = td_alloc_array(b->row_count, sizeof *advantage);
    uint64_t *group = td_alloc_array(b->row_count, sizeof *group);
    for (size_t i = 0; i < b->row_count; i++) {
        score[i] = b->rows[i].reward;
        group[i] = b->rows[i].entry;
    }
    td_grpo_advantage(score, group, b->row_count,
                      b->request->data->spec->algorithm.norm_adv_by_std_in_grpo, advantage);
    for (size_t i = 0; i < b->row_count; i++) {
        b->rows[i].advantage = advantage[i];
    }
    td_free(score);
    td_free(advantage);
    td_free(group);
}

static void add_stats(struct td_metrics *m, const char *name, const double *x, size_t n) {
    double sum = 0, most = x[0], least = x[0];
    for (size_t i = 0; i < n; i++) {
        sum += x[i];
        most = fmax(most, x[i]);
        least = fmin(least, x[i]);
    }
    char full[TD_METRIC_NAME_MAX];
    snprintf(full, sizeof full, "%s/mean", name);
    td_metrics_add(m, full, sum / (double)n, TD_FOLD_LAST);
    snprintf(full, sizeof full, "%s/max", name);
    td_metrics_add(m, full, most, TD_FOLD_LAST);
    snprintf(full, sizeof full, "%s/min", name);
    td_metrics_add(m, full, least, TD_FOLD_LAST);
}

static void add_metrics(struct builder *b) {
    struct td_metrics *m = &b->round->metrics;
    size_t n = b->row_count;
    const td_entry *last = b->request->entries[b->request->entry_count - 1];
    td_metrics_add(m, "training/epoch", (double)last->group->data_epoch, TD_FOLD_LAST);
    td_metrics_add(m, "perf/total_num_tokens", (double)b->round->tokens, TD_FOLD_LAST);
    if (!b->request->rollouts) {
        return;
    }
    double *x = td_alloc_array(n, sizeof *x);
    double clipped = 0;
    for (size_t i = 0; i < n; i++) {
        x[i] = b->rows[i].reward;
        clipped += b->rows[i].clipped;
    }
    add_stats(m, "critic/score", x, n);
    add_stats(m, "critic/rewards", x, n);
    for (size_t i = 0; i < n; i++) {
        x[i] = b->rows[i].advantage;
    }
    add_stats(m, "critic/advantages", x, n);
    for (size_t i = 0; i < n; i++) {
        x[i] = b->rows[i].trained;
    }
    add_stats(m, "response_length", x, n);
    td_metrics_add(m, "response_length/clip_ratio", clipped / (double)n, TD_FOLD_LAST);
    for (size_t i = 0; i < n; i++) {
        x[i] = b->rows[i].n - b->rows[i].trained;
    }
    add_stats(m, "prompt_length", x, n);
    td_free(x);
}

// ---- layout ----

// Mini-batches are consecutive slices of entries; ranks share each in consecutive slices of rows.
struct slice {
    size_t first, end;
};

static struct slice share_of(struct slice mini, uint32_t rank, uint32_t ranks) {
    size_t n = mini.end - mini.first;
    return (struct slice){mini.first + n * rank / ranks, mini.first + n * (rank + 1) / ranks};
}

static size_t make_minis(const struct builder *b, struct slice *minis) {
    const struct td_job_spec *spec = b->request->data->spec;
    size_t per = spec->tandem.kind == TD_JOB_SFT ? b->request->entry_count
                                                 : (size_t)spec->actor.ppo_mini_batch_size;
    size_t count = 0, row = 0;
    for (size_t entry = 0; entry < b->request->entry_count; entry += per) {
        struct slice *m = &minis[count++];
        m->first = row;
        while (row < b->row_count && b->rows[row].entry < entry + per) {
            row++;
        }
        m->end = row;
    }
    return count;
}

struct layout { // arrays of one rank's batch
    struct td_batch batch;
    uint32_t *row_start, *mini;
    int32_t *ids;
    uint8_t *mask;
    float *logp;
    double *advantage, *token_count, *sequence_count;
};

static void layout_fini(struct layout *l) {
    td_free(l->row_start);
    td_free(l->mini);
    td_free(l->ids);
    td_free(l->mask);
    td_free(l->logp);
    td_free(l->advantage);
    td_free(l->token_count);
    td_free(l->sequence_count);
}

static void layout_row(struct layout *l, const struct source_row *r) {
    struct td_batch *b = &l->batch;
    memcpy(l->ids + b->tokens, r->ids, r->n * sizeof *l->ids);
    memcpy(l->mask + b->tokens, r->mask, r->n);
    for (uint32_t t = 0; r->logp && t < r->n; t++) {
        l->logp[b->tokens + t] = r->mask[t] ? r->logp[t] : 0;
    }
    l->advantage[b->rows] = r->advantage;
    b->tokens += r->n;
    l->row_start[++b->rows] = b->tokens;
}

static void layout_counts(struct layout *l, const struct builder *b, struct slice mini,
                          uint32_t update) {
    for (size_t i = mini.first; i < mini.end; i++) {
        l->token_count[update] += b->rows[i].trained;
        l->sequence_count[update] += b->rows[i].trained > 0;
    }
}

static void layout_rank(struct layout *l, const struct builder *b, const struct slice *minis,
                        size_t count, uint32_t rank) {
    const struct td_job_spec *spec = b->request->data->spec;
    size_t epochs = spec->tandem.kind == TD_JOB_SFT ? 1 : (size_t)spec->actor.ppo_epochs;
    size_t updates = count * epochs;
    *l = (struct layout){.row_start = td_alloc_array(b->row_count + 1, sizeof(uint32_t)),
                         .mini = td_alloc_array(2 * updates, sizeof(uint32_t)),
                         .ids = td_alloc_array(b->round->tokens, sizeof(int32_t)),
                         .mask = td_alloc_array(b->round->tokens, 1),
                         .logp = td_alloc_array(b->round->tokens, sizeof(float)),
                         .advantage = td_alloc_array(b->row_count, sizeof(double)),
                         .token_count = td_alloc_array(updates, sizeof(double)),
                         .sequence_count = td_alloc_array(updates, sizeof(double))};
    for (size_t m = 0; m < count; m++) {
        struct slice share = share_of(minis[m], rank, b->request->ranks);
        uint32_t first = l->batch.rows;
        for (size_t i = share.first; i < share.end; i++) {
            layout_row(l, &b->rows[i]);
        }
        for (size_t epoch = 0; epoch < epochs; epoch++) {
            size_t u = epoch * count + m;
            l->mini[2 * u] = first;
            l->mini[2 * u + 1] = l->batch.rows;
            layout_counts(l, b, minis[m], (uint32_t)u);
        }
    }
    l->batch.updates = (uint32_t)updates;
    l->batch.row_start = l->row_start;
    l->batch.ids = l->ids;
    l->batch.loss_mask = l->mask;
    l->batch.rollout_logp = l->logp;
    l->batch.advantage = l->advantage;
    l->batch.mini = l->mini;
    l->batch.token_count = l->token_count;
    l->batch.sequence_count = l->sequence_count;
}

static enum td_rc write_batches(struct builder *b, struct td_err *err) {
    struct slice *minis = td_alloc_array(b->request->entry_count, sizeof *minis);
    size_t count = make_minis(b, minis);
    enum td_rc rc = TD_OK;
    for (uint32_t rank = 0; rc == TD_OK && rank < b->request->ranks; rank++) {
        struct layout l;
        layout_rank(&l, b, minis, count, rank);
        b->round->updates = l.batch.updates;
        rc = td_batch_write(&l.batch, &b->round->fds[rank], err);
        layout_fini(&l);
    }
    td_free(minis);
    return rc;
}

static enum td_rc dump_rows(const struct builder *b, struct td_err *err) {
    const char *dir = b->request->data->spec->trainer.rollout_data_dir;
    if (!dir || !b->request->rollouts) {
        return TD_OK;
    }
    struct td_round_dump *d = td_round_dump_new(dir, b->request->data, b->request->round);
    for (size_t i = 0; i < b->row_count; i++) {
        const struct source_row *r = &b->rows[i];
        const Tandem__Journal__Group *g = b->request->entries[r->entry]->group;
        const struct td_dump_row row = {r->ids, r->mask, r->n, g->data_epoch, g->index, r->reward};
        td_round_dump_add(d, &row);
    }
    enum td_rc rc = td_round_dump_write(d, err);
    td_round_dump_free(d);
    return rc;
}

enum td_rc td_round_build(const struct td_round_request *request, struct td_round **out,
                          struct td_err *err) {
    struct builder b = {.request = request, .round = td_alloc(sizeof *b.round)};
    struct td_round *r = b.round;
    r->job = request->job;
    r->round = request->round;
    r->ref = request->ref;
    r->ranks = request->ranks;
    for (uint32_t i = 0; i < TD_TRAIN_RANKS_MAX; i++) {
        r->fds[i] = -1;
    }
    b.records = td_alloc_array(request->entry_count + 1, sizeof *b.records);
    enum td_rc rc = TD_OK;
    for (uint32_t i = 0; rc == TD_OK && i < request->entry_count; i++) {
        if (request->rollouts) {
            rc = add_record(&b, i, err);
        } else {
            add_data_row(&b, i);
        }
    }
    if (rc == TD_OK && r->missing_count == 0) {
        count_trained(&b);
        if (request->rollouts) {
            fill_advantages(&b);
        }
        add_metrics(&b);
        rc = write_batches(&b, err);
        rc = rc == TD_OK ? dump_rows(&b, err) : rc;
    }
    for (size_t i = 0; i < request->entry_count; i++) {
        td_rollout_record_free(b.records[i]);
    }
    td_free(b.records);
    td_free(b.rows);
    if (rc != TD_OK) {
        td_round_free(r);
        return rc;
    }
    *out = r;
    return TD_OK;
}

void td_round_free(struct td_round *r) {
    if (!r) {
        return;
    }
    for (uint32_t i = 0; i < TD_TRAIN_RANKS_MAX; i++) {
        if (r->fds[i] >= 0) {
            close(r->fds[i]);
        }
    }
    td_free(r->missing);
    td_free(r->cause);
    td_free(r);
}

void td_round_request_fini(struct td_round_request *request) {
    for (size_t i = 0; i < request->entry_count; i++) {
        td_proto_free(request->entries[i]);
    }
    td_free(request->entries);
    *request = (struct td_round_request){0};
}
