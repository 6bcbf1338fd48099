// The train controller's shell: reading the journal and the rollout log.
#include <string.h>

#include "controllers/common/record.h"
#include "controllers/train/shell_int.h"
#include "lib/base/mem.h"
#include "lib/base/trace.h"

enum { AGAIN_MS = 200 };

// ---- the journal ----

static void on_journal_record(void *user, const struct td_log_record *r) {
    struct td_trainc_event e = {
        .kind = TD_TC_JOURNAL_RECORD, .pos = {r->offset, r->crc}, .bytes = r->bytes, .n = r->n};
    td_train_shell_step(user, &e);
}

static void on_journal_gap(void *user, int64_t start) {
    struct td_trainc_event e = {.kind = TD_TC_JOURNAL_START, .offset = start};
    td_train_shell_step(user, &e);
}

static void on_log_error(void *user, const struct td_err *err) {
    struct td_train_shell *s = user;
    s->base.config.stop(s->base.config.user, err->msg);
}

// Asks again in a moment for what an outage of a log kept back; anything else is the journal's, and
// ends the process.
static void on_no_bounds(struct td_train_shell *s, bool *owed, const struct td_err *err) {
    if (!err->retriable) {
        on_log_error(s, err);
        return;
    }
    td_trace_warn("a log does not answer", "cause=\"%s\"", err->msg);
    *owed = true;
    td_timer_start(s->again, AGAIN_MS);
}

static void on_journal_bounds(void *user, enum td_rc rc, int64_t start, int64_t end,
                              const struct td_err *err) {
    static const struct td_log_reader_fns fns = {
        .record = on_journal_record, .gap = on_journal_gap, .error = on_log_error};
    struct td_train_shell *s = user;
    (void)end;
    if (s->base.stopping) {
        td_shell_idle(&s->base);
        return;
    }
    s->base.busy--;
    if (rc != TD_OK) {
        on_no_bounds(s, &s->journal_start_owed, err);
        return;
    }
    td_log_reader_close(s->journal_reader);
    s->journal_reader = td_log_read(s->journal, 0, start, &fns, s);
    struct td_trainc_event e = {.kind = TD_TC_JOURNAL_START, .offset = start};
    td_train_shell_step(s, &e);
}

void td_train_shell_read_journal(struct td_train_shell *s) {
    s->base.busy++;
    td_log_bounds(s->journal, 0, on_journal_bounds, s);
}

static void on_journal_end(void *user, enum td_rc rc, int64_t start, int64_t end,
                           const struct td_err *err) {
    struct td_train_shell *s = user;
    (void)start;
    if (s->base.stopping) {
        td_shell_idle(&s->base);
        return;
    }
    s->base.busy--;
    if (rc != TD_OK) {
        on_no_bounds(s, &s->journal_end_owed, err);
        return;
    }
    struct td_trainc_event e = {.kind = TD_TC_JOURNAL_END, .offset = end};
    td_train_shell_step(s, &e);
}

void td_train_shell_fetch_end(struct td_train_shell *s) {
    s->base.busy++;
    td_log_bounds(s->journal, 0, on_journal_end, s);
}

// ---- the rollout log ----

static void give_scanned(struct td_train_shell *s) {
    uint32_t n = s->base.config.rollouts ? td_log_partitions(s->base.config.rollouts) : 0;
    Tandem__Journal__LogPosition positions[TD_SHELL_PARTITIONS_MAX],
        *pointers[TD_SHELL_PARTITIONS_MAX];
    for (uint32_t p = 0; p < n; p++) {
        tandem__journal__log_position__init(&positions[p]);
        positions[p].partition = p;
        int64_t next = td_log_reader_next(s->tails[p].reader); // −1: nothing was there to read
        positions[p].offset = next >= 0 ? next : s->tails[p].start;
        pointers[p] = &positions[p];
    }
    struct td_trainc_event e = {.kind = TD_TC_ROLLOUT_SCANNED,
                                .seq = s->scan_seq,
                                .positions = (const Tandem__Journal__LogPosition *const *)pointers,
                                .position_count = n};
    td_train_shell_step(s, &e);
}

static void scanned(struct td_rollout_tail *t) {
    struct td_train_shell *s = t->shell;
    t->scan_until = INT64_MAX;
    if (--s->scans_open > 0) {
        return;
    }
    give_scanned(s);
}

static void check_scanned(struct td_rollout_tail *t) {
    if (t->scan_until >= 0 && t->scan_until != INT64_MAX && t->reader &&
        td_log_reader_next(t->reader) >= t->scan_until) {
        scanned(t);
    }
}

static void on_rollout_record(void *user, const struct td_log_record *r) {
    struct td_rollout_tail *t = user;
    struct td_train_shell *s = t->shell;
    struct td_seen_record seen = {.scan = t->scan,
                                  .log = td_log_id(s->base.config.rollouts),
                                  .partition = t->partition,
                                  .offset = r->offset,
                                  .crc = r->crc};
    struct td_rollout_record *record = NULL;
    struct td_err err;
    if (td_rollout_record_decode(r->bytes, r->n, &record, &err) == TD_OK) {
        seen.ok = true;
        seen.header = record->header;
        seen.samples = record->samples;
        td_rollout_record_sums(record, &seen.tokens, &seen.reward_sum);
    } else {
        td_trace_warn("rollout record unreadable", "partition=%u offset=%lld cause=\"%s\"",
                      t->partition, (long long)r->offset, err.msg);
    }
    struct td_trainc_event e = {.kind = TD_TC_ROLLOUT, .record = &seen};
    td_train_shell_step(s, &e);
    td_rollout_record_free(record);
    check_scanned(t);
}

// Only the position counts: a sealed record that cannot be read is missed when its round is.
static void on_rollout_damaged(void *user, int64_t offset, const struct td_err *err) {
    struct td_rollout_tail *t = user;
    td_trace_warn("rollout record damaged", "partition=%u offset=%lld cause=\"%s\"", t->partition,
                  (long long)offset, err->msg);
    struct td_seen_record seen = {.scan = t->scan,
                                  .log = td_log_id(t->shell->base.config.rollouts),
                                  .partition = t->partition,
                                  .offset = offset};
    struct td_trainc_event e = {.kind = TD_TC_ROLLOUT, .record = &seen};
    td_train_shell_step(t->shell, &e);
    check_scanned(t);
}

static void on_rollout_gap(void *user, int64_t start) {
    struct td_rollout_tail *t = user;
    td_trace_info("rollout log trimmed", "partition=%u start=%lld", t->partition, (long long)start);
    check_scanned(t);
}

static void on_rollout_error(void *user, const struct td_err *err) {
    struct td_rollout_tail *t = user;
    t->shell->base.config.failed(t->shell->base.config.user, err->msg);
}

struct scan_call {
    struct td_rollout_tail *tail;
    uint64_t scan; // the one it was asked for
};

static void on_rollout_end(void *user, enum td_rc rc, int64_t start, int64_t end,
                           const struct td_err *err) {
    struct scan_call *c = user;
    struct td_rollout_tail *t = c->tail;
    struct td_train_shell *s = t->shell;
    bool current = c->scan == t->scan;
    td_free(c);
    if (s->base.stopping) {
        td_shell_idle(&s->base);
        return;
    }
    s->base.busy--;
    if (rc != TD_OK && current && !err->retriable) {
        on_rollout_error(t, err);
    } else if (rc != TD_OK && current) {
        on_no_bounds(s, &t->end_owed, err);
    } else if (rc == TD_OK && current && t->scan_until < 0) {
        t->scan_until = end;
        t->start = start;
        if (end <= start || td_log_reader_next(t->reader) >= end) {
            scanned(t);
        }
    }
}

static void ask_rollout_end(struct td_rollout_tail *t) {
    struct scan_call *c = td_alloc(sizeof *c);
    *c = (struct scan_call){t, t->scan};
    t->shell->base.busy++;
    td_log_bounds(t->shell->base.config.rollouts, t->partition, on_rollout_end, c);
}

void td_train_shell_ask_again(void *user) {
    struct td_train_shell *s = user;
    if (s->journal_start_owed) {
        s->journal_start_owed = false;
        td_train_shell_read_journal(s);
    }
    if (s->journal_end_owed) {
        s->journal_end_owed = false;
        td_train_shell_fetch_end(s);
    }
    for (uint32_t p = 0; p < TD_SHELL_PARTITIONS_MAX; p++) {
        if (s->tails[p].end_owed) {
            s->tails[p].end_owed = false;
            ask_rollout_end(&s->tails[p]);
        }
    }
}

static int64_t from_of(const struct td_trainc_effect *x, uint32_t partition) {
    for (size_t i = 0; i < x->position_count; i++) {
        if (x->positions[i]->partition == partition) {
            return x->positions[i]->offset;
        }
    }
    return TD_LOG_FROM_START;
}

void td_train_shell_read_rollout(struct td_train_shell *s, const struct td_trainc_effect *x) {
    static const struct td_log_reader_fns fns = {.record = on_rollout_record,
                                                 .gap = on_rollout_gap,
                                                 .damaged = on_rollout_damaged,
                                                 .error = on_rollout_error};
    if (!s->base.config.rollouts) {
        return; // the machine asks only for jobs with a rollout log
    }
    s->scan_seq = x->seq;
    s->scans_open = td_log_partitions(s->base.config.rollouts);
    for (uint32_t p = 0; p < td_log_partitions(s->base.config.rollouts); p++) {
        struct td_rollout_tail *t = &s->tails[p];
        td_log_reader_close(t->reader);
        *t = (struct td_rollout_tail){.shell = s, .partition = p, .scan = x->seq, .scan_until = -1};
        t->reader = td_log_read(s->base.config.rollouts, p, from_of(x, p), &fns, t);
        ask_rollout_end(t);
    }
}

void td_train_shell_close_logs(struct td_train_shell *s) {
    td_log_reader_close(s->journal_reader);
    s->journal_reader = NULL;
    for (uint32_t p = 0; p < TD_SHELL_PARTITIONS_MAX; p++) {
        td_log_reader_close(s->tails[p].reader);
        s->tails[p].reader = NULL;
    }
}
