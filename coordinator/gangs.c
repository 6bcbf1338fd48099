// The train gang of a job: who leads it, from which checkpoint it starts, and what happens when its
// state is lost or its redo differs.
#include "coordinator/coordinator_int.h"

#include <stdio.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/plant.h"

#define ROLE "actor"

const struct td_gang_state *td_co_gang(const struct td_job_state *j) {
    return td_job_gang(j, ROLE);
}

static struct td_member *gang_member(const struct td_coordinator *c, const struct td_job_state *j) {
    const struct td_gang_state *g = td_co_gang(j);
    return g ? td_co_member(c, g->spec->members[0]) : NULL;
}

const struct td_member *td_co_trainer(const struct td_coordinator *c,
                                      const struct td_job_state *j) {
    const struct td_member *m = gang_member(c, j);
    return m && m->report && m->report->train && td_co_alive(c, m) ? m : NULL;
}

const Tandem__Sync__TrainReport *td_co_train_report(const struct td_coordinator *c,
                                                    const struct td_job_state *j) {
    const struct td_member *m = td_co_trainer(c, j);
    const Tandem__Sync__TrainReport *t = m ? m->report->train : NULL;
    bool ours = t && t->job == j->job->job && t->generation == td_co_gang(j)->generation;
    return ours ? t : NULL;
}

static bool serves_another(const struct td_coordinator *c, uint64_t member, uint64_t job) {
    const struct td_job_state *j = td_co_gang_job(c, member);
    return j && j->job->job != job;
}

// The member that leads now if it can, else the one with the lowest id.
static const struct td_member *choose(const struct td_coordinator *c,
                                      const struct td_job_state *j) {
    const struct td_member *best = NULL, *now = gang_member(c, j);
    for (size_t i = 0; i < c->member_count; i++) {
        const struct td_member *m = &c->members[i];
        bool able = td_co_alive(c, m) && m->report->kind == TANDEM__SYNC__MEMBER_KIND__TRAIN &&
                    m->report->workers_ready > 0 &&
                    m->report->workers_ready == m->report->workers && td_co_fits(m, j) &&
                    !serves_another(c, m->id, j->job->job);
        if (able && (!best || m == now || (best != now && m->id < best->id))) {
            best = m;
        }
    }
    return best;
}

// A live train member that tried and cannot serve the job; NULL: none.
static const struct td_member *unfit_member(const struct td_coordinator *c, uint64_t job) {
    for (size_t i = 0; i < c->member_count; i++) {
        const struct td_member *m = &c->members[i];
        if (m->unfit == job && td_co_alive(c, m) &&
            m->report->kind == TANDEM__SYNC__MEMBER_KIND__TRAIN) {
            return m;
        }
    }
    return NULL;
}

static void wait_for_trainer(struct td_coordinator *c, struct td_job *job) {
    const struct td_member *unfit = unfit_member(c, job->id);
    if (!unfit) {
        td_co_wait(c, job, TD_WAIT_TRAINER, 0,
                   "a free train member with the job's files and workers");
        return;
    }
    const char *trouble = unfit->report->trouble;
    td_co_wait(c, job, TD_WAIT_TRAINER, unfit->id, "a train member that can serve it; %016llx: %s",
               (unsigned long long)unfit->id,
               trouble[0] ? trouble : "its files are others, or it failed before");
}

static bool put_gang(struct td_coordinator *c, struct td_job *job, const struct td_job_state *j) {
    const struct td_member *m = choose(c, j);
    if (!m) {
        wait_for_trainer(c, job);
        return false;
    }
    td_record record = TANDEM__JOURNAL__RECORD__INIT;
    Tandem__Journal__Gang body = TANDEM__JOURNAL__GANG__INIT;
    Tandem__Journal__GangSpec spec = TANDEM__JOURNAL__GANG_SPEC__INIT, *specs[] = {&spec};
    uint64_t members[] = {m->id};
    spec.job = job->id;
    spec.role = (char *)ROLE;
    spec.ranks = m->report->workers;
    spec.n_members = 1;
    spec.members = members;
    spec.build = m->report->build;
    spec.device = m->report->device;
    body.n_gangs = 1;
    body.gangs = specs;
    body.generation = c->follow.state.generation + 1;
    record.body_case = TANDEM__JOURNAL__RECORD__BODY_GANG;
    record.gang = &body;
    return td_co_propose(c, &record);
}

static bool called_bad(const Tandem__Sync__TrainReport *t, uint64_t id) {
    for (size_t i = 0; i < t->n_bad_checkpoints && !TD_PLANTED(NEWEST_TRUSTED); i++) {
        if (t->bad_checkpoints[i] == id) {
            return true;
        }
    }
    return false;
}

static bool put_restore(struct td_coordinator *c, struct td_job *job, const struct td_job_state *j,
                        const Tandem__Sync__TrainReport *t) {
    td_record record = TANDEM__JOURNAL__RECORD__INIT;
    Tandem__Journal__Restore body = TANDEM__JOURNAL__RESTORE__INIT;
    body.job = job->id;
    body.gang = td_co_gang(j)->spec->gang;
    body.generation = td_co_gang(j)->generation;
    record.body_case = TANDEM__JOURNAL__RECORD__BODY_RESTORE;
    record.restore = &body;
    for (size_t i = j->kept_count; i-- > 0;) {
        if (!called_bad(t, j->kept[i]->id)) {
            body.checkpoint = j->kept[i]->id;
            return td_co_propose(c, &record);
        }
    }
    if (j->initial_kept) {
        return td_co_propose(c, &record);
    }
    char cause[512];
    snprintf(cause, sizeof cause, "no checkpoint is left to start from: %.200s and %.200s are bad",
             j->kept[0]->folder, j->kept[j->kept_count - 1]->folder);
    return td_co_end_job(c, j, TANDEM__JOURNAL__OUTCOME__FAILED, cause);
}

// How often its state was lost without a COMMIT in between, as far as this leader has seen it.
static uint64_t times_lost(struct td_job *job, const struct td_job_state *j, uint64_t generation) {
    if (!td_version_equal(job->lost.head, j->head)) {
        job->lost.head = j->head;
        job->lost.times = 0;
    }
    job->lost.times += job->lost.generation != generation;
    job->lost.generation = generation;
    return job->lost.times;
}

static bool replace_lost(struct td_coordinator *c, struct td_job *job, const struct td_job_state *j,
                         const Tandem__Sync__TrainReport *t) {
    uint64_t max = job->plan.max_attempts, times = times_lost(job, j, t->generation);
    if (max == 0 || times < max) {
        return put_gang(c, job, j);
    }
    char cause[512];
    snprintf(
        cause, sizeof cause,
        "the train workers lost their state %llu times in a row behind step %llu "
        "(tandem.max_attempts), at last: %.200s; see what they logged; the checkpoints are kept",
        (unsigned long long)times, (unsigned long long)j->head.step, t->lost_cause);
    return td_co_end_job(c, j, TANDEM__JOURNAL__OUTCOME__FAILED, cause);
}

bool td_co_decide_gang(struct td_coordinator *c, struct td_job *job, const struct td_job_state *j) {
    const struct td_gang_state *g = td_co_gang(j);
    if (!g) {
        return put_gang(c, job, j);
    }
    const struct td_member *m = gang_member(c, j);
    int64_t heard = m && m->report ? m->heard_ms : c->led_ms;
    bool unable = m && m->report && td_co_unfit(c, m, job->id);
    if (unable || c->now_ms - heard >= c->config.member_timeout_ms) {
        return put_gang(c, job, j);
    }
    const Tandem__Sync__TrainReport *t = td_co_train_report(c, j);
    if (t && t->lost) {
        return replace_lost(c, job, j, t);
    }
    if (!g->has_base) {
        // It may load a base only if it sees RESTORE while it runs (A3), so it has to be here.
        if (t) {
            return put_restore(c, job, j, t);
        }
        td_co_wait(c, job, TD_WAIT_LOAD, g->spec->members[0], "member %016llx to take up the gang",
                   (unsigned long long)g->spec->members[0]);
    }
    return false;
}

static bool put_fork(struct td_coordinator *c, const struct td_job_state *j,
                     const Tandem__Sync__TrainReport *t) {
    td_record record = TANDEM__JOURNAL__RECORD__INIT;
    Tandem__Journal__Fork body = TANDEM__JOURNAL__FORK__INIT;
    body.job = j->job->job;
    body.lineage = t->lineage + 1;
    body.from = t->mismatch->version->step - 1;
    body.gang = t->gang;
    body.generation = t->generation;
    body.disproved = t->mismatch->commit;
    body.reason = TANDEM__JOURNAL__FORK_REASON__FORK_MISMATCH;
    Tandem__Journal__Position current = TANDEM__JOURNAL__POSITION__INIT;
    const struct td_round_state *r = td_job_round(j, t->mismatch->version->step);
    if (TD_PLANTED(FORK_LINEAGE) && r) {
        body.lineage = j->lineage + 1;
        current.offset = r->commit.offset;
        current.crc = r->commit.crc;
        body.disproved = &current;
    }
    record.body_case = TANDEM__JOURNAL__RECORD__BODY_FORK;
    record.fork = &body;
    return td_co_propose(c, &record);
}

static bool in_force(const struct td_job_state *j, const Tandem__Sync__Mismatch *m) {
    const struct td_round_state *r = m->version ? td_job_round(j, m->version->step) : NULL;
    return r && r->committed && td_pos_equal(r->commit, td_pos_of(m->commit));
}

// Not the same layout, build and device as then: another result is no mistake of the machine.
static bool gang_changed(const struct td_job_state *j, const Tandem__Sync__Mismatch *m) {
    const struct td_round_state *r = td_job_round(j, m->version->step);
    const Tandem__Journal__GangSpec *now = td_co_gang(j)->spec;
    const Tandem__Journal__RoleCommit *then = r && r->role_count ? r->roles[0] : NULL;
    return then && (strcmp(then->build, now->build) != 0 || then->ranks != now->ranks ||
                    strcmp(then->device, now->device) != 0);
}

static bool decide_mismatch(struct td_coordinator *c, struct td_job *job,
                            const struct td_job_state *j, const Tandem__Sync__TrainReport *t) {
    const Tandem__Sync__Mismatch *m = t->mismatch;
    bool real = in_force(j, m) && m->version->step > 0;
    if (m->version && m->version->step > 0 &&
        (job->plan.fork_on_mismatch || (real && gang_changed(j, m)))) {
        return put_fork(c, j, t);
    }
    if (!in_force(j, m)) {
        return false;
    }
    char cause[512];
    snprintf(cause, sizeof cause,
             "redo of step %llu differs: state %016llx by build %.100s, committed was %016llx by "
             "build %.100s",
             (unsigned long long)m->version->step, (unsigned long long)m->found,
             td_co_gang(j)->spec->build, (unsigned long long)m->committed, m->committed_build);
    return td_co_end_job(c, j, TANDEM__JOURNAL__OUTCOME__FAILED, cause);
}

// A13: a sealed record of a committed round cannot be read. Rows of the data set are lost for good
// in any round, since nobody can make them again.
static bool lost_for_good(struct td_coordinator *c, const struct td_job_state *j,
                          const Tandem__Sync__TrainReport *t) {
    const struct td_round_state *r = td_job_round(j, t->missing_round);
    if (!r || !td_pos_equal(r->ref, td_pos_of(t->missing_ref))) {
        return false;
    }
    char cause[512];
    snprintf(cause, sizeof cause,
             "a %s of step %llu%s cannot be read again: %.300s; start again from step %llu",
             j->job->rollout_log ? "record" : "row", (unsigned long long)t->missing_round,
             t->missing_round <= j->head.step ? ", which is committed," : "", t->missing_cause,
             (unsigned long long)(j->kept_count ? j->kept[j->kept_count - 1]->version->step : 0));
    return td_co_end_job(c, j, TANDEM__JOURNAL__OUTCOME__FAILED, cause);
}

bool td_co_decide_trouble(struct td_coordinator *c, struct td_job *job,
                          const struct td_job_state *j) {
    const Tandem__Sync__TrainReport *t = td_co_train_report(c, j);
    if (!t) {
        return false;
    }
    if (t->mismatch && decide_mismatch(c, job, j, t)) {
        return true;
    }
    if (t->failed[0]) {
        return td_co_end_job(c, j, TANDEM__JOURNAL__OUTCOME__FAILED, t->failed);
    }
    if (t->n_missing == 0 || !j->has_head) {
        return false;
    }
    bool for_good = t->missing_round <= j->head.step || j->job->rollout_log == 0;
    return for_good ? lost_for_good(c, j, t) : td_co_reseal(c, job, j, t);
}
