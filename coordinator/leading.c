// The journal side of the coordinator: one append at a time, INIT, LEAD, BEAT, STATE and trimming.
// Timing decides only who is busy; what counts is what apply made of the log.
#include <string.h>

#include "coordinator/coordinator_int.h"
#include "lib/base/mem.h"
#include "lib/base/plant.h"

bool td_co_leads(const struct td_coordinator *c) {
    const struct td_journal_state *s = &c->follow.state;
    return s->based && s->term > 0 && s->owner == c->config.owner;
}

bool td_co_may_append(const struct td_coordinator *c) {
    return td_co_leads(c) && !c->appending && td_follower_ready(&c->follow) && !c->stopped;
}

// Nothing was read to the end for a take-over time: another may lead by now.
bool td_co_cut_off(const struct td_coordinator *c) {
    return c->now_ms - c->ready_ms >= c->config.takeover_ms && !TD_PLANTED(LEADS_WITHOUT_LOG);
}

static void append(struct td_coordinator *c, td_record *record) {
    Tandem__Journal__Position prev = TANDEM__JOURNAL__POSITION__INIT;
    record->prev = &prev;
    td_journal_header(&c->follow.state, record);
    record->owner = c->config.owner;
    struct td_buf bytes = {0};
    td_record_encode(record, &bytes, &c->sent_pos.crc);
    record->prev = NULL;
    struct td_coordinator_effect *e = td_co_push(c, TD_CO_APPEND);
    e->bytes = bytes.data;
    e->n = bytes.len;
    c->appending = true;
    c->out_ms = c->now_ms;
    if (TD_PLANTED(ACT_ON_ACK)) {
        td_buf_clear(&c->sent);
        td_buf_put(&c->sent, bytes.data, bytes.len);
    }
}

bool td_co_propose(struct td_coordinator *c, td_record *record) {
    if (!td_co_may_append(c) || !td_journal_allows(&c->follow.state, record, NULL)) {
        return false;
    }
    append(c, record);
    return true;
}

// What became of an append is read from the log, whatever the reply says.
void td_co_appended(struct td_coordinator *c, const struct td_coordinator_event *event) {
    c->appending = false;
    if (c->leading && event->ok) {
        c->lead_offset = event->pos.offset;
    }
    c->leading = false;
    if (TD_PLANTED(ACT_ON_ACK) && event->ok) {
        struct td_pos pos = {event->pos.offset, c->sent_pos.crc};
        td_record *record;
        if (td_record_decode(c->sent.data, c->sent.len, &record, NULL) == TD_OK) {
            td_journal_apply(&c->follow.state, record, pos, NULL);
            tandem__journal__record__free_unpacked(record, NULL);
        }
    }
    if (TD_PLANTED(TRIM_ACCEPTED) && event->ok && c->state_part == 1) {
        td_co_push(c, TD_CO_TRIM_JOURNAL)->offset = event->pos.offset;
    }
    if (c->follow.started) {
        td_co_want(c, td_follower_refresh(&c->follow));
    }
}

static void check_journal_id(struct td_coordinator *c) {
    uint64_t expect = c->config.expect_journal_id, found = c->follow.state.journal_id;
    if (expect && c->follow.state.based && found != expect) {
        c->stopped = true;
        td_co_push(c, TD_CO_STOP)->text =
            td_asprintf("the log holds journal %016llx, this run directory belongs to %016llx",
                        (unsigned long long)found, (unsigned long long)expect);
    }
}

void td_co_record(struct td_coordinator *c, const struct td_coordinator_event *event) {
    const struct td_journal_state *s = &c->follow.state;
    uint64_t term = s->term;
    int64_t trim = s->trim.offset;
    enum td_verdict verdict;
    enum td_follow_want want =
        td_follower_record(&c->follow, event->pos, event->bytes, event->n, &verdict);
    td_co_want(c, want);
    if (want != TD_WANT_NOTHING || verdict == TD_IGNORED) {
        return;
    }
    check_journal_id(c);
    c->quiet_ms = c->now_ms;
    c->lead_offset = event->pos.offset > c->lead_offset ? -1 : c->lead_offset;
    c->dirty = c->due_all = true;
    if (td_co_leads(c) && s->term > c->led_term) { // not when its old terms are read again
        c->led_term = s->term;
        c->led_ms = c->reached_ms = c->now_ms;
        c->silent_ms = -1;
        c->attempt = 0;
        td_co_forget_reports(c);
    }
    if (term != s->term) {
        c->end_for_lead = false;
    }
    if (c->led_term && s->term > c->led_term) {
        td_co_drop_submissions(c);
    }
    if (trim != s->trim.offset) {
        c->state_base =
            c->follow.next; // behind the last part: a long STATE is not a reason for one
    }
    if (td_co_leads(c) && s->trim.offset > c->trimmed) {
        c->trimmed = s->trim.offset;
        td_co_push(c, TD_CO_TRIM_JOURNAL)->offset = s->trim.offset;
    }
}

static void lead(struct td_coordinator *c) {
    td_record record = TANDEM__JOURNAL__RECORD__INIT;
    Tandem__Journal__Lead body = TANDEM__JOURNAL__LEAD__INIT;
    record.body_case = TANDEM__JOURNAL__RECORD__BODY_LEAD;
    record.lead = &body;
    append(c, &record);
    c->leading = true;
}

static void create(struct td_coordinator *c) {
    td_record record = TANDEM__JOURNAL__RECORD__INIT;
    Tandem__Journal__Init body = TANDEM__JOURNAL__INIT__INIT;
    Tandem__Journal__Position prev = TANDEM__JOURNAL__POSITION__INIT;
    prev.offset = -1;
    record.format = TD_JOURNAL_FORMAT;
    record.journal_id = c->config.create_journal_id;
    record.owner = c->config.owner;
    record.prev = &prev;
    record.body_case = TANDEM__JOURNAL__RECORD__BODY_INIT;
    record.init = &body;
    struct td_buf bytes = {0};
    td_record_encode(&record, &bytes, NULL);
    struct td_coordinator_effect *e = td_co_push(c, TD_CO_APPEND);
    e->bytes = bytes.data;
    e->n = bytes.len;
    c->appending = true;
}

void td_co_end(struct td_coordinator *c, int64_t end) {
    td_follower_end(&c->follow, end);
    c->end_ms = c->now_ms;
    struct td_follower *f = &c->follow;
    bool empty = f->started && !f->state.based && f->until >= 0 && f->next >= f->until &&
                 f->until == f->state.start;
    if (empty && c->config.create_journal_id && !c->appending) {
        create(c);
    }
}

// A leader that dies within an append may leave a record that nobody sees before the next append:
// the LEAD of another, which then comes to nothing. A leader that lives would be heard of again
// within a beat, so no whole take-over time has to pass once more.
int64_t td_co_patience_ms(const struct td_coordinator *c) {
    bool lost = c->lead_offset >= 0 && c->follow.next > c->lead_offset;
    int64_t beats = 2 * c->config.beat_ms;
    return lost && beats < c->config.takeover_ms ? beats : c->config.takeover_ms;
}

static void consider_leading(struct td_coordinator *c) {
    if (c->appending) {
        return;
    }
    if (c->config.lead_at_once && c->led_term == 0) {
        lead(c);
        return;
    }
    if (c->now_ms - c->quiet_ms < td_co_patience_ms(c)) {
        c->end_for_lead = false;
        return;
    }
    if (!c->end_for_lead) { // is it the log that is quiet, or this reader?
        c->end_for_lead = true;
        td_co_want(c, td_follower_refresh(&c->follow));
        return;
    }
    c->end_for_lead = false;
    c->quiet_ms = c->now_ms; // one try each time
    lead(c);
}

// A leader that no member reaches falls silent for a take-over time, so that another may lead.
static bool silent(struct td_coordinator *c) {
    if (c->config.lead_at_once) {
        return false;
    }
    int64_t wait = c->config.takeover_ms;
    if (c->silent_ms < 0 && c->now_ms - c->reached_ms >= wait) {
        c->silent_ms = c->now_ms;
    }
    if (c->silent_ms >= 0 && (c->reached_ms > c->silent_ms || c->now_ms - c->silent_ms >= wait)) {
        c->silent_ms = -1;
        c->reached_ms = c->now_ms;
    }
    return c->silent_ms >= 0;
}

static bool put_state_part(struct td_coordinator *c) {
    td_record record = TANDEM__JOURNAL__RECORD__INIT;
    Tandem__Journal__State body = TANDEM__JOURNAL__STATE__INIT;
    size_t chunk = c->config.state_chunk_bytes, at = c->state_part * chunk;
    body.part = c->state_part + 1;
    body.parts = c->state_parts;
    body.chunk.data = c->state.data + at;
    body.chunk.len = c->state.len - at < chunk ? c->state.len - at : chunk;
    record.body_case = TANDEM__JOURNAL__RECORD__BODY_STATE;
    record.state = &body;
    if (!td_co_propose(c, &record)) {
        return false;
    }
    c->state_part++;
    return true;
}

// The next part of a STATE under way, or the first of one that is due.
static void consider_state(struct td_coordinator *c) {
    const struct td_journal_state *s = &c->follow.state;
    if (c->state_part > 0 && c->state_part < c->state_parts &&
        s->partial_next == c->state_part + 1 && s->partial_count == c->state_parts) {
        put_state_part(c);
        return;
    }
    c->state_part = 0;
    if (!c->config.state_every || c->follow.next - c->state_base < (int64_t)c->config.state_every) {
        return;
    }
    td_buf_clear(&c->state);
    td_journal_snapshot(s, &c->state);
    if (c->state.len > TD_STATE_BYTES_MAX) { // no reader would take it: the log stays untrimmed
        c->state_base = c->follow.next;
        return;
    }
    size_t chunk = c->config.state_chunk_bytes;
    c->state_parts = (uint32_t)((c->state.len + chunk - 1) / chunk);
    if (put_state_part(c)) {
        c->state_base = c->follow.next; // one that is lost is tried again after as many records
    }
}

void td_co_lead_first(struct td_coordinator *c) {
    if (!td_co_leads(c)) {
        consider_leading(c);
    } else if (td_co_may_append(c)) {
        consider_state(c);
    }
}

void td_co_lead_last(struct td_coordinator *c) {
    if (!td_co_may_append(c) || c->now_ms - c->out_ms < c->config.beat_ms) {
        return;
    }
    if (silent(c)) {
        c->out_ms = c->now_ms;
        td_co_want(c, td_follower_refresh(&c->follow)); // does another lead by now?
        return;
    }
    td_record record = TANDEM__JOURNAL__RECORD__INIT;
    Tandem__Journal__Beat body = TANDEM__JOURNAL__BEAT__INIT;
    record.body_case = TANDEM__JOURNAL__RECORD__BODY_BEAT;
    record.beat = &body;
    td_co_propose(c, &record);
}
