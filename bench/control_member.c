// What the members of bench_control share: see control.h.
#include "bench/control.h"

#include "controllers/common/proto.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"

void member_start(struct member *m, const char *address, td_link_orders_fn *on_orders,
                  td_loop_fn *on_timer, void *user) {
    struct control *c = m->control;
    struct td_link_client_opts opts = {.loop = c->loop,
                                       .rpc = c->rpc,
                                       .addresses = &address,
                                       .count = 1,
                                       .member = m->id,
                                       .on_orders = on_orders,
                                       .user = user};
    struct td_err err;
    if (td_link_client_new(&opts, &m->link, &err) != TD_OK) {
        control_fail(err.msg);
    }
    m->timer = td_timer_new(c->loop, on_timer, user);
    td_timer_start(m->timer, td_rng_below(&c->rng, REPORT_MS)); // not all at once
}

void member_report(struct member *m, const Tandem__Sync__Report *r) {
    struct control *c = m->control;
    Tandem__Sync__Report report = *r;
    Tandem__Sync__Indexed indexed, *list[] = {&indexed};
    report.serves = m->serves;
    report.host = "127.0.0.1";
    report.http = "127.0.0.1:65535";
    if (m->asked) {
        tandem__sync__indexed__init(&indexed);
        indexed.request_id = m->asked->request_id;
        indexed.attempt = m->asked->attempt;
        indexed.index = (Tandem__Journal__DataIndex *)&control_index;
        report.n_indexed = 1;
        report.indexed = list;
    }
    size_t n = tandem__sync__report__get_packed_size(&report);
    uint8_t *bytes = td_alloc(n);
    tandem__sync__report__pack(&report, bytes);
    m->sent_ns[report.report % SENT_MAX] = td_clock_ns();
    c->reports += c->measuring;
    c->report_bytes += c->measuring ? n : 0;
    td_link_client_report(m->link, bytes, n);
    td_free(bytes);
}

void member_idle_report(struct member *m, Tandem__Sync__MemberKind kind) {
    Tandem__Sync__Report r = TANDEM__SYNC__REPORT__INIT;
    r.member = m->id;
    r.kind = kind;
    r.journal_id = m->journal_id;
    r.term = m->term;
    r.build = "bench";
    r.device = "cpu";
    r.workers = r.workers_ready = m->control->workers;
    r.index = m->serves ? (Tandem__Journal__DataIndex *)&control_index : NULL;
    r.report = ++m->idle_reports;
    member_report(m, &r);
}

bool member_orders(struct member *m, const Tandem__Sync__Orders *o, bool serving) {
    struct control *c = m->control;
    m->journal_id = o->journal_id;
    m->term = o->term;
    m->greeted = true;
    c->orders += c->measuring;
    td_proto_free(m->asked);
    m->asked = td_proto_dup(o->n_index ? o->index[0] : NULL);
    if (!serving || o->report <= m->answered) {
        return false;
    }
    m->answered = o->report;
    control_note(c, &c->answers, m->sent_ns[o->report % SENT_MAX]);
    return true;
}
