// The train member of bench_control: see control.h. It reports on every change, as the real one,
// but tells of arrivals of some milliseconds at once, to leave the processor to the coordinator.
#include "bench/control.h"
#include "controllers/common/proto.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"

enum { TELL_MS = 20 };

static const struct td_job_state *job_of(const struct trainer *t) {
    return td_journal_job(&t->follow.state, t->member.serves);
}

static uint64_t digest_of(uint64_t step) {
    return td_mix64(step + 1);
}

// What was sealed, or dropped, has arrived for nothing.
static void forget_closed(struct trainer *t, const struct td_job_state *j) {
    size_t kept = 0;
    for (size_t i = 0; i < t->arrived_count; i++) {
        if (td_job_is_open(j, td_group_of(t->arrived[i]->entry->group))) {
            t->arrived[kept++] = t->arrived[i];
        } else {
            td_proto_free(t->arrived[i]);
        }
    }
    t->arrived_count = kept;
}

static void report(struct trainer *t) {
    const struct td_job_state *j = job_of(t);
    const struct td_gang_state *g = j ? td_job_gang(j, "actor") : NULL;
    struct control *c = t->member.control;
    Tandem__Sync__Report r = TANDEM__SYNC__REPORT__INIT;
    Tandem__Sync__TrainReport train = TANDEM__SYNC__TRAIN_REPORT__INIT;
    Tandem__Sync__Finished finished = TANDEM__SYNC__FINISHED__INIT;
    Tandem__Journal__Version version = TANDEM__JOURNAL__VERSION__INIT;
    Tandem__Journal__Position ref = TANDEM__JOURNAL__POSITION__INIT;
    t->tells = false;
    if (!g || g->spec->members[0] != t->member.id || !td_follower_ready(&t->follow)) {
        member_idle_report(&t->member, TANDEM__SYNC__MEMBER_KIND__TRAIN);
        return;
    }
    r.member = t->member.id;
    r.kind = TANDEM__SYNC__MEMBER_KIND__TRAIN;
    r.journal_id = t->follow.state.journal_id;
    r.term = t->follow.state.term;
    r.build = "bench";
    r.device = "cpu";
    r.workers = r.workers_ready = c->workers;
    r.index = (Tandem__Journal__DataIndex *)&control_index;
    r.train = &train;
    r.report = t->member.idle_reports + ++t->reports;
    train.job = j->job->job;
    train.gang = g->spec->gang;
    train.generation = g->generation;
    train.lineage = version.lineage = j->lineage;
    train.loaded = g->has_base;
    train.scanned = true;
    train.metrics_known = true;
    train.has_metrics = j->has_head;
    train.metrics_step = j->has_head ? j->head.step : 0;
    train.saved = true;
    train.waits_for = "";
    train.n_arrived = t->arrived_count;
    train.arrived = t->arrived;
    char *weights[] = {"127.0.0.1:65535"};
    train.n_weights = 1;
    train.weights = weights;
    uint64_t next = j->has_head ? j->head.step + 1 : 0;
    const struct td_round_state *round = td_job_round(j, next);
    if (g->has_base && (next == 0 || (round && t->round == next && t->trained))) {
        train.finished = &finished;
        finished.version = &version;
        version.step = next;
        finished.weight_digest = finished.state_digest = digest_of(next);
        if (next > 0) {
            ref.offset = round->ref.offset;
            ref.crc = round->ref.crc;
            finished.ref = &ref;
        }
        if (c->finished != next) {
            c->finished = next;
            c->finished_ns = td_clock_ns();
        }
    }
    member_report(&t->member, &r);
}

static void on_trained(void *user) {
    struct trainer *t = user;
    t->trained = true;
    report(t);
}

static void drive(struct trainer *t) {
    const struct td_job_state *j = job_of(t);
    if (!j || !td_follower_ready(&t->follow)) {
        return;
    }
    forget_closed(t, j);
    uint64_t next = j->has_head ? j->head.step + 1 : 0;
    if (next > 0 && td_job_round(j, next) && t->round != next) {
        t->round = next;
        t->trained = false;
        td_timer_start(t->training, t->member.control->train_ms);
    }
    report(t);
}

// ---- the journal ----

static void read_journal(struct trainer *t);

static void on_end(void *user, enum td_rc rc, int64_t start, int64_t end,
                   const struct td_err *err) {
    struct trainer *t = user;
    (void)start;
    if (rc != TD_OK) {
        control_fail(err->msg);
    }
    td_follower_end(&t->follow, end);
    drive(t);
}

static void want(struct trainer *t, enum td_follow_want what) {
    if (what == TD_WANT_END) {
        td_log_bounds(t->journal, 0, on_end, t);
    } else if (what == TD_WANT_RESET) {
        read_journal(t);
    } else if (what == TD_WANT_STOP) {
        control_fail(t->follow.cause);
    }
}

static void on_record(void *user, const struct td_log_record *r) {
    struct trainer *t = user;
    struct td_pos pos = {r->offset, r->crc};
    want(t, td_follower_record(&t->follow, pos, r->bytes, r->n, NULL));
    drive(t);
}

static void on_gap(void *user, int64_t start) {
    struct trainer *t = user;
    want(t, td_follower_start(&t->follow, start));
}

static void on_error(void *user, const struct td_err *err) {
    (void)user;
    control_fail(err->msg);
}

static void on_start(void *user, enum td_rc rc, int64_t start, int64_t end,
                     const struct td_err *err) {
    static const struct td_log_reader_fns fns = {
        .record = on_record, .gap = on_gap, .error = on_error};
    struct trainer *t = user;
    (void)end;
    if (rc != TD_OK) {
        control_fail(err->msg);
    }
    td_log_reader_close(t->reader);
    t->reader = td_log_read(t->journal, 0, start, &fns, t);
    want(t, td_follower_start(&t->follow, start));
}

static void read_journal(struct trainer *t) {
    td_log_bounds(t->journal, 0, on_start, t);
}

// ---- the member ----

void trainer_arrived(struct trainer *t, struct td_group group, uint64_t step) {
    const struct td_job_state *j = job_of(t);
    if (!j) {
        return;
    }
    Tandem__Sync__Arrived *a = td_alloc(sizeof *a);
    td_entry *e = td_alloc(sizeof *e);
    Tandem__Journal__LogPosition *at = td_alloc(sizeof *at);
    tandem__sync__arrived__init(a);
    tandem__journal__entry__init(e);
    tandem__journal__log_position__init(at);
    at->offset = (int64_t)t->arrivals++;
    at->crc = (uint32_t)td_mix64(t->arrivals);
    a->entry = e;
    e->group = td_proto_group(group);
    e->log = j->job->rollout_log;
    e->n_parts = 1;
    e->parts = td_alloc_array(1, sizeof *e->parts);
    e->parts[0] = at;
    e->min_step = e->max_step = step;
    e->samples = SAMPLES;
    e->tokens = SAMPLES * 500;
    TD_GROW(t->arrived, t->arrived_cap, t->arrived_count + 1);
    t->arrived[t->arrived_count++] = a;
    if (!t->tells) { // what arrives until then is told with it
        t->tells = true;
        td_timer_start(t->telling, TELL_MS);
    }
}

static void on_telling(void *user) {
    report(user);
}

static void on_orders(void *user, const uint8_t *bytes, size_t n) {
    struct trainer *t = user;
    Tandem__Sync__Orders *o = tandem__sync__orders__unpack(NULL, n, bytes);
    if (!o) {
        control_fail("orders that are none");
        return;
    }
    member_orders(&t->member, o, t->reports > 0);
    if (o->serve) {
        t->member.serves = o->serve->job;
    }
    tandem__sync__orders__free_unpacked(o, NULL);
}

static void on_timer(void *user) {
    struct trainer *t = user;
    report(t);
    td_timer_start(t->member.timer, REPORT_MS);
}

void trainer_start(struct trainer *t, const char *address, const char *log_folder) {
    struct td_logs logs = {.kind = TD_LOGS_FILE, .folder = log_folder, .fsync = true};
    struct td_err err;
    if (td_logs_open(t->member.control->loop, &logs, "journal", 0, &t->journal, &err) != TD_OK) {
        control_fail(err.msg);
    }
    t->training = td_timer_new(t->member.control->loop, on_trained, t);
    t->telling = td_timer_new(t->member.control->loop, on_telling, t);
    td_follower_init(&t->follow);
    member_start(&t->member, address, on_orders, on_timer, t);
    read_journal(t);
}
