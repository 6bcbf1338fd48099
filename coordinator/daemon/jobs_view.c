// What users are told: see jobs_view.h.
#include "coordinator/daemon/jobs_view.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/utf8.h"

char *td_jobs_view_text(const struct td_jobs_view *v, const char *text) {
    struct td_buf whole = {0};
    td_utf8_repair(text ? text : "", text ? strlen(text) : 0, &whole);
    char *own = td_arena_strndup(v->arena, td_buf_str(&whole), whole.len);
    td_buf_fini(&whole);
    return own;
}

static Tandem__V1__JobState state_of(const struct td_job_state *j) {
    switch (j->outcome) {
    case TANDEM__JOURNAL__OUTCOME__SUCCEEDED:
        return TANDEM__V1__JOB_STATE__SUCCEEDED;
    case TANDEM__JOURNAL__OUTCOME__FAILED:
        return TANDEM__V1__JOB_STATE__FAILED;
    case TANDEM__JOURNAL__OUTCOME__CANCELLED:
        return TANDEM__V1__JOB_STATE__CANCELLED;
    default:
        return j->gang_count ? TANDEM__V1__JOB_STATE__RUNNING : TANDEM__V1__JOB_STATE__QUEUED;
    }
}

// The line of metrics that the job's trainer reported last; "": none.
static char *metrics_of(const struct td_jobs_view *v, uint64_t job) {
    for (size_t i = 0; i < td_coordinator_member_count(v->machine); i++) {
        struct td_member_view m;
        td_coordinator_member_view(v->machine, i, &m);
        const Tandem__Sync__TrainReport *t = m.report ? m.report->train : NULL;
        if (t && t->job == job && t->metrics[0]) {
            return td_jobs_view_text(v, t->metrics);
        }
    }
    return "";
}

// What it waits for, and on whom, where that is a member that the text does not name.
static char *wait_text(const struct td_jobs_view *v, const struct td_job_view *view) {
    char whole[sizeof view->text + 24], member[20];
    snprintf(member, sizeof member, "%016" PRIx64, view->member);
    bool named = !view->member || view->wait == TD_WAIT_LEADER || strstr(view->text, member);
    snprintf(whole, sizeof whole, "%s%s%s", view->text, named ? "" : ", on ", named ? "" : member);
    return td_jobs_view_text(v, whole);
}

bool td_jobs_view_job(const struct td_jobs_view *v, uint64_t id, Tandem__V1__Job *out) {
    const struct td_job_state *j = td_journal_job(td_coordinator_state(v->machine), id);
    struct td_job_view view;
    if (!j || !td_coordinator_job_view(v->machine, id, &view)) {
        return false;
    }
    tandem__v1__job__init(out);
    out->id = id;
    out->request_id = td_jobs_view_text(v, j->job->request_id);
    out->kind = j->job->rollout_log ? "grpo" : "sft";
    out->state = state_of(j);
    out->step = j->has_head ? j->head.step : 0;
    out->total_steps = view.total_steps;
    out->lineage = j->lineage;
    out->cause = td_jobs_view_text(v, j->cause);
    if (j->outcome == TANDEM__JOURNAL__OUTCOME__OUTCOME_NONE) {
        out->waits_for = wait_text(v, &view);
        out->waits_since_ms = v->now_ms - view.since_ms;
        out->metrics = metrics_of(v, id);
    } else {
        out->metrics = td_jobs_view_text(v, j->metrics);
    }
    const struct td_round_state *head = j->has_head ? td_job_round(j, j->head.step) : NULL;
    if (head && head->role_count) {
        out->weight_digest = head->roles[0]->weight_digest;
        out->state_digest = head->roles[0]->state_digest;
    }
    char folder[4096];
    snprintf(folder, sizeof folder, "%s/jobs/%" PRIu64, v->shared_dir, id);
    out->folder = td_jobs_view_text(v, folder);
    return true;
}

static Tandem__V1__Round *add_round(const struct td_jobs_view *v,
                                    Tandem__V1__ListRoundsResponse *out, uint64_t number,
                                    const char *state) {
    Tandem__V1__Round *r = td_arena_alloc(v->arena, sizeof *r);
    tandem__v1__round__init(r);
    r->round = number;
    r->state = (char *)state;
    out->rounds[out->n_rounds++] = r;
    return r;
}

void td_jobs_view_rounds(const struct td_jobs_view *v, uint64_t id,
                         Tandem__V1__ListRoundsResponse *out) {
    const struct td_job_state *j = td_journal_job(td_coordinator_state(v->machine), id);
    struct td_job_view view;
    tandem__v1__list_rounds_response__init(out);
    if (!j || !td_coordinator_job_view(v->machine, id, &view)) {
        return;
    }
    out->rounds = td_arena_alloc(v->arena, (j->round_count + 1) * sizeof *out->rounds);
    for (size_t i = 0; i < j->round_count; i++) {
        const struct td_round_state *s = &j->rounds[i];
        Tandem__V1__Round *r = add_round(v, out, s->round, s->committed ? "committed" : "sealed");
        r->groups = s->entry_count;
        for (size_t k = 0; k < s->entry_count; k++) {
            r->tokens += s->entries[k]->tokens;
        }
        if (s->committed && s->role_count) {
            r->weight_digest = s->roles[0]->weight_digest;
            r->state_digest = s->roles[0]->state_digest;
            r->generation = s->roles[0]->generation;
        }
    }
    bool live = j->outcome == TANDEM__JOURNAL__OUTCOME__OUTCOME_NONE;
    if (live && j->open_count && j->sealed == j->head.step) {
        add_round(v, out, j->sealed + 1, "open")->groups = j->open_count;
    }
    if (live && out->n_rounds) {
        Tandem__V1__Round *last = out->rounds[out->n_rounds - 1];
        last->waits_for = wait_text(v, &view);
        last->waits_since_ms = v->now_ms - view.since_ms;
    }
}

static const char *waits_for(const Tandem__Sync__Report *r) {
    if (r->trouble[0]) {
        return r->trouble;
    }
    if (r->train) {
        return r->train->waits_for;
    }
    bool any = r->rollout && r->rollout->n_units;
    return any ? r->rollout->units[0]->waits_for : "";
}

static void put_workers(const struct td_jobs_view *v, const Tandem__Sync__Report *r,
                        Tandem__V1__Member *m) {
    m->worker_states =
        td_arena_alloc(v->arena, (r->n_worker_states + 1) * sizeof *m->worker_states);
    for (size_t i = 0; i < r->n_worker_states; i++) {
        const Tandem__Sync__WorkerState *from = r->worker_states[i];
        Tandem__V1__WorkerState *w = td_arena_alloc(v->arena, sizeof *w);
        tandem__v1__worker_state__init(w);
        w->pid = from->pid;
        w->state = td_jobs_view_text(v, from->state);
        w->doing = td_jobs_view_text(v, from->doing);
        w->for_ms = from->for_ms;
        m->worker_states[m->n_worker_states++] = w;
    }
}

void td_jobs_view_members(const struct td_jobs_view *v, Tandem__V1__ListMembersResponse *out) {
    size_t n = td_coordinator_member_count(v->machine);
    tandem__v1__list_members_response__init(out);
    out->members = td_arena_alloc(v->arena, (n + 1) * sizeof *out->members);
    for (size_t i = 0; i < n; i++) {
        struct td_member_view from;
        td_coordinator_member_view(v->machine, i, &from);
        if (!from.report) {
            continue;
        }
        Tandem__V1__Member *m = td_arena_alloc(v->arena, sizeof *m);
        tandem__v1__member__init(m);
        bool train = from.report->kind == TANDEM__SYNC__MEMBER_KIND__TRAIN;
        m->id = from.id;
        m->kind = train ? "train" : "rollout";
        m->host = td_jobs_view_text(v, from.report->host);
        m->http = td_jobs_view_text(v, from.report->http);
        m->job = from.serves;
        m->workers = from.report->workers;
        m->workers_ready = from.report->workers_ready;
        m->units = (uint32_t)from.units;
        m->waits_for =
            td_jobs_view_text(v, from.alive ? waits_for(from.report) : "silent: taken for dead");
        m->heard_ms = v->now_ms - from.heard_ms;
        m->build = td_jobs_view_text(v, from.report->build);
        m->device = td_jobs_view_text(v, from.report->device);
        put_workers(v, from.report, m);
        out->members[out->n_members++] = m;
    }
}
