// See world.h.
#include "tests/unit/train/world.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "controllers/common/proto.h"
#include "lib/base/check.h"
#include "lib/base/mem.h"
#include "lib/base/rng.h"

static bool plan_of(void *user, const void *spec, size_t n, struct td_train_plan *out) {
    struct world *w = user;
    (void)spec;
    *out = w->plan;
    return n > 0;
}

// ---- events and effects ----

void world_event(struct world *w, const struct td_trainc_event *e) {
    struct td_trainc_effects out = {0};
    td_trainc_step(w->x, e, ++w->now_ms, &out);
    for (size_t i = 0; i < out.count; i++) {
        td_assert_op(w->queue_count, <, WORLD_QUEUE_MAX);
        w->queue[w->queue_count++] = out.items[i];
    }
    td_free(out.items);
}

void world_tick(struct world *w) {
    struct td_trainc_event e = {.kind = TD_TC_TICK};
    world_event(w, &e);
}

static void free_effect(struct td_trainc_effect *e) {
    struct td_trainc_effects one = {td_memdup(e, sizeof *e), 1, 1};
    td_trainc_effects_fini(&one);
}

uint64_t world_weight_digest(uint64_t state) {
    return td_hash_u64(state, 1);
}

uint64_t world_state_digest(uint64_t state) {
    return td_hash_u64(state, 2);
}

static uint64_t updated(uint64_t state, uint64_t batch, uint32_t k, bool salted) {
    return td_hash_u64(td_hash_u64(state, batch), k + (salted ? 1000 : 0));
}

uint64_t world_expected(const struct world *w, uint64_t step) {
    uint64_t state = WORLD_INITIAL_STATE, head = world_job(w)->head.step;
    for (uint64_t r = 1; r <= step; r++) {
        uint64_t batch = r <= head ? w->batches[r] : world_batch_of(td_job_round(world_job(w), r));
        for (uint32_t k = 1; k <= WORLD_UPDATES; k++) {
            state = updated(state, batch, k, false);
        }
    }
    return state;
}

static struct world_folder *find_folder(struct world *w, const char *name) {
    for (size_t i = 0; i < w->folder_count; i++) {
        if (w->folders[i].there && strcmp(w->folders[i].name, name) == 0) {
            return &w->folders[i];
        }
    }
    return NULL;
}

static bool key_is(const struct world_worker *v, const struct td_trainc_effect *e) {
    return v->generation == e->generation && v->prepped && td_pos_equal(v->ref, e->ref);
}

static enum td_rc do_load(struct world *w, struct world_worker *v,
                          const struct td_trainc_effect *e) {
    if (e->generation <= v->generation) {
        return TD_ECONFLICT;
    }
    const struct world_folder *f = e->text[0] ? find_folder(w, e->text) : NULL;
    if (e->text[0] && !f) {
        return TD_ENOENT;
    }
    v->generation = e->generation;
    v->version = e->version;
    v->prepped = v->finished = false;
    v->applied = 0;
    v->state = f ? f->state + f->corrupt : WORLD_INITIAL_STATE;
    return TD_OK;
}

// What a worker does with a command, by rule A4.
static enum td_rc obey(struct world *w, struct world_worker *v, const struct td_trainc_effect *e) {
    switch (e->kind) {
    case TD_TC_SETUP:
        v->set_up = true;
        v->job = e->job;
        return TD_OK;
    case TD_TC_LOAD:
        return do_load(w, v, e);
    case TD_TC_PREP:
        if (v->generation != e->generation || v->applied || v->version.step + 1 != e->round) {
            return TD_ECONFLICT;
        }
        v->prepped = true;
        v->ref = e->ref;
        v->next = v->state;
        v->batch = world_batch_of(td_job_round(world_job(w), e->round));
        return TD_OK;
    case TD_TC_STEP:
        if (!key_is(v, e) || e->k != v->applied + 1) {
            return TD_ECONFLICT;
        }
        v->stepping = e->seq;
        return TD_OK;
    case TD_TC_FINISH:
        if (!key_is(v, e) || v->applied != WORLD_UPDATES) {
            return TD_ECONFLICT;
        }
        v->state = v->next;
        v->version = (struct td_version){e->version.lineage, v->version.step + 1};
        v->prepped = false;
        v->applied = 0;
        v->finished = true;
        v->finished_ref = v->ref;
        return TD_OK;
    default:
        return TD_OK;
    }
}

static Tandem__Worker__Metric **worker_metrics(const struct world_worker *v, size_t *n) {
    static Tandem__Worker__Metric m, *list[1];
    tandem__worker__metric__init(&m);
    m.name = "loss";
    m.value = (double)(v->state % 1000);
    m.fold = TD_FOLD_SUM;
    list[0] = &m;
    *n = 1;
    return list;
}

// The ranks that wait in an update find that it cannot be: one of them is gone.
static bool step_fails(struct world *w) {
    bool any = false;
    for (uint32_t i = 0; i < w->workers; i++) {
        struct world_worker *v = &w->worker[i];
        struct td_trainc_event a = {.kind = TD_TC_FAILED,
                                    .worker = i,
                                    .seq = v->stepping,
                                    .rc = TD_ECLOSED,
                                    .text = "a peer is gone"};
        bool waits = v->stepping && w->attached[i];
        any = any || v->stepping;
        v->stepping = 0;
        if (waits) {
            world_event(w, &a);
        }
    }
    return any;
}

// An update is a collective: it is applied when all ranks are in it.
static void step_together(struct world *w) {
    for (uint32_t i = 0; i < w->workers; i++) {
        if (w->worker[i].generation != w->worker[0].generation) {
            step_fails(w);
            return;
        }
    }
    for (uint32_t i = 0; i < w->workers; i++) {
        if (!w->worker[i].stepping) {
            return;
        }
    }
    for (uint32_t i = 0; i < w->workers; i++) {
        struct world_worker *v = &w->worker[i];
        v->applied++;
        v->next = updated(v->next, v->batch, v->applied, v->salted);
        struct td_trainc_event a = {.kind = TD_TC_DONE, .worker = i, .seq = v->stepping};
        v->stepping = 0;
        if (w->attached[i]) {
            world_event(w, &a);
        }
    }
}

static void answer_command(struct world *w, const struct td_trainc_effect *e, bool lost) {
    struct world_worker *v = &w->worker[e->worker];
    struct td_trainc_event a = {.kind = TD_TC_DONE, .worker = e->worker, .seq = e->seq};
    enum td_rc rc = obey(w, v, e);
    if (!rc && e->kind == TD_TC_STEP) {
        step_together(w);
        return;
    }
    if (rc) {
        a.kind = TD_TC_FAILED;
        a.rc = rc;
        a.text = "refused";
    } else if (e->kind == TD_TC_FINISH || e->kind == TD_TC_DIGEST) {
        a.kind = TD_TC_DIGESTED;
        a.weight_digest = world_weight_digest(v->state);
        a.state_digest = world_state_digest(v->state);
        if (e->kind == TD_TC_FINISH) {
            a.worker_metrics =
                (const Tandem__Worker__Metric *const *)worker_metrics(v, &a.worker_metric_count);
        }
    }
    if (!lost && w->attached[e->worker]) {
        world_event(w, &a);
    }
}

static void do_save(struct world *w, const struct td_trainc_effect *e, bool lost) {
    const struct world_worker *v = &w->worker[0];
    assert_int_equal(v->applied, 0);
    assert_int_equal(e->checkpoint->state_digest, world_state_digest(v->state));
    assert_int_equal(e->checkpoint->version->step, v->version.step);
    if (e->user) {
        td_assert_op(w->user_save_count, <, 64);
        w->user_saves[w->user_save_count++] = v->version.step;
    } else {
        assert_null(find_folder(w, e->text)); // a name is used once
        td_assert_op(w->folder_count, <, WORLD_FOLDERS_MAX);
        struct world_folder *f = &w->folders[w->folder_count++];
        *f = (struct world_folder){.id = e->id,
                                   .generation = e->generation,
                                   .step = v->version.step,
                                   .state = v->state,
                                   .there = true};
        snprintf(f->name, sizeof f->name, "%s", e->text);
    }
    struct td_trainc_event a = {
        .kind = TD_TC_SAVED, .seq = e->seq, .manifest_digest = e->id ^ 0x5a};
    if (!lost && w->attached[0]) {
        world_event(w, &a);
    }
}

static void do_verify(struct world *w, const struct td_trainc_effect *e) {
    const struct world_folder *f = find_folder(w, e->text);
    struct td_trainc_event a = {.kind = TD_TC_CHECKPOINT_READ,
                                .id = e->id,
                                .ok = f && !f->corrupt && e->digest == (e->id ^ 0x5a),
                                .text = "a file differs"};
    world_event(w, &a);
}

static void do_list(struct world *w) {
    struct td_folder list[WORLD_FOLDERS_MAX];
    size_t n = 0;
    for (size_t i = 0; i < w->folder_count; i++) {
        const struct world_folder *f = &w->folders[i];
        if (f->there) {
            list[n++] = (struct td_folder){f->name, f->id, f->generation, f->step};
        }
    }
    struct td_trainc_event a = {.kind = TD_TC_FOLDERS, .folders = list, .folder_count = n};
    world_event(w, &a);
}

static void do_delete(struct world *w, const struct td_trainc_effect *e) {
    struct world_folder *f = find_folder(w, e->text);
    if (f) {                                           // told twice is fine
        assert_null(td_job_kept(world_job(w), f->id)); // I9
        f->there = false;
    }
}

static void tell_metrics(struct world *w) {
    struct td_trainc_event a = {.kind = TD_TC_METRICS, .metrics = &w->disk};
    world_event(w, &a);
}

static void do_metrics(struct world *w, const struct td_trainc_effect *e) {
    if (e->kind == TD_TC_STAGE_METRICS) {
        w->disk.has_staged = true;
        w->disk.staged_step = e->round;
        w->disk.staged_ref = e->ref;
        w->staged = *e->metrics;
    } else if (e->kind == TD_TC_CLOSE_METRICS) {
        const struct td_metric *loss = td_metrics_find(&w->staged, "loss");
        td_assert_op(w->line_count, <, 256);
        w->line_loss[w->line_count] = loss ? loss->value : 0;
        w->lines[w->line_count++] = e->round;
        w->disk.has_line = true;
        w->disk.step = e->round;
    } else {
        while (w->line_count && w->lines[w->line_count - 1] > e->round) {
            w->line_count--;
        }
        w->disk.has_line = w->line_count > 0;
        w->disk.step = w->line_count ? w->lines[w->line_count - 1] : 0;
    }
    tell_metrics(w);
}

static const struct world_record *record_at(const struct world *w, uint32_t partition,
                                            int64_t offset) {
    for (size_t i = 0; i < w->rollout_count; i++) {
        if (w->rollout[i].partition == partition && w->rollout[i].offset == offset) {
            return &w->rollout[i];
        }
    }
    return NULL;
}

static void do_read_round(struct world *w, const struct td_trainc_effect *e) {
    const struct td_round_state *r = td_job_round(world_job(w), e->round);
    uint32_t missing[WORLD_BATCH], n = 0;
    for (uint32_t i = 0; r && i < r->entry_count; i++) {
        bool ok = true;
        for (size_t p = 0; p < r->entries[i]->n_parts; p++) {
            const Tandem__Journal__LogPosition *at = r->entries[i]->parts[p];
            const struct world_record *q = record_at(w, at->partition, at->offset);
            ok = ok && q && !q->gone && q->crc == at->crc;
        }
        if (!ok) {
            missing[n++] = i;
        }
    }
    struct td_round_read read = {.job = e->job,
                                 .round = e->round,
                                 .ref = e->ref,
                                 .ok = n == 0,
                                 .updates = WORLD_UPDATES,
                                 .missing = missing,
                                 .missing_count = n,
                                 .cause = "gone"};
    struct td_trainc_event a = {.kind = TD_TC_ROUND_READ, .round = &read};
    world_event(w, &a);
}

static void do_read_rollout(struct world *w, const struct td_trainc_effect *e) {
    w->scan = w->scan_seq = e->seq;
    w->rollout_read = 0;
    w->scan_from[0] = w->scan_from[1] = 0;
    for (size_t i = 0; i < e->position_count; i++) {
        w->scan_from[e->positions[i]->partition] = e->positions[i]->offset;
    }
}

static const char *name_of(enum td_trainc_effect_kind kind) {
    static const char *const names[] = {
        "FETCH_END",     "JOURNAL_RESET", "STOP",          "READ_ROLLOUT", "READ_ROUND",
        "DROP_ROUND",    "SETUP",         "RING",          "LOAD",         "PREP",
        "STEP",          "FINISH",        "DIGEST",        "SAVE",         "RESTART_WORKER",
        "VERIFY",        "LIST_FOLDERS",  "DELETE_FOLDER", "READ_METRICS", "STAGE_METRICS",
        "CLOSE_METRICS", "CUT_METRICS",   "REPORT"};
    static_assert(sizeof names / sizeof names[0] == TD_TC_REPORT + 1, "one name each");
    return names[kind];
}

static void write_trace(struct world *w, const struct td_trainc_effect *e) {
    if (e->kind == TD_TC_REPORT || e->kind == TD_TC_READ_METRICS) {
        return;
    }
    td_buf_printf(&w->trace, "%s", name_of(e->kind));
    if (e->kind >= TD_TC_SETUP && e->kind <= TD_TC_SAVE) {
        td_buf_printf(&w->trace, "%u", e->worker);
    }
    if (e->kind == TD_TC_STEP) {
        td_buf_printf(&w->trace, ".%u", e->k);
    }
    if (e->kind >= TD_TC_STAGE_METRICS) {
        td_buf_printf(&w->trace, ".%" PRIu64, e->round);
    }
    td_buf_puts(&w->trace, e->kind == TD_TC_SAVE && e->user ? "u " : " ");
}

static void execute(struct world *w, const struct td_trainc_effect *e, bool lost) {
    struct td_trainc_event a = {.kind = TD_TC_JOURNAL_END, .offset = (int64_t)w->journal_count};
    switch (e->kind) {
    case TD_TC_FETCH_END:
        world_event(w, &a);
        break;
    case TD_TC_JOURNAL_RESET:
        w->journal_read = 0;
        a = (struct td_trainc_event){.kind = TD_TC_JOURNAL_START};
        world_event(w, &a);
        break;
    case TD_TC_STOP:
        w->stopped = td_strdup(e->text);
        break;
    case TD_TC_READ_ROLLOUT:
        do_read_rollout(w, e);
        break;
    case TD_TC_READ_ROUND:
        do_read_round(w, e);
        break;
    case TD_TC_SAVE:
        do_save(w, e, lost);
        break;
    case TD_TC_RESTART_WORKER:
        world_worker_dies(w, e->worker);
        break;
    case TD_TC_VERIFY:
        do_verify(w, e);
        break;
    case TD_TC_LIST_FOLDERS:
        do_list(w);
        break;
    case TD_TC_DELETE_FOLDER:
        do_delete(w, e);
        break;
    case TD_TC_READ_METRICS:
        tell_metrics(w);
        break;
    case TD_TC_STAGE_METRICS:
    case TD_TC_CLOSE_METRICS:
    case TD_TC_CUT_METRICS:
        do_metrics(w, e);
        break;
    case TD_TC_REPORT:
        td_proto_free(w->report);
        w->report = td_proto_dup(e->report);
        w->reports++;
        break;
    case TD_TC_DROP_ROUND:
        break;
    default:
        answer_command(w, e, lost);
        break;
    }
}

static void run_first(struct world *w, bool lost) {
    struct td_trainc_effect e = w->queue[0];
    memmove(w->queue, w->queue + 1, --w->queue_count * sizeof w->queue[0]);
    write_trace(w, &e);
    execute(w, &e, lost);
    free_effect(&e);
}

void world_run_one(struct world *w) {
    run_first(w, false);
}

void world_lose_answer(struct world *w) {
    run_first(w, true);
}

static bool feed_journal(struct world *w) {
    if (w->journal_read >= w->journal_count) {
        return false;
    }
    size_t i = w->journal_read++;
    struct td_trainc_event e = {.kind = TD_TC_JOURNAL_RECORD,
                                .pos = w->positions[i],
                                .bytes = w->journal[i].data,
                                .n = w->journal[i].len};
    world_event(w, &e);
    return true;
}

static void feed_record(struct world *w, const struct world_record *r) {
    Tandem__Rollout__Model model = TANDEM__ROLLOUT__MODEL__INIT, *models[] = {&model};
    model.step = r->step;
    Tandem__Rollout__Header h = TANDEM__ROLLOUT__HEADER__INIT;
    h.log = WORLD_LOG;
    h.job = WORLD_JOB;
    h.journal_id = w->lead.journal_id;
    h.data_epoch = r->group.data_epoch;
    h.index = r->group.index;
    h.part = r->part;
    h.parts = r->parts;
    h.attempt = r->attempt;
    h.producer = r->producer;
    h.models = models;
    h.n_models = 1;
    struct td_seen_record seen = {.scan = w->scan,
                                  .log = WORLD_LOG,
                                  .partition = r->partition,
                                  .offset = r->offset,
                                  .crc = r->crc,
                                  .ok = !r->gone,
                                  .header = &h,
                                  .samples = 4,
                                  .tokens = 40,
                                  .reward_sum = 2};
    struct td_trainc_event e = {.kind = TD_TC_ROLLOUT, .record = &seen};
    world_event(w, &e);
}

static bool feed_rollout(struct world *w) {
    if (!w->scan) {
        return false;
    }
    while (w->rollout_read < w->rollout_count) {
        const struct world_record *r = &w->rollout[w->rollout_read++];
        if (r->offset >= w->scan_from[r->partition]) {
            feed_record(w, r);
            return true;
        }
    }
    if (!w->scan_seq) {
        return false;
    }
    Tandem__Journal__LogPosition tails[2], *list[2] = {&tails[0], &tails[1]};
    for (uint32_t p = 0; p < 2; p++) {
        tandem__journal__log_position__init(&tails[p]);
        tails[p].partition = p;
        tails[p].offset = w->next_offset[p];
    }
    struct td_trainc_event e = {.kind = TD_TC_ROLLOUT_SCANNED,
                                .seq = w->scan_seq,
                                .positions = (const Tandem__Journal__LogPosition *const *)list,
                                .position_count = 2};
    w->scan_seq = 0;
    world_event(w, &e);
    return true;
}

bool world_run_until(struct world *w, int kind) {
    for (;;) {
        if (w->queue_count && (int)w->queue[0].kind == kind) {
            return true;
        }
        if (w->queue_count) {
            run_first(w, false);
        } else if (!feed_journal(w) && !feed_rollout(w) && !step_fails(w)) {
            return false; // an update that not all ranks came to has met its deadline
        }
    }
}

void world_run(struct world *w) {
    world_run_until(w, -1);
}

void world_read(struct world *w) {
    while (feed_journal(w)) {
    }
}

const char *world_trace(struct world *w) {
    static char text[8192];
    snprintf(text, sizeof text, "%s", td_buf_str(&w->trace));
    size_t n = strlen(text);
    if (n) {
        text[n - 1] = 0;
    }
    td_buf_clear(&w->trace);
    return text;
}

bool world_traced(const struct world *w, const char *word) {
    return strstr(td_buf_str(&w->trace), word) != NULL;
}

// ---- processes ----

void world_attach(struct world *w, uint32_t i) {
    const struct world_worker *v = &w->worker[i];
    Tandem__Worker__Version version = TANDEM__WORKER__VERSION__INIT;
    char address[24];
    Tandem__Worker__Status s = TANDEM__WORKER__STATUS__INIT;
    version.lineage = v->version.lineage;
    version.step = v->version.step;
    s.job = v->job;
    s.set_up = v->set_up;
    s.generation = v->generation;
    s.version = &version;
    s.ref_offset = v->ref.offset;
    s.ref_crc = v->ref.crc;
    s.prepped = v->prepped;
    s.applied = v->applied;
    s.updates = v->prepped ? WORLD_UPDATES : 0;
    s.finished = v->finished;
    s.weight_digest = world_weight_digest(v->state);
    s.state_digest = world_state_digest(v->state);
    s.finished_ref_offset = v->finished_ref.offset;
    s.finished_ref_crc = v->finished_ref.crc;
    s.round_metrics = worker_metrics(v, &s.n_round_metrics);
    snprintf(address, sizeof address, "w%u.%u", i, v->starts);
    s.weights_address = address;
    w->attached[i] = true;
    struct td_trainc_event e = {.kind = TD_TC_WORKER_UP, .worker = i, .status = &s};
    world_event(w, &e);
}

// Commands on their way to a worker go down with the connection.
static void drop_commands(struct world *w, uint32_t worker) {
    size_t left = 0;
    for (size_t i = 0; i < w->queue_count; i++) {
        struct td_trainc_effect *e = &w->queue[i];
        if (e->kind >= TD_TC_SETUP && e->kind <= TD_TC_SAVE && e->worker == worker) {
            free_effect(e);
        } else {
            w->queue[left++] = *e;
        }
    }
    w->queue_count = left;
}

void world_disconnect(struct world *w, uint32_t i) {
    w->attached[i] = false;
    drop_commands(w, i);
    struct td_trainc_event e = {.kind = TD_TC_WORKER_DOWN, .worker = i};
    world_event(w, &e);
}

void world_worker_dies(struct world *w, uint32_t i) {
    w->worker[i] = (struct world_worker){.running = true, .starts = w->worker[i].starts + 1};
    world_disconnect(w, i);
    world_attach(w, i);
}

void world_crash(struct world *w) {
    for (size_t i = 0; i < w->queue_count; i++) {
        free_effect(&w->queue[i]);
    }
    w->queue_count = 0;
    td_trainc_free(w->x);
    w->x = NULL;
    td_proto_free(w->report);
    w->report = NULL;
    memset(w->attached, 0, sizeof w->attached);
    for (uint32_t i = 0; i < w->workers; i++) {
        w->worker[i].stepping = 0; // a collective that not all ranks came to
    }
    w->scan = w->scan_seq = 0;
}

void world_start(struct world *w) {
    const struct td_trainc_config c = {.member = WORLD_MEMBER,
                                       .incarnation = ++w->incarnation,
                                       .workers = w->workers,
                                       .job = w->serves,
                                       .build = "build",
                                       .device = "cpu",
                                       .report_ms = 500,
                                       .plan_of = plan_of,
                                       .user = w};
    w->x = td_trainc_new(&c);
    w->journal_read = 0;
    struct td_trainc_event e = {.kind = TD_TC_JOURNAL_START};
    world_event(w, &e);
    for (uint32_t i = 0; i < w->workers; i++) {
        world_attach(w, i);
    }
}

struct world *world_new(uint32_t ranks) {
    struct world *w = td_alloc(sizeof *w);
    w->workers = ranks;
    w->plan = (struct td_train_plan){.total_steps = 100, .samples = 4};
    td_journal_state_init(&w->lead);
    world_add_job(w);
    for (uint32_t i = 0; i < ranks; i++) {
        w->worker[i].running = true;
    }
    world_start(w);
    return w;
}

void world_free(struct world *w) {
    world_crash(w);
    td_journal_state_fini(&w->lead);
    for (size_t i = 0; i < w->journal_count; i++) {
        td_buf_fini(&w->journal[i]);
    }
    td_buf_fini(&w->trace);
    td_free(w->stopped);
    td_free(w);
}
