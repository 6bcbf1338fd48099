// The journal as a log: appends that land, are lost, come late or twice; readers that lag, get
// records again, find the log trimmed.
#include <inttypes.h>
#include <string.h>

#include "lib/base/check.h"
#include "lib/base/crc.h"
#include "lib/base/mem.h"
#include "tests/sim/sim.h"

static void tell_start(struct sim *s, int proc) {
    struct proc *p = &s->procs[proc];
    p->next = s->journal_start;
    p->reset = false;
    if (p->kind == COORDINATOR) {
        struct td_coordinator_event e = {.kind = TD_CO_JOURNAL_START, .offset = p->next};
        coordinator_event(s, proc, &e);
    } else {
        struct td_trainc_event e = {.kind = TD_TC_JOURNAL_START, .offset = p->next};
        trainer_event(s, proc, &e);
    }
}

static void tell_record(struct sim *s, int proc, int64_t offset) {
    const struct journal_record *r = &s->journal[offset];
    if (s->procs[proc].kind == COORDINATOR) {
        struct td_coordinator_event e = {
            .kind = TD_CO_JOURNAL_RECORD, .pos = r->pos, .bytes = r->bytes, .n = r->n};
        coordinator_event(s, proc, &e);
    } else {
        struct td_trainc_event e = {
            .kind = TD_TC_JOURNAL_RECORD, .pos = r->pos, .bytes = r->bytes, .n = r->n};
        trainer_event(s, proc, &e);
    }
}

static const struct td_journal_state *state_of(const struct sim *s, int proc) {
    const struct proc *p = &s->procs[proc];
    if (p->kind == COORDINATOR) {
        return td_coordinator_state(s->coordinators[p->index]);
    }
    return td_trainc_journal(s->trainers[p->index].machine);
}

static void schedule_pump(struct sim *s, int proc);

static void pump(struct sim *s, struct event *e) {
    int proc = e->proc;
    struct proc *p = &s->procs[proc];
    p->pumping = false;
    if (p->cut && s->faults_on) {
        return;
    }
    if (p->reset || p->next < s->journal_start) {
        tell_start(s, proc);
    }
    for (uint32_t n = 1 + sim_below(s, 8); n > 0 && p->alive && !p->reset; n--) {
        if (p->next >= (int64_t)s->journal_count || s->violated) {
            break;
        }
        if (p->next > s->journal_start && sim_percent(s, 3)) {
            tell_record(s, proc, p->next - 1); // delivered again
        }
        int64_t offset = p->next++;
        tell_record(s, proc, offset);
        if (p->alive && !p->reset && !s->violated) {
            check_reader(s, proc, state_of(s, proc), offset);
        }
    }
    if (p->alive && (p->reset || p->next < (int64_t)s->journal_count)) {
        schedule_pump(s, proc);
    }
}

static bool reads(const struct sim *s, int proc) {
    const struct proc *p = &s->procs[proc];
    return p->alive && (p->kind == COORDINATOR || s->trainers[p->index].machine);
}

static void schedule_pump(struct sim *s, int proc) {
    struct proc *p = &s->procs[proc];
    if (p->pumping || !reads(s, proc)) {
        return;
    }
    p->pumping = true;
    int64_t lag = p->slow && s->faults_on ? sim_between(s, 50, 700) : sim_between(s, 1, 6);
    sim_after(s, lag, proc, pump, NULL);
}

void journal_pump_all(struct sim *s) {
    for (int i = 0; i < NC + NT; i++) {
        schedule_pump(s, i);
    }
}

void journal_open(struct sim *s, int proc) {
    s->procs[proc].reset = true;
    schedule_pump(s, proc);
}

void journal_reset(struct sim *s, int proc) {
    sim_trace(s, "%s reads the journal again", proc_name(proc));
    s->procs[proc].reset = true;
    schedule_pump(s, proc);
}

void journal_land(struct sim *s, const uint8_t *bytes, size_t n) {
    TD_GROW(s->journal, s->journal_cap, s->journal_count + 1);
    struct journal_record *r = &s->journal[s->journal_count];
    *r = (struct journal_record){.bytes = td_memdup(bytes, n), .n = n};
    r->pos = (struct td_pos){(int64_t)s->journal_count, td_crc32c(0, bytes, n)};
    s->journal_count++;
    td_record *record;
    td_assert(td_record_decode(bytes, n, &record, NULL) == TD_OK);
    char why[256] = "";
    r->verdict = td_journal_apply(&s->truth, record, r->pos, why);
    r->digest = td_journal_digest(&s->truth);
    sim_trace(s, "journal %" PRId64 " %s term %" PRIu64 ": %s%s", r->pos.offset,
              td_record_name(record), record->term,
              r->verdict == TD_ACCEPTED   ? "accepted"
              : r->verdict == TD_REJECTED ? "rejected, "
                                          : "ignored, ",
              why);
    if (r->verdict == TD_ACCEPTED) {
        s->accepted_by_kind[record->body_case - TANDEM__JOURNAL__RECORD__BODY_INIT]++;
        check_accepted(s, record);
    } else if (r->verdict == TD_REJECTED && !s->p.careless) {
        sim_violation(s, "a leader appended a %s that is rejected: %s", td_record_name(record),
                      why);
    } else if (r->verdict == TD_REBASE || r->verdict == TD_DAMAGED) {
        sim_violation(s, "the log contradicts itself: %s", why);
    }
    tandem__journal__record__free_unpacked(record, NULL);
    journal_pump_all(s);
}

static void land_late(struct sim *s, struct event *e) {
    journal_land(s, e->msg->bytes, e->msg->n);
}

static void reply(struct sim *s, struct event *e) {
    struct td_coordinator_event r = {
        .kind = TD_CO_APPENDED, .ok = e->a != 0, .pos.offset = (int64_t)e->b};
    coordinator_event(s, e->proc, &r);
}

// Where the append and its reply go. The process may be gone by then; the record is not.
static void arrive(struct sim *s, struct event *e) {
    int proc = (int)e->a;
    bool out = s->journal_out || (s->procs[proc].cut && s->faults_on);
    bool ok = !out;
    if (out) {
        ok = false;
        if (sim_percent(s, 30)) { // it waits somewhere on the way
            sim_after(s, sim_between(s, 200, 4000), -1, land_late, sim_msg_ref(e->msg));
        }
    } else if (sim_percent(s, s->p.append_percent)) {
        ok = sim_below(s, 2) != 0;
        switch (sim_below(s, 4)) {
        case 0: // twice
            journal_land(s, e->msg->bytes, e->msg->n);
            journal_land(s, e->msg->bytes, e->msg->n);
            break;
        case 1: // lost
            ok = false;
            break;
        case 2: // late, its outcome unknown
            ok = false;
            sim_after(s, sim_between(s, 30, 3000), -1, land_late, sim_msg_ref(e->msg));
            break;
        default: // now and again later
            journal_land(s, e->msg->bytes, e->msg->n);
            sim_after(s, sim_between(s, 30, 3000), -1, land_late, sim_msg_ref(e->msg));
            break;
        }
    } else {
        journal_land(s, e->msg->bytes, e->msg->n);
    }
    struct proc *p = &s->procs[proc];
    if (!p->alive || p->inc != (uint32_t)e->b) {
        return;
    }
    int64_t last = (int64_t)s->journal_count - 1;
    struct event *r =
        sim_after(s, out ? sim_between(s, 300, 900) : sim_between(s, 1, 5), proc, reply, NULL);
    r->a = ok;
    r->b = (uint64_t)last;
}

void journal_append(struct sim *s, int proc, struct msg *bytes) {
    struct event *e = sim_after(s, sim_between(s, 1, 8), -1, arrive, bytes);
    e->a = (uint64_t)proc;
    e->b = s->procs[proc].inc;
}

static void end_known(struct sim *s, struct event *e) {
    if ((s->journal_out || s->procs[e->proc].cut) && s->faults_on) {
        sim_after(s, 100, e->proc, end_known, NULL);
        return;
    }
    int64_t end = (int64_t)s->journal_count;
    if (s->procs[e->proc].kind == COORDINATOR) {
        struct td_coordinator_event r = {.kind = TD_CO_JOURNAL_END, .offset = end};
        coordinator_event(s, e->proc, &r);
    } else {
        struct td_trainc_event r = {.kind = TD_TC_JOURNAL_END, .offset = end};
        trainer_event(s, e->proc, &r);
    }
}

void journal_fetch_end(struct sim *s, int proc) {
    struct proc *p = &s->procs[proc];
    int64_t at = s->now + sim_between(s, 1, 5);
    p->reply_ms = at > p->reply_ms ? at : p->reply_ms;
    sim_after(s, p->reply_ms - s->now, proc, end_known, NULL);
}

void journal_trim(struct sim *s, int64_t offset) {
    check_trim(s, offset);
    if (offset > s->journal_start && !s->violated) {
        sim_trace(s, "journal trimmed below %" PRId64, offset);
        s->journal_start = offset;
    }
}
