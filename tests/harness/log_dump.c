// log_dump journal|rollouts FOLDER|BROKERS TOPIC: what is in a file log or a Kafka log, a line of
// JSON for each record. For the harness; it only reads, also while a run writes. Journal: every
// record, with apply's verdict. Exit status 1 and a line on stderr: the log is damaged or cannot be
// read.
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "controllers/common/record.h"
#include "lib/io/logs.h"
#include "lib/journal/follow.h"

enum { TIMEOUT_MS = 20000 };

struct dump {
    struct td_loop *loop;
    struct td_log *log;
    struct td_log_reader *reader;
    uint32_t partition;
    bool journal;
    int64_t end;
    struct td_follower follower;
    int status;
};

static void fail(struct dump *d, const char *cause) {
    fprintf(stderr, "log_dump: %s\n", cause);
    d->status = 1;
    td_loop_stop(d->loop);
}

// ---- journal ----

// Of a job with rollouts: [data epoch, index, partition, offset] of each group.
static void print_entries(Tandem__Journal__Entry **entries, size_t n) {
    printf(",\"count\":%zu,\"entries\":[", n);
    for (size_t i = 0; i < n && entries[i]->n_parts; i++) {
        const Tandem__Journal__Entry *e = entries[i];
        printf("%s[%" PRIu64 ",%" PRIu64 ",%u,%" PRId64 "]", i ? "," : "", e->group->data_epoch,
               e->group->index, e->parts[0]->partition, e->parts[0]->offset);
    }
    printf("]");
}

static void print_commit(const Tandem__Journal__Commit *c) {
    const struct td_version v = td_version_of(c->version);
    printf(",\"lineage\":%" PRIu64 ",\"step\":%" PRIu64, v.lineage, v.step);
    for (size_t i = 0; i < c->n_roles; i++) {
        printf(",\"weights\":\"%016" PRIx64 "\",\"state\":\"%016" PRIx64 "\"",
               c->roles[i]->weight_digest, c->roles[i]->state_digest);
    }
}

// 0: it belongs to no job.
static uint64_t job_of(const td_record *r) {
    switch (r->body_case) {
    case TANDEM__JOURNAL__RECORD__BODY_JOB:
        return r->job->job;
    case TANDEM__JOURNAL__RECORD__BODY_GANG:
        return r->gang->n_gangs ? r->gang->gangs[0]->job : 0;
    case TANDEM__JOURNAL__RECORD__BODY_RESTORE:
        return r->restore->job;
    case TANDEM__JOURNAL__RECORD__BODY_DRAW:
        return r->draw->job;
    case TANDEM__JOURNAL__RECORD__BODY_DROP:
        return r->drop->job;
    case TANDEM__JOURNAL__RECORD__BODY_SEAL:
        return r->seal->job;
    case TANDEM__JOURNAL__RECORD__BODY_RESEAL:
        return r->reseal->job;
    case TANDEM__JOURNAL__RECORD__BODY_COMMIT:
        return r->commit->job;
    case TANDEM__JOURNAL__RECORD__BODY_CHECKPOINT:
        return r->checkpoint->job;
    case TANDEM__JOURNAL__RECORD__BODY_FORK:
        return r->fork->job;
    case TANDEM__JOURNAL__RECORD__BODY_END:
        return r->end->job;
    default:
        return 0;
    }
}

static void print_body(const td_record *r) {
    switch (r->body_case) {
    case TANDEM__JOURNAL__RECORD__BODY_GANG:
        printf(",\"generation\":%" PRIu64, r->gang->generation);
        break;
    case TANDEM__JOURNAL__RECORD__BODY_DRAW:
        printf(",\"epoch\":%" PRIu64 ",\"from\":%" PRIu64 ",\"to\":%" PRIu64, r->draw->data_epoch,
               r->draw->from, r->draw->to);
        break;
    case TANDEM__JOURNAL__RECORD__BODY_SEAL:
        printf(",\"round\":%" PRIu64, r->seal->round);
        print_entries(r->seal->entries, r->seal->n_entries);
        break;
    case TANDEM__JOURNAL__RECORD__BODY_RESEAL:
        printf(",\"round\":%" PRIu64, r->reseal->round);
        print_entries(r->reseal->entries, r->reseal->n_entries);
        break;
    case TANDEM__JOURNAL__RECORD__BODY_COMMIT:
        print_commit(r->commit);
        break;
    case TANDEM__JOURNAL__RECORD__BODY_CHECKPOINT:
        printf(",\"step\":%" PRIu64 ",\"folder\":\"%s\"",
               td_version_of(r->checkpoint->version).step, r->checkpoint->folder);
        break;
    case TANDEM__JOURNAL__RECORD__BODY_END:
        printf(",\"outcome\":%d", (int)r->end->outcome);
        break;
    default:
        break;
    }
}

static void take_journal(struct dump *d, const struct td_log_record *r) {
    enum td_verdict verdict = TD_IGNORED;
    enum td_follow_want want = td_follower_record(&d->follower, (struct td_pos){r->offset, r->crc},
                                                  r->bytes, r->n, &verdict);
    if (want == TD_WANT_STOP) {
        fail(d, d->follower.cause);
        return;
    }
    td_record *record = NULL;
    struct td_err err;
    if (td_record_decode(r->bytes, r->n, &record, &err) != TD_OK) {
        fail(d, err.msg);
        return;
    }
    static const char *const verdicts[] = {"accepted", "rejected", "ignored", "rebase", "damaged"};
    printf("{\"offset\":%" PRId64 ",\"name\":\"%s\",\"verdict\":\"%s\",\"term\":%" PRIu64,
           r->offset, td_record_name(record), verdicts[verdict], record->term);
    if (job_of(record)) {
        printf(",\"job\":%" PRIu64, job_of(record));
    }
    print_body(record);
    printf("}\n");
    tandem__journal__record__free_unpacked(record, NULL);
}

// ---- rollouts ----

static uint32_t column_crc(const Tandem__Rollout__Header *h, const char *name) {
    for (size_t i = 0; i < h->n_columns; i++) {
        if (strcmp(h->columns[i]->name, name) == 0) {
            return h->columns[i]->crc;
        }
    }
    return 0;
}

static void take_rollout(struct dump *d, const struct td_log_record *r) {
    struct td_rollout_record *record = NULL;
    struct td_err err;
    if (td_rollout_record_decode(r->bytes, r->n, &record, &err) != TD_OK) {
        fail(d, err.msg);
        return;
    }
    const Tandem__Rollout__Header *h = record->header;
    uint64_t trainable = 0;
    double reward = 0;
    td_rollout_record_sums(record, &trainable, &reward);
    printf("{\"partition\":%u,\"offset\":%" PRId64 ",\"crc\":%u,\"epoch\":%" PRIu64
           ",\"index\":%" PRIu64 ",\"step\":%" PRIu64 ",\"term\":%" PRIu64 ",\"attempt\":%" PRIu64
           ",\"tokens\":%" PRIu64 ",\"reward\":%.17g,\"tok\":%u,\"logp\":%u}\n",
           d->partition, r->offset, r->crc, h->data_epoch, h->index,
           h->n_models ? h->models[0]->step : 0, h->attempt_term, h->attempt, trainable, reward,
           column_crc(h, "tok"), column_crc(h, "logp"));
    td_rollout_record_free(record);
}

// ---- reading one partition to its end ----

static void on_record(void *user, const struct td_log_record *r) {
    struct dump *d = user;
    if (d->journal) {
        take_journal(d, r);
    } else {
        take_rollout(d, r);
    }
    if (r->offset + 1 >= d->end) {
        td_loop_stop(d->loop);
    }
}

static void on_gap(void *user, int64_t start) {
    struct dump *d = user;
    (void)td_follower_start(&d->follower, start);
}

static void on_damaged(void *user, int64_t offset, const struct td_err *err) {
    struct dump *d = user;
    (void)offset;
    fail(d, err->msg);
}

static void on_error(void *user, const struct td_err *err) {
    fail(user, err->msg);
}

static void on_bounds(void *user, enum td_rc rc, int64_t start, int64_t end,
                      const struct td_err *err) {
    static const struct td_log_reader_fns fns = {on_record, on_gap, on_damaged, on_error};
    struct dump *d = user;
    if (rc != TD_OK) {
        fail(d, err->msg);
        return;
    }
    (void)td_follower_start(&d->follower, start);
    d->end = end;
    if (end > start) {
        d->reader = td_log_read(d->log, d->partition, start, &fns, d);
    } else {
        td_loop_stop(d->loop);
    }
}

static void on_closed(void *user) {
    td_loop_stop(user);
}

static void dump_all(struct dump *d, const struct td_logs *logs, const char *name) {
    struct td_err err;
    if (td_logs_open(d->loop, logs, name, 0, &d->log, &err) != TD_OK) {
        fail(d, err.msg);
        return;
    }
    uint32_t partitions = td_log_partitions(d->log);
    for (; d->status == 0 && d->partition < partitions; d->partition++) {
        td_log_bounds(d->log, d->partition, on_bounds, d);
        td_loop_run(d->loop);
        td_log_reader_close(d->reader);
        d->reader = NULL;
    }
    td_log_close(d->log, on_closed, d->loop);
    td_loop_run(d->loop);
}

int main(int argc, char **argv) {
    bool journal = argc > 1 && strcmp(argv[1], "journal") == 0;
    bool kafka = argc == 4;
    char *where = argc == 3 || kafka ? argv[argc - 1] : "";
    char *cut = strrchr(where, kafka ? '.' : '/'); // FOLDER/NAME, PREFIX.NAME
    if (!cut || (!journal && strcmp(argv[1], "rollouts") != 0)) {
        fprintf(stderr, "usage: log_dump journal|rollouts FOLDER|BROKERS TOPIC\n");
        return 2;
    }
    *cut = '\0';
    struct td_logs logs = {.kind = kafka ? TD_LOGS_KAFKA : TD_LOGS_FILE,
                           .folder = where,
                           .fsync = true,
                           .brokers = argv[2],
                           .prefix = where,
                           .timeout_ms = TIMEOUT_MS};
    struct dump d = {.journal = journal};
    struct td_err err;
    if (td_loop_new(&d.loop, &err) != TD_OK) {
        fprintf(stderr, "log_dump: %s\n", err.msg);
        return 1;
    }
    td_follower_init(&d.follower);
    dump_all(&d, &logs, cut + 1);
    td_follower_fini(&d.follower);
    td_loop_free(d.loop);
    return d.status;
}
