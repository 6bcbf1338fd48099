// The coordinator's shell: see shell.h.
#include "coordinator/shell.h"

#include "lib/base/check.h"
#include "lib/base/mem.h"
#include "lib/base/trace.h"

enum { TICK_MS = 200, AGAIN_MS = 200 };

struct td_coordinator_shell {
    struct td_coordinator_shell_config config;
    struct td_coordinator *machine;
    struct td_log_reader *reader;
    struct td_timer *timer;
    struct td_timer *again;    // asks anew for bounds that could not be had
    bool start_owed, end_owed; // which
    bool stepping;             // an event within the effects of another one would mix their order
    // Callbacks of the log that outlive the shell find shell == NULL.
    struct anchor {
        struct td_coordinator_shell *shell;
        int uses;
    } * anchor;
};

static void step(struct td_coordinator_shell *s, const struct td_coordinator_event *event);

static struct anchor *anchor_hold(struct td_coordinator_shell *s) {
    s->anchor->uses++;
    return s->anchor;
}

static struct td_coordinator_shell *anchor_drop(struct anchor *a) {
    struct td_coordinator_shell *s = a->shell;
    if (--a->uses == 0) {
        td_free(a);
        return NULL;
    }
    return s;
}

// ---- the journal's reader ----

static void on_record(void *user, const struct td_log_record *r) {
    struct td_coordinator_event e = {
        .kind = TD_CO_JOURNAL_RECORD, .pos = {r->offset, r->crc}, .bytes = r->bytes, .n = r->n};
    step(user, &e);
}

static void on_gap(void *user, int64_t start) {
    struct td_coordinator_event e = {.kind = TD_CO_JOURNAL_START, .offset = start};
    step(user, &e);
}

static void on_read_error(void *user, const struct td_err *err) {
    struct td_coordinator_shell *s = user;
    s->config.fns.stop(s->config.user, err->msg);
}

// Asks again in a moment for what an outage of the log kept back; anything else ends the process.
static void on_no_bounds(struct td_coordinator_shell *s, bool *owed, const struct td_err *err) {
    if (!err->retriable) {
        s->config.fns.stop(s->config.user, err->msg);
        return;
    }
    td_trace_warn("the journal does not answer", "cause=\"%s\"", err->msg);
    *owed = true;
    td_timer_start(s->again, AGAIN_MS);
}

static void on_start_known(void *user, enum td_rc rc, int64_t start, int64_t end,
                           const struct td_err *err) {
    static const struct td_log_reader_fns fns = {
        .record = on_record, .gap = on_gap, .error = on_read_error};
    struct td_coordinator_shell *s = anchor_drop(user);
    (void)end;
    if (!s) {
        return;
    }
    if (rc != TD_OK) {
        on_no_bounds(s, &s->start_owed, err);
        return;
    }
    td_log_reader_close(s->reader);
    s->reader = td_log_read(s->config.journal, 0, start, &fns, s);
    struct td_coordinator_event e = {.kind = TD_CO_JOURNAL_START, .offset = start};
    step(s, &e);
}

static void start_reading(struct td_coordinator_shell *s) {
    td_log_bounds(s->config.journal, 0, on_start_known, anchor_hold(s));
}

static void on_end_known(void *user, enum td_rc rc, int64_t start, int64_t end,
                         const struct td_err *err) {
    struct td_coordinator_shell *s = anchor_drop(user);
    (void)start;
    if (!s) {
        return;
    }
    if (rc != TD_OK) {
        on_no_bounds(s, &s->end_owed, err);
        return;
    }
    struct td_coordinator_event e = {.kind = TD_CO_JOURNAL_END, .offset = end};
    step(s, &e);
}

static void fetch_end(struct td_coordinator_shell *s) {
    td_log_bounds(s->config.journal, 0, on_end_known, anchor_hold(s));
}

static void on_again(void *user) {
    struct td_coordinator_shell *s = user;
    if (s->start_owed) {
        s->start_owed = false;
        start_reading(s);
    }
    if (s->end_owed) {
        s->end_owed = false;
        fetch_end(s);
    }
}

// ---- effects ----

static void on_appended(void *user, const struct td_log_result *result) {
    struct td_coordinator_shell *s = anchor_drop(user);
    if (!s) {
        return;
    }
    if (result->outcome == TD_LOG_FAILED) {
        s->config.fns.stop(s->config.user, result->err->msg); // a disk that is full, a refusal
        return;
    }
    struct td_coordinator_event e = {.kind = TD_CO_APPENDED,
                                     .ok = result->outcome == TD_LOG_APPENDED,
                                     .pos.offset = result->offset};
    step(s, &e);
}

static bool starts_state(const void *bytes, size_t n) {
    td_record *record = NULL;
    struct td_err err;
    bool yes = td_record_decode(bytes, n, &record, &err) == TD_OK &&
               record->body_case == TANDEM__JOURNAL__RECORD__BODY_STATE && record->state->part == 1;
    if (record) {
        tandem__journal__record__free_unpacked(record, NULL);
    }
    return yes;
}

static void append(struct td_coordinator_shell *s, const struct td_coordinator_effect *x) {
    struct td_log_append a = {.bytes = x->bytes,
                              .n = x->n,
                              .roll = starts_state(x->bytes, x->n),
                              .done = on_appended,
                              .user = anchor_hold(s)};
    struct td_err err;
    if (td_log_append(s->config.journal, &a, &err) != TD_OK) {
        (void)anchor_drop(a.user);
        s->config.fns.stop(s->config.user, err.msg);
    }
}

static void on_trimmed(void *user, enum td_rc rc, const struct td_err *err) {
    (void)user;
    if (rc != TD_OK) {
        td_trace_warn("journal not trimmed", "cause=\"%s\"", err->msg);
    }
}

static void send_orders(struct td_coordinator_shell *s, const struct td_coordinator_effect *x) {
    size_t n = tandem__sync__orders__get_packed_size(x->orders);
    uint8_t *bytes = td_alloc(n);
    tandem__sync__orders__pack(x->orders, bytes);
    s->config.fns.orders(s->config.user, x->member, bytes, n);
    td_free(bytes);
}

static void execute(struct td_coordinator_shell *s, const struct td_coordinator_effect *x) {
    const struct td_coordinator_shell_fns *fns = &s->config.fns;
    switch (x->kind) {
    case TD_CO_FETCH_END:
        fetch_end(s);
        break;
    case TD_CO_JOURNAL_RESET:
        start_reading(s);
        break;
    case TD_CO_STOP:
        fns->stop(s->config.user, x->text);
        break;
    case TD_CO_APPEND:
        append(s, x);
        break;
    case TD_CO_TRIM_JOURNAL:
        td_log_trim(s->config.journal, 0, x->offset, on_trimmed, NULL);
        break;
    case TD_CO_TRIM_ROLLOUT:
        fns->trim_rollout(s->config.user, x->job, x->positions, x->position_count);
        break;
    case TD_CO_ORDERS:
        send_orders(s, x);
        break;
    case TD_CO_JOB_ACCEPTED:
        fns->accepted(s->config.user, x->text, x->job);
        break;
    case TD_CO_JOB_REFUSED:
        fns->refused(s->config.user, x->text, x->cause);
        break;
    case TD_CO_JOB_ENDED:
        fns->ended(s->config.user, x->job, x->outcome, x->cause);
        break;
    }
}

static void arm(struct td_coordinator_shell *s) {
    int64_t now = td_loop_now_ms(s->config.loop), wake = td_coordinator_wake_ms(s->machine);
    int64_t delay = wake == INT64_MAX ? TICK_MS : wake - now;
    td_timer_start(s->timer, delay < 1 ? 1 : delay > TICK_MS ? TICK_MS : delay);
}

static void step(struct td_coordinator_shell *s, const struct td_coordinator_event *event) {
    td_assert(!s->stepping);
    s->stepping = true;
    struct td_coordinator_effects effects = {0};
    td_coordinator_step(s->machine, event, td_loop_now_ms(s->config.loop), &effects);
    for (size_t i = 0; i < effects.count; i++) {
        execute(s, &effects.items[i]);
    }
    td_coordinator_effects_fini(&effects);
    s->stepping = false;
    arm(s);
    s->config.fns.changed(s->config.user);
}

static void on_tick(void *user) {
    struct td_coordinator_event e = {.kind = TD_CO_TICK};
    step(user, &e);
}

struct td_coordinator_shell *
td_coordinator_shell_new(const struct td_coordinator_shell_config *config) {
    struct td_coordinator_shell *s = td_alloc(sizeof *s);
    s->config = *config;
    s->machine = td_coordinator_new(&config->machine);
    s->timer = td_timer_new(config->loop, on_tick, s);
    s->again = td_timer_new(config->loop, on_again, s);
    s->anchor = td_alloc(sizeof *s->anchor);
    *s->anchor = (struct anchor){.shell = s, .uses = 1};
    start_reading(s);
    return s;
}

void td_coordinator_shell_free(struct td_coordinator_shell *s) {
    if (!s) {
        return;
    }
    s->anchor->shell = NULL;
    (void)anchor_drop(s->anchor);
    td_log_reader_close(s->reader);
    td_timer_close(s->timer);
    td_timer_close(s->again);
    td_coordinator_free(s->machine);
    td_free(s);
}

void td_coordinator_shell_report(void *user, uint64_t member, const uint8_t *bytes, size_t n) {
    Tandem__Sync__Report *report = tandem__sync__report__unpack(NULL, n, bytes);
    if (!report || report->member != member) {
        td_trace_warn("report refused", "member=%016llx", (unsigned long long)member);
    } else {
        struct td_coordinator_event e = {.kind = TD_CO_REPORT, .report = report};
        step(user, &e);
    }
    if (report) {
        tandem__sync__report__free_unpacked(report, NULL);
    }
}

void td_coordinator_shell_submit(struct td_coordinator_shell *s, const struct td_submit *submit) {
    struct td_coordinator_event e = {.kind = TD_CO_SUBMIT, .submit = submit};
    step(s, &e);
}

void td_coordinator_shell_cancel(struct td_coordinator_shell *s, uint64_t job) {
    struct td_coordinator_event e = {.kind = TD_CO_CANCEL, .job = job};
    step(s, &e);
}

const struct td_coordinator *td_coordinator_shell_machine(const struct td_coordinator_shell *s) {
    return s->machine;
}
