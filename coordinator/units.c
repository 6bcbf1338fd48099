// Units: groups that are wanted are cut into pieces and leased to rollout members with room. Leases
// are orders, not records (rule A10): a wrong one costs only work.
#include "coordinator/coordinator_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/plant.h"
#include "lib/base/rng.h"

static void unit_fini(struct td_unit *u) {
    td_free(u->groups);
    *u = (struct td_unit){0};
}

void td_co_drop_units(struct td_job *job) {
    for (size_t i = 0; i < job->unit_count; i++) {
        unit_fini(&job->units[i]);
    }
    job->unit_count = 0;
    job->left_count = job->left_at = 0;
}

static bool live(const struct td_job *job, const struct td_job_state *j) {
    return job && j && job->plan_known && j->outcome == TANDEM__JOURNAL__OUTCOME__OUTCOME_NONE;
}

bool td_co_target(const struct td_coordinator *c, const struct td_job_state *j,
                  struct td_version *version, uint64_t *digest) {
    const struct td_round_state *r = j->has_head ? td_job_round(j, j->head.step) : NULL;
    if (!r || r->role_count == 0) {
        return false;
    }
    *version = j->head;
    *digest = r->roles[0]->weight_digest;
    const Tandem__Sync__TrainReport *t = td_co_train_report(c, j);
    if (TD_PLANTED(REDO_CAPACITY) && t && t->finished && t->finished->version &&
        t->finished->version->step < j->head.step) {
        *version = td_version_of(t->finished->version);
        *digest = t->finished->weight_digest;
    }
    return true;
}

// ---- validation ----

bool td_job_eval_due(const struct td_job *job, const struct td_job_state *j) {
    const struct td_job_plan *p = &job->plan;
    if (!j->has_head || p->val_rows == 0) {
        return false;
    }
    uint64_t step = j->head.step;
    if (step == 0) {
        return p->val_before_train;
    }
    return p->test_freq > 0 && (step % p->test_freq == 0 || step == p->total_steps);
}

static bool eval_is_of(const struct td_job *job, struct td_version version) {
    return job->eval_started && td_version_equal(job->eval_version, version);
}

// A train member that has heard of this term closes no step on the word of an older leader any
// more: only then is absent what it says to be so.
enum td_line td_co_line_of_head(const struct td_coordinator *c, const struct td_job_state *j) {
    const struct td_member *m = td_co_trainer(c, j);
    const Tandem__Sync__TrainReport *t = td_co_train_report(c, j);
    if (t && t->metrics_known && t->lineage == j->lineage) {
        if (t->has_metrics && t->metrics_step >= j->head.step) {
            return TD_LINE_THERE;
        }
        if (m->report->term == c->follow.state.term) {
            return TD_LINE_ABSENT;
        }
    }
    return TD_LINE_UNKNOWN;
}

static enum td_line line_before_eval(const struct td_coordinator *c, const struct td_job_state *j) {
    return TD_PLANTED(LINE_UNKNOWN) ? TD_LINE_ABSENT : td_co_line_of_head(c, j);
}

static void begin_eval(struct td_coordinator *c, struct td_job *job, struct td_version version) {
    for (size_t i = 0; i < job->eval_count; i++) {
        td_free(job->eval[i].score);
    }
    td_free(job->eval);
    job->eval_count = job->plan.val_rows;
    job->eval = td_alloc_array(job->eval_count, sizeof *job->eval);
    job->eval_done = 0;
    job->eval_version = version;
    job->eval_started = true;
    c->dirty = c->due_all = true;
}

bool td_co_eval_pending(struct td_coordinator *c, struct td_job *job,
                        const struct td_job_state *j) {
    enum td_line line = line_before_eval(c, j);
    if (!td_job_eval_due(job, j) || td_co_eval_done(job, j) || line == TD_LINE_THERE) {
        return false;
    }
    if (!eval_is_of(job, j->head) && line == TD_LINE_ABSENT) {
        begin_eval(c, job, j->head);
    }
    return true;
}

bool td_co_eval_done(const struct td_job *job, const struct td_job_state *j) {
    return j->has_head && eval_is_of(job, j->head) && job->eval_done == job->eval_count;
}

bool td_co_step_closed(const struct td_job *job, const struct td_job_state *j) {
    if (!j->has_head) {
        return false;
    }
    return j->sealed > j->head.step || j->open_count > 0 || !td_job_eval_due(job, j) ||
           td_co_eval_done(job, j);
}

// false: it is known, or of nothing.
static bool take_score(struct td_job *job, const Tandem__Sync__EvalScore *score) {
    if (score->index >= job->eval_count || job->eval[score->index].score || score->n_score == 0) {
        return false;
    }
    struct td_eval_score *to = &job->eval[score->index];
    to->count = score->n_score;
    to->score = td_alloc_array(to->count, sizeof *to->score);
    memcpy(to->score, score->score, to->count * sizeof *to->score);
    job->eval_done++;
    return true;
}

static struct td_unit *find_unit(struct td_job *job, const Tandem__Sync__UnitReport *r) {
    for (size_t i = 0; r->attempt && i < job->unit_count; i++) {
        if (job->units[i].term == r->attempt->term && job->units[i].n == r->attempt->n) {
            return &job->units[i];
        }
    }
    return NULL;
}

// What a report says of the units leased to its member.
bool td_co_scores(struct td_coordinator *c, const struct td_member *m) {
    const Tandem__Sync__RolloutReport *report = m->report->rollout;
    bool any = false;
    for (size_t i = 0; i < c->job_count; i++) {
        for (size_t k = 0; k < c->jobs[i]->unit_count; k++) {
            struct td_unit *u = &c->jobs[i]->units[k];
            u->seen = u->member == m->id ? false : u->seen;
        }
    }
    for (size_t i = 0; i < report->n_units; i++) {
        const Tandem__Sync__UnitReport *r = report->units[i];
        struct td_job *job = td_co_job(c, r->job);
        struct td_unit *u = job ? find_unit(job, r) : NULL;
        if (!u || u->member != m->id) {
            continue;
        }
        u->seen = true;
        bool done = r->n_done > 0;
        for (size_t k = 0; k < r->n_done; k++) {
            done = done && r->done[k];
        }
        u->done_ms = !done ? -1 : u->done_ms < 0 ? c->now_ms : u->done_ms;
        for (size_t k = 0; u->eval && eval_is_of(job, u->version) && k < r->n_scores; k++) {
            any = take_score(job, r->scores[k]) || any;
        }
    }
    return any;
}

// ---- what fails again and again ----

bool td_co_any_failed(const Tandem__Sync__RolloutReport *report) {
    for (size_t i = 0; i < report->n_units; i++) {
        if (report->units[i]->n_failures > 0) {
            return true;
        }
    }
    return false;
}

static bool end_failing(struct td_coordinator *c, const struct td_job *job,
                        const struct td_job_state *j, const Tandem__Sync__UnitReport *r,
                        size_t at) {
    struct td_group group = td_group_of(r->groups[at]);
    bool permuted = !r->eval && job->plan.shuffle && group.index < j->job->index->rows;
    uint64_t row =
        permuted ? td_permute(job->plan.seed, group.data_epoch, j->job->index->rows, group.index)
                 : group.index;
    char cause[512];
    snprintf(cause, sizeof cause,
             "row %llu (from 0, of those kept) of data.%s failed %u times (tandem.max_attempts), "
             "at last: %.200s; mend or remove the row, or allow more; the checkpoints are kept",
             (unsigned long long)row, r->eval ? "val_files" : "train_files", r->failures[at],
             r->failed);
    return td_co_end_job(c, j, TANDEM__JOURNAL__OUTCOME__FAILED, cause);
}

// The counts are kept by the member that has the unit: they outlive a leader, not the member.
bool td_co_decide_failures(struct td_coordinator *c, struct td_job *job,
                           const struct td_job_state *j) {
    bool ends = job->plan.max_attempts && !TD_PLANTED(TRIES_FOREVER);
    for (size_t i = 0; ends && i < c->member_count; i++) {
        const Tandem__Sync__Report *report = c->members[i].report;
        const Tandem__Sync__RolloutReport *of = report ? report->rollout : NULL;
        for (size_t k = 0; of && k < of->n_units; k++) {
            const Tandem__Sync__UnitReport *r = of->units[k];
            bool any = r->job == job->id && r->n_failures > 0;
            const struct td_unit *u = any ? find_unit(job, r) : NULL;
            for (size_t at = 0; u && at < r->n_failures && at < r->n_groups; at++) {
                if (u->member == report->member && r->failures[at] >= job->plan.max_attempts) {
                    return end_failing(c, job, j, r, at);
                }
            }
        }
    }
    return false;
}

// ---- what is wanted ----

struct wanted {
    struct td_group *groups; // in order
    bool *leased;            // parallel
    size_t count;
    bool eval;
};

static void want(struct wanted *w, struct td_group group) {
    w->groups[w->count++] = group;
}

static int by_group(const void *a, const void *b) {
    const struct td_group *x = a, *y = b;
    return td_group_compare(*x, *y);
}

static struct wanted wanted_eval(const struct td_job *job) {
    struct wanted w = {.groups = td_alloc_array(job->eval_count, sizeof *w.groups), .eval = true};
    for (size_t i = 0; i < job->eval_count; i++) {
        if (!job->eval[i].score) {
            want(&w, (struct td_group){job->eval_version.step, i});
        }
    }
    return w;
}

static struct wanted wanted_missing(const struct td_coordinator *c, const struct td_job_state *j) {
    struct wanted w = {0};
    const Tandem__Sync__TrainReport *t = td_co_train_report(c, j);
    const struct td_round_state *r = t ? td_co_missing_round(j, t) : NULL;
    if (!r || r->round != j->head.step + 1) {
        return w;
    }
    w.groups = td_alloc_array(t->n_missing, sizeof *w.groups);
    for (size_t i = 0; i < t->n_missing; i++) {
        const td_entry *found;
        if (t->missing[i] < r->entry_count && !td_co_find_missing(c, j, r, t->missing[i], &found)) {
            want(&w, td_group_of(r->entries[t->missing[i]]->group));
        }
    }
    qsort(w.groups, w.count, sizeof *w.groups, by_group); // the report may have any order
    return w;
}

static struct wanted wanted_open(const struct td_coordinator *c, const struct td_job *job,
                                 const struct td_job_state *j) {
    size_t n = job->plan.train_batch_size;
    struct wanted w = {.groups = td_alloc_array(n, sizeof *w.groups)};
    const td_entry **entries = td_alloc_array(n, sizeof *entries);
    td_co_find_open(c, job, j, entries);
    for (size_t i = 0; i < n; i++) {
        if (!entries[i]) {
            want(&w, j->open[i]);
        }
    }
    td_free(entries);
    return w;
}

// The groups that have to be generated now, in draw order.
static struct wanted find_wanted(const struct td_coordinator *c, const struct td_job *job,
                                 const struct td_job_state *j) {
    if (!j->has_head) {
        return (struct wanted){0};
    }
    if (j->sealed > j->head.step) {
        return wanted_missing(c, j);
    }
    if (j->open_count >= job->plan.train_batch_size && !job->plan.rows_job) {
        return wanted_open(c, job, j);
    }
    bool eval = j->open_count == 0 && eval_is_of(job, j->head);
    if (eval && line_before_eval(c, j) != TD_LINE_THERE) {
        return wanted_eval(job);
    }
    return (struct wanted){0};
}

// NULL: it is not wanted.
static bool *leased_mark(const struct wanted *w, struct td_group group) {
    const struct td_group *at =
        w->count ? bsearch(&group, w->groups, w->count, sizeof group, by_group) : NULL;
    return at ? &w->leased[at - w->groups] : NULL;
}

static bool unit_has(const struct td_unit *u, struct td_group group) {
    for (size_t i = 0; i < u->group_count; i++) {
        if (td_group_compare(u->groups[i], group) == 0) {
            return true;
        }
    }
    return false;
}

static bool leased(const struct td_job *job, struct td_group group, bool eval) {
    for (size_t i = 0; i < job->unit_count; i++) {
        if (job->units[i].eval == eval && unit_has(&job->units[i], group)) {
            return true;
        }
    }
    return false;
}

// ---- leases ----

static struct td_member *member_of(const struct td_coordinator *c, struct td_unit *u) {
    if (u->member_at >= c->member_count || c->members[u->member_at].id != u->member) {
        const struct td_member *m = td_co_member(c, u->member);
        u->member_at = m ? (size_t)(m - c->members) : c->member_count;
    }
    return u->member_at < c->member_count ? &c->members[u->member_at] : NULL;
}

static bool unit_is_over(const struct td_coordinator *c, const struct td_job *job,
                         const struct td_unit *u, const struct td_member *m, const struct wanted *w,
                         struct td_version target) {
    if (!td_version_equal(u->version, target) || u->eval != w->eval || !m ||
        c->now_ms - m->heard_ms >= job->plan.lease_ms || !td_co_serves(c, m, job->id)) {
        return true;
    }
    if (u->done_ms >= 0 && c->now_ms - u->done_ms >= job->plan.lease_ms) {
        return true; // said to be in the log for so long, and not found there
    }
    for (size_t i = 0; i < u->group_count; i++) {
        if (leased_mark(w, u->groups[i])) {
            return false;
        }
    }
    return true;
}

static void mark_leased(const struct wanted *w, const struct td_unit *u) {
    for (size_t i = 0; u->eval == w->eval && i < u->group_count; i++) {
        bool *leased = leased_mark(w, u->groups[i]);
        if (leased) {
            *leased = true;
        }
    }
}

static void end_leases(struct td_coordinator *c, struct td_job *job, const struct wanted *w,
                       struct td_version target) {
    size_t kept = 0;
    for (size_t i = 0; i < job->unit_count; i++) {
        struct td_unit *u = &job->units[i];
        struct td_member *m = member_of(c, u);
        if (unit_is_over(c, job, u, m, w, target)) {
            unit_fini(u);
            if (m) {
                m->due = true;
            }
        } else {
            mark_leased(w, u);
            job->units[kept++] = *u;
        }
    }
    job->unit_count = kept;
}

static bool holds(const Tandem__Sync__RolloutReport *r, struct td_version version,
                  uint64_t digest) {
    for (size_t i = 0; i < r->n_versions; i++) {
        if (r->versions[i]->digest == digest &&
            td_version_equal(td_version_of(r->versions[i]->version), version)) {
            return true;
        }
    }
    return false;
}

// Groups that each member would take of the job now. Of member `only` alone, unless 0.
static void count_rooms(struct td_coordinator *c, const struct td_job_state *j, uint64_t only) {
    struct td_version version;
    uint64_t digest;
    bool any = td_co_target(c, j, &version, &digest);
    for (size_t i = 0; i < c->member_count; i++) {
        struct td_member *m = &c->members[i];
        const Tandem__Sync__RolloutReport *r = m->report ? m->report->rollout : NULL;
        bool able = any && r && (!only || m->id == only) && td_co_alive(c, m) &&
                    r->job == j->job->job && td_co_fits(m, j) && holds(r, version, digest);
        m->room = able ? r->capacity : 0;
        m->units = 0;
    }
    for (size_t i = 0; i < c->job_count; i++) {
        for (size_t k = 0; k < c->jobs[i]->unit_count; k++) {
            struct td_unit *u = &c->jobs[i]->units[k];
            struct td_member *m = member_of(c, u);
            uint64_t taken = u->seen ? 0 : u->group_count;
            if (m) {
                m->room -= taken < m->room ? taken : m->room;
                m->units++;
            }
        }
    }
}

// With room; NULL: none has any.
static struct td_member *roomiest(struct td_coordinator *c) {
    struct td_member *best = NULL;
    for (size_t i = 0; i < c->member_count; i++) {
        struct td_member *m = &c->members[i];
        if (m->room > (best ? best->room : 0) && m->units < TD_MEMBER_UNITS_MAX) {
            best = m;
        }
    }
    return best;
}

static struct td_unit *add_unit(struct td_job *job, uint64_t member, size_t groups) {
    TD_GROW(job->units, job->unit_cap, job->unit_count + 1);
    struct td_unit *u = &job->units[job->unit_count++];
    *u = (struct td_unit){.member = member, .done_ms = -1};
    u->groups = td_alloc_array(groups, sizeof *u->groups);
    return u;
}

// Members that have not reported yet may hold units of the leader before: nothing that it could
// have leased is given to another until a lease time has passed.
static bool may_be_held(const struct td_coordinator *c, const struct td_job *job,
                        struct td_group group) {
    return !c->config.lead_at_once && c->now_ms - c->led_ms < job->plan.lease_ms &&
           td_group_compare(group, job->cursor_at_lead) < 0 && !TD_PLANTED(TAKEOVER_EXPIRES);
}

// The next groups that are left, as many as are in a unit, to a member with room.
static void lease_unit(struct td_coordinator *c, struct td_job *job, struct td_member *m) {
    uint64_t count = job->left_count - job->left_at;
    count = count < job->plan.unit_groups ? count : job->plan.unit_groups;
    struct td_unit *u = add_unit(job, m->id, count);
    u->member_at = (size_t)(m - c->members);
    u->term = c->follow.state.term;
    u->n = ++c->attempt;
    u->leased_ms = c->now_ms;
    u->eval = job->left_eval;
    u->version = job->left_version;
    u->group_count = count;
    memcpy(u->groups, &job->left[job->left_at], count * sizeof *u->groups);
    job->left_at += count;
    m->room -= count < m->room ? count : m->room;
    m->units++;
    m->due = true;
}

static void lease_left(struct td_coordinator *c, struct td_job *job, const struct td_job_state *j,
                       uint64_t only) {
    struct td_member *m;
    if (job->left_at == job->left_count) {
        return;
    }
    count_rooms(c, j, only);
    while (job->left_at < job->left_count && (m = roomiest(c))) {
        lease_unit(c, job, m);
    }
}

static void find_left(struct td_coordinator *c, struct td_job *job, const struct wanted *w,
                      struct td_version target) {
    TD_GROW(job->left, job->left_cap, w->count);
    job->left_eval = w->eval;
    job->left_version = target;
    for (size_t i = 0; i < w->count; i++) {
        if (!w->leased[i] && (w->eval || !may_be_held(c, job, w->groups[i]))) {
            job->left[job->left_count++] = w->groups[i];
        }
    }
}

void td_co_place_left(struct td_coordinator *c, const struct td_member *m) {
    struct td_job *job = td_co_job(c, m->report->rollout->job);
    const struct td_job_state *j = job ? td_journal_job(&c->follow.state, job->id) : NULL;
    if (live(job, j)) {
        lease_left(c, job, j, m->id);
    }
}

// Nothing that was published is generated again: the trainer has to have read the rollout log to
// the end it had, and told what lies in it.
static bool scanned(const struct td_coordinator *c, const struct td_job_state *j) {
    const struct td_member *m = td_co_trainer(c, j);
    return m && m->report->train->job == j->job->job && m->report->train->scanned;
}

const char *td_co_unit_waits_for(const struct td_coordinator *c, const struct td_unit *u) {
    const struct td_member *m = td_co_member(c, u->member);
    const Tandem__Sync__RolloutReport *r = m && m->report ? m->report->rollout : NULL;
    for (size_t i = 0; r && i < r->n_units; i++) {
        const Tandem__Sync__Attempt *a = r->units[i]->attempt;
        if (a && a->term == u->term && a->n == u->n) {
            return r->units[i]->waits_for;
        }
    }
    return "its report";
}

void td_co_wait_for_units(struct td_coordinator *c, struct td_job *job,
                          const struct td_job_state *j, size_t found, size_t wanted) {
    bool eval = j->open_count == 0, begun = eval && eval_is_of(job, j->head);
    const struct td_member *trainer = td_co_trainer(c, j);
    const char *what = eval ? "rows of validation scored" : "groups arrived";
    if (!begun && !trainer) {
        td_co_wait(c, job, TD_WAIT_TRAINER, 0, "the train member to report");
    } else if (eval && !begun) {
        td_co_wait(c, job, TD_WAIT_SAVE, trainer->id,
                   "the train member to look whether the metrics of step %llu are written: %s",
                   (unsigned long long)j->head.step, td_co_trainer_waits_for(trainer));
    } else if (!eval && !scanned(c, j)) {
        td_co_wait(c, job, TD_WAIT_SCAN, trainer->id, "the rollout log to be read: %s",
                   td_co_trainer_waits_for(trainer));
    } else if (job->unit_count == 0) {
        td_co_wait(c, job, TD_WAIT_ROLLOUT, 0,
                   "%zu of %zu %s; a rollout member with room and the weights of step %llu", found,
                   wanted, what, (unsigned long long)j->head.step);
    } else {
        td_co_wait(c, job, eval ? TD_WAIT_VALIDATION : TD_WAIT_GROUPS, job->units[0].member,
                   "%zu of %zu %s, %zu units are leased: %s", found, wanted, what, job->unit_count,
                   td_co_unit_waits_for(c, &job->units[0]));
    }
}

void td_co_place(struct td_coordinator *c) {
    for (size_t i = 0; i < c->job_count; i++) {
        struct td_job *job = c->jobs[i];
        const struct td_job_state *j = td_journal_job(&c->follow.state, job->id);
        struct td_version target;
        uint64_t digest;
        if (!live(job, j) || !td_co_target(c, j, &target, &digest)) {
            td_co_drop_units(job);
            continue;
        }
        struct wanted w = find_wanted(c, job, j);
        w.leased = td_alloc_array(w.count, sizeof *w.leased);
        job->left_count = job->left_at = 0;
        end_leases(c, job, &w, target);
        if (w.eval || scanned(c, j)) {
            find_left(c, job, &w, target);
            lease_left(c, job, j, 0);
        }
        td_free(w.groups);
        td_free(w.leased);
    }
}

// Units of earlier terms that a member still holds: they stay with it.
bool td_co_adopt(struct td_coordinator *c, const struct td_member *m) {
    bool any = false;
    const Tandem__Sync__RolloutReport *report = m->report->rollout;
    for (size_t i = 0; i < report->n_units && !TD_PLANTED(TAKEOVER_EXPIRES); i++) {
        const Tandem__Sync__UnitReport *r = report->units[i];
        struct td_job *job = td_co_job(c, r->job);
        const struct td_job_state *j = td_journal_job(&c->follow.state, r->job);
        if (!live(job, j) || !j->has_head || r->eval || !r->attempt || r->n_groups == 0 ||
            r->attempt->term >= c->follow.state.term || find_unit(job, r) ||
            c->now_ms - c->led_ms >= job->plan.lease_ms) {
            continue;
        }
        bool free = true;
        for (size_t k = 0; k < r->n_groups; k++) {
            free = free && !leased(job, td_group_of(r->groups[k]), false);
        }
        if (!free) {
            continue;
        }
        struct td_unit *u = add_unit(job, m->id, r->n_groups);
        u->term = r->attempt->term;
        u->n = r->attempt->n;
        u->leased_ms = c->now_ms;
        u->version = j->head;
        for (size_t k = 0; k < r->n_groups; k++) {
            u->groups[u->group_count++] = td_group_of(r->groups[k]);
        }
        any = true;
    }
    return any;
}

const struct td_job_state *td_co_job_of_member(const struct td_coordinator *c,
                                               const struct td_member *m) {
    const struct td_journal_state *s = &c->follow.state;
    for (size_t i = 0; i < s->job_count; i++) {
        const struct td_job *job = td_co_job(c, s->jobs[i]->job->job);
        bool works =
            live(job, s->jobs[i]) && td_job_needs_rollout(job) && td_co_serves(c, m, job->id);
        if (works && td_co_fits(m, s->jobs[i])) {
            return s->jobs[i];
        }
    }
    return NULL;
}
