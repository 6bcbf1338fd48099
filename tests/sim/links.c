// How reports and orders travel between controller daemons and coordinators: Sync of
// proto/sync.proto, told again after lib/io/link_grpc_client.c and link_grpc_server.c. A member has
// at most two calls under way at each coordinator; a connection that breaks ends both, the requests
// and replies on it are gone, whatever they caused is not. What a cut link holds back comes when it
// is joined again, or never, when the call's deadline was before; a stopped coordinator finds what
// came meanwhile, even if nobody waits for its answers any more.
#include <string.h>

#include "lib/base/mem.h"
#include "lib/io/link_grpc.h"
#include "tests/sim/sim.h"

enum { HELD_MS = 40 };

static int coordinator_of(const struct event *e) {
    return (int)(e->c >> 8);
}

static enum call_kind kind_of(const struct event *e) {
    return (enum call_kind)(e->c & 0xFF);
}

static uint64_t pack(int coordinator, enum call_kind kind) {
    return (uint64_t)coordinator << 8 | (uint64_t)kind;
}

static bool is_cut(const struct sim *s, int member, int coordinator) {
    return s->faults_on && !s->procs[member].linked[coordinator];
}

// ---- the member's end ----

static void go_on(struct sim *s, int member, int coordinator);

static void pause_over(struct sim *s, struct event *e) {
    int coordinator = coordinator_of(e);
    member_of(s, e->proc)->peers[coordinator].paused = false;
    go_on(s, e->proc, coordinator);
}

static void pause_calls(struct sim *s, int member, int coordinator) {
    struct peer *peer = &member_of(s, member)->peers[coordinator];
    if (peer->paused) {
        return;
    }
    int64_t ms = peer->pause_ms == 0 ? TD_LINK_PAUSE_MS_MIN : 2 * peer->pause_ms;
    peer->pause_ms = ms < TD_LINK_PAUSE_MS_MAX ? ms : TD_LINK_PAUSE_MS_MAX;
    peer->paused = true;
    struct event *e = sim_after_process(s, sim_between(s, (peer->pause_ms + 1) / 2, peer->pause_ms),
                                        member, pause_over, NULL);
    e->c = pack(coordinator, REPORT_CALL);
}

static void end_failed(struct sim *s, int member, int coordinator, enum call_kind kind) {
    struct peer *peer = &member_of(s, member)->peers[coordinator];
    peer->calls[kind] = 0;
    if (kind == REPORT_CALL) {
        peer->has_news = true; // it may be lost: the newest goes again
    }
    pause_calls(s, member, coordinator);
}

static void failed(struct sim *s, struct event *e) {
    int coordinator = coordinator_of(e);
    if (member_of(s, e->proc)->peers[coordinator].calls[kind_of(e)] == e->b) {
        end_failed(s, e->proc, coordinator, kind_of(e));
    }
}

static void fail_soon(struct sim *s, int member, int coordinator, enum call_kind kind) {
    const struct peer *peer = &member_of(s, member)->peers[coordinator];
    if (s->procs[member].alive && peer->calls[kind]) {
        struct event *e = sim_after_process(s, sim_between(s, 1, 10), member, failed, NULL);
        e->b = peer->calls[kind];
        e->c = pack(coordinator, kind);
    }
}

// Nobody waits for the answer any more.
static void gone(struct sim *s, struct event *e) {
    struct server_member *m = &s->servers[s->procs[e->proc].index][e->a];
    for (int kind = 0; kind < CALLS; kind++) {
        m->calls[kind] = m->calls[kind] == e->b ? 0 : m->calls[kind];
    }
}

static void gone_soon(struct sim *s, int member, int coordinator, enum call_kind kind) {
    uint64_t call = member_of(s, member)->peers[coordinator].calls[kind];
    int proc = proc_of(COORDINATOR, coordinator, 0);
    if (call && s->procs[proc].alive) {
        struct event *e = sim_after(s, sim_between(s, 1, 10), proc, gone, NULL);
        e->a = (uint64_t)(member - NC);
        e->b = call;
    }
}

static void break_connection(struct sim *s, int member, int coordinator) {
    for (enum call_kind kind = 0; kind < CALLS; kind++) {
        fail_soon(s, member, coordinator, kind);
        gone_soon(s, member, coordinator, kind);
    }
}

static void on_call(struct sim *s, struct event *e);

static void depart(struct sim *s, struct event *e) {
    int coordinator = coordinator_of(e), to = proc_of(COORDINATOR, coordinator, 0);
    enum call_kind kind = kind_of(e);
    if (member_of(s, e->proc)->peers[coordinator].calls[kind] != e->b) {
        return;
    }
    if (is_cut(s, e->proc, coordinator)) {
        struct event *again =
            sim_after_process(s, HELD_MS, e->proc, depart, e->msg ? sim_msg_ref(e->msg) : NULL);
        again->b = e->b;
        again->c = e->c;
    } else if (!s->procs[to].alive) {
        fail_soon(s, e->proc, coordinator, kind);
    } else if (sim_percent(s, s->p.loss_percent)) {
        break_connection(s, e->proc, coordinator);
    } else {
        struct event *call =
            sim_after(s, sim_between(s, 1, 5), to, on_call, e->msg ? sim_msg_ref(e->msg) : NULL);
        call->a = (uint64_t)(e->proc - NC);
        call->b = e->b;
        call->c = e->c;
    }
}

static void sync_call(struct sim *s, int member, int coordinator, enum call_kind kind) {
    struct member *m = member_of(s, member);
    struct peer *peer = &m->peers[coordinator];
    peer->calls[kind] = ++s->next_call;
    peer->since_ms[kind] = s->now;
    struct event e = {.proc = member, .b = peer->calls[kind], .c = pack(coordinator, kind)};
    e.msg = kind == REPORT_CALL ? m->report : NULL;
    depart(s, &e);
}

static void go_on(struct sim *s, int member, int coordinator) {
    struct peer *peer = &member_of(s, member)->peers[coordinator];
    if (peer->paused) {
        return;
    }
    if (peer->has_news && !peer->calls[REPORT_CALL]) {
        peer->has_news = false;
        sync_call(s, member, coordinator, REPORT_CALL);
    }
    if (!peer->calls[WAIT_CALL]) {
        sync_call(s, member, coordinator, WAIT_CALL);
    }
}

static void on_reply(struct sim *s, struct event *e) {
    int coordinator = coordinator_of(e);
    enum call_kind kind = kind_of(e);
    struct peer *peer = &member_of(s, e->proc)->peers[coordinator];
    if (peer->calls[kind] != e->b) {
        return;
    }
    if (is_cut(s, e->proc, coordinator)) {
        struct event *again =
            sim_after_process(s, HELD_MS, e->proc, on_reply, e->msg ? sim_msg_ref(e->msg) : NULL);
        again->b = e->b;
        again->c = e->c;
        return;
    }
    peer->calls[kind] = 0;
    peer->pause_ms = 0;
    bool early = kind == WAIT_CALL && s->now - peer->since_ms[kind] < TD_LINK_HOLD_MS / 2;
    if (early && !e->msg) {
        pause_calls(s, e->proc, coordinator);
    }
    go_on(s, e->proc, coordinator);
    if (e->msg) {
        member_orders(s, e->proc, e->msg->orders);
    }
}

void link_report(struct sim *s, int member, struct msg *report) {
    struct member *m = member_of(s, member);
    sim_msg_unref(m->report);
    m->report = report;
    for (int i = 0; i < NC; i++) {
        m->peers[i].has_news = true;
        go_on(s, member, i);
    }
}

void link_member_starts(struct sim *s, int member) {
    for (int i = 0; i < NC; i++) {
        member_of(s, member)->peers[i] = (struct peer){0};
        go_on(s, member, i);
    }
}

// Calls that were not answered in time.
void link_member_tick(struct sim *s, int member) {
    for (int i = 0; i < NC; i++) {
        const struct peer *peer = &member_of(s, member)->peers[i];
        for (enum call_kind kind = 0; kind < CALLS; kind++) {
            int64_t most = TD_LINK_SLACK_MS + (kind == WAIT_CALL ? TD_LINK_HOLD_MS : 0);
            if (peer->calls[kind] && s->now - peer->since_ms[kind] >= most) {
                gone_soon(s, member, i, kind);
                end_failed(s, member, i, kind);
            }
        }
    }
}

void link_member_dead(struct sim *s, int member) {
    for (int i = 0; i < NC; i++) {
        for (enum call_kind kind = 0; kind < CALLS; kind++) {
            gone_soon(s, member, i, kind);
        }
    }
    sim_msg_unref(member_of(s, member)->report);
    member_of(s, member)->report = NULL;
}

// ---- the coordinator's end ----

static void answer(struct sim *s, int coordinator, int member, enum call_kind kind,
                   struct msg *orders) {
    struct server_member *m = &s->servers[coordinator][member - NC];
    uint64_t call = m->calls[kind];
    m->calls[kind] = 0;
    if (!call || !s->procs[member].alive) {
        return;
    }
    if (sim_percent(s, s->p.loss_percent)) { // after the effect
        break_connection(s, member, coordinator);
        return;
    }
    bool late = sim_percent(s, s->p.stale_percent);
    struct event *e = sim_after_process(s, late ? sim_between(s, 100, 3000) : sim_between(s, 1, 5),
                                        member, on_reply, orders ? sim_msg_ref(orders) : NULL);
    e->b = call;
    e->c = pack(coordinator, kind);
}

static void hold_over(struct sim *s, struct event *e) {
    int coordinator = s->procs[e->proc].index;
    if (s->servers[coordinator][e->a].calls[WAIT_CALL] == e->b) {
        answer(s, coordinator, NC + (int)e->a, WAIT_CALL, NULL);
    }
}

static void on_call(struct sim *s, struct event *e) {
    int coordinator = s->procs[e->proc].index, member = NC + (int)e->a;
    enum call_kind kind = kind_of(e);
    struct server_member *m = &s->servers[coordinator][e->a];
    if (m->calls[kind]) {
        answer(s, coordinator, member, kind, NULL); // an older one
    }
    m->calls[kind] = e->b;
    if (kind == REPORT_CALL) {
        struct td_coordinator_event r = {.kind = TD_CO_REPORT, .report = e->msg->report};
        coordinator_event(s, e->proc, &r);
    }
    if (m->calls[kind] && m->kept) {
        struct msg *kept = m->kept;
        m->kept = NULL;
        answer(s, coordinator, member, kind, kept);
        sim_msg_unref(kept);
    } else if (m->calls[kind] && kind == REPORT_CALL) {
        answer(s, coordinator, member, kind, NULL);
    } else if (m->calls[kind]) {
        struct event *over = sim_after(s, TD_LINK_HOLD_MS, e->proc, hold_over, NULL);
        over->a = e->a;
        over->b = e->b;
    }
}

// Takes the reference.
void link_orders(struct sim *s, int coordinator, int member, struct msg *orders) {
    struct server_member *m = &s->servers[coordinator][member - NC];
    sim_msg_unref(m->kept); // older than these
    m->kept = NULL;
    if (!m->calls[REPORT_CALL] && !m->calls[WAIT_CALL]) {
        m->kept = orders;
        return;
    }
    answer(s, coordinator, member, m->calls[REPORT_CALL] ? REPORT_CALL : WAIT_CALL, orders);
    sim_msg_unref(orders);
}

void link_coordinator_dead(struct sim *s, int coordinator) {
    for (int i = 0; i < NM; i++) {
        sim_msg_unref(s->servers[coordinator][i].kept);
        s->servers[coordinator][i] = (struct server_member){0};
        for (enum call_kind kind = 0; kind < CALLS; kind++) {
            fail_soon(s, NC + i, coordinator, kind);
        }
    }
}
