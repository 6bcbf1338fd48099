// Which job each member serves: one at a time. A train member belongs to the job whose gang the
// journal puts on it, as long as it can serve it, else to the first job that lacks a gang; jobs
// that find none wait their turn. Rollout members are shared out among the jobs that train. All of
// it is told in orders only: wrong ones cost work (rule A10).
#include "coordinator/coordinator_int.h"
#include "lib/base/plant.h"

enum { UNFIT_MS = 30000 };

static bool live(const struct td_coordinator *c, const struct td_job_state *j) {
    const struct td_job *job = j ? td_co_job(c, j->job->job) : NULL;
    return job && job->plan_known && j->outcome == TANDEM__JOURNAL__OUTCOME__OUTCOME_NONE;
}

bool td_job_needs_rollout(const struct td_job *job) {
    return !job->plan.rows_job || job->plan.val_rows > 0;
}

const struct td_job_state *td_co_gang_job(const struct td_coordinator *c, uint64_t member) {
    const struct td_journal_state *s = &c->follow.state;
    for (size_t i = 0; i < s->job_count; i++) {
        const struct td_gang_state *g = td_co_gang(s->jobs[i]);
        if (s->jobs[i]->outcome == TANDEM__JOURNAL__OUTCOME__OUTCOME_NONE && g &&
            g->spec->members[0] == member) {
            return s->jobs[i];
        }
    }
    return NULL;
}

bool td_co_serves(const struct td_coordinator *c, const struct td_member *m, uint64_t job) {
    return !c->config.assign || m->serves == job;
}

void td_co_served(struct td_coordinator *c, struct td_member *m) {
    const Tandem__Sync__Report *r = m->report;
    const struct td_job_state *j = td_journal_job(&c->follow.state, r->serves);
    if (m->report_count == 1 && live(c, j) && !TD_PLANTED(SERVE_TAKEOVER)) {
        m->serves = r->serves; // as the leader before had it
    }
    bool other_files = j && r->index && !td_co_fits(m, j);
    if (r->serves && (other_files || r->trouble[0])) {
        m->unfit = r->serves;
        m->unfit_ms = c->now_ms;
    } else if (m->unfit == r->serves) {
        m->unfit = 0;
    }
}

// It is asked again after a while: files may have come.
bool td_co_unfit(const struct td_coordinator *c, const struct td_member *m, uint64_t job) {
    return m->unfit == job && c->now_ms - m->unfit_ms < UNFIT_MS;
}

static bool trains(const struct td_member *m) {
    return m->report->kind == TANDEM__SYNC__MEMBER_KIND__TRAIN;
}

// Whether a live train member, but for m itself, is to serve the job.
static bool has_trainer(const struct td_coordinator *c, uint64_t job, const struct td_member *but) {
    bool has = false;
    for (size_t i = 0; i < c->member_count; i++) {
        const struct td_member *m = &c->members[i];
        has = has || (m != but && m->serves == job && td_co_alive(c, m) && trains(m));
    }
    return has;
}

static bool lacks_gang(const struct td_coordinator *c, const struct td_job_state *j) {
    return !td_co_gang(j) || !td_co_trainer(c, j);
}

static uint64_t job_to_train(const struct td_coordinator *c, const struct td_member *m) {
    const struct td_journal_state *s = &c->follow.state;
    const struct td_job_state *here = td_co_gang_job(c, m->id);
    if (here && !TD_PLANTED(SERVE_TAKEOVER)) {
        return td_co_unfit(c, m, here->job->job) ? 0 : here->job->job;
    }
    const struct td_job_state *now = td_journal_job(s, m->serves);
    if (live(c, now) && lacks_gang(c, now) && !td_co_unfit(c, m, m->serves)) {
        return m->serves;
    }
    for (size_t i = 0; i < s->job_count; i++) {
        const struct td_job_state *j = s->jobs[i];
        if (live(c, j) && lacks_gang(c, j) && !td_co_unfit(c, m, j->job->job) &&
            !has_trainer(c, j->job->job, m)) {
            return j->job->job;
        }
    }
    return 0;
}

static bool wants_rollout(const struct td_coordinator *c, const struct td_member *m,
                          const struct td_job_state *j) {
    return live(c, j) && td_co_gang(j) && td_job_needs_rollout(td_co_job(c, j->job->job)) &&
           !td_co_unfit(c, m, j->job->job);
}

// How many others roll out for the job.
static size_t others_of(const struct td_job *job, const struct td_member *m) {
    return job->rollers - (m->serves == job->id);
}

// The job with the fewest others; a member moves only to one that has none from one that has more.
static uint64_t job_to_roll_out(const struct td_coordinator *c, const struct td_member *m) {
    const struct td_journal_state *s = &c->follow.state;
    uint64_t best = 0;
    size_t fewest = 0;
    bool stays = wants_rollout(c, m, td_journal_job(s, m->serves));
    for (size_t i = 0; i < s->job_count; i++) {
        uint64_t job = s->jobs[i]->job->job;
        if (!wants_rollout(c, m, s->jobs[i])) {
            continue;
        }
        size_t others = others_of(td_co_job(c, job), m);
        if (!best || others < fewest) {
            best = job;
            fewest = others;
        }
    }
    bool moves = stays && fewest == 0 && others_of(td_co_job(c, m->serves), m) > 0;
    return stays && !moves ? m->serves : best;
}

static void count_roller(struct td_coordinator *c, uint64_t job, size_t n) {
    struct td_job *j = td_co_job(c, job);
    if (j) {
        j->rollers += n;
    }
}

static void count_rollers(struct td_coordinator *c) {
    for (size_t i = 0; i < c->job_count; i++) {
        c->jobs[i]->rollers = 0;
    }
    for (size_t i = 0; i < c->member_count; i++) {
        const struct td_member *m = &c->members[i];
        count_roller(c, m->serves, td_co_alive(c, m) && !trains(m));
    }
}

void td_co_assign(struct td_coordinator *c) {
    if (!c->config.assign || !td_co_leads(c)) {
        return;
    }
    count_rollers(c);
    for (size_t i = 0; i < c->member_count; i++) {
        struct td_member *m = &c->members[i];
        if (!td_co_alive(c, m)) {
            continue;
        }
        uint64_t job = trains(m) ? job_to_train(c, m) : job_to_roll_out(c, m);
        if (job == m->serves) {
            continue;
        }
        if (!trains(m)) {
            count_roller(c, m->serves, (size_t)-1);
            count_roller(c, job, 1);
        }
        m->serves = job;
        c->dirty = c->due_all = true;
    }
}
