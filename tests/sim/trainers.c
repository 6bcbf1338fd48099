// The train controllers' shell.
#include <inttypes.h>
#include <string.h>

#include "lib/base/mem.h"
#include "tests/sim/sim.h"

struct round_answer {
    uint64_t job, round, batch;
    struct td_pos ref;
    uint32_t missing[64];
    size_t missing_count;
};

static void answer_round(struct sim *s, struct event *e) {
    const struct round_answer *a = e->msg->more;
    struct trainer *t = &s->trainers[s->procs[e->proc].index];
    struct td_round_read r = {.job = a->job,
                              .round = a->round,
                              .ref = a->ref,
                              .ok = a->missing_count == 0,
                              .updates = UPDATES,
                              .missing = a->missing,
                              .missing_count = a->missing_count,
                              .cause = "record gone"};
    t->batch_round = a->round;
    t->batch_ref = a->ref;
    t->batch = a->batch;
    struct td_trainc_event ev = {.kind = TD_TC_ROUND_READ, .round = &r};
    trainer_event(s, e->proc, &ev);
}

static void read_round(struct sim *s, int trainer, const struct td_trainc_effect *e) {
    struct msg *m = sim_msg();
    struct round_answer *a = m->more = td_alloc(sizeof *a);
    const struct td_journal_state *state = td_trainc_journal(s->trainers[trainer].machine);
    const struct td_round_state *r = td_job_round(td_journal_job(state, e->job), e->round);
    int job = job_index(s, e->job);
    a->job = e->job;
    a->round = e->round;
    a->ref = e->ref;
    for (size_t i = 0; r && i < r->entry_count && !s->p.rows_job; i++) {
        bool there = true;
        for (size_t k = 0; k < r->entries[i]->n_parts; k++) {
            const struct rollout_record *at = rollout_at(s, job, r->entries[i]->parts[k]);
            there = there && at && at->crc == r->entries[i]->parts[k]->crc;
        }
        if (!there && a->missing_count < 64) {
            a->missing[a->missing_count++] = (uint32_t)i;
        }
    }
    a->batch = r ? batch_of(s, job, r->entries, r->entry_count) : 0;
    sim_after(s, sim_between(s, 2, 15), proc_of(TRAINER, trainer, 0), answer_round, m);
}

static void execute(struct sim *s, int proc, struct td_trainc_effect *e) {
    int trainer = s->procs[proc].index;
    switch (e->kind) {
    case TD_TC_FETCH_END:
        journal_fetch_end(s, proc);
        break;
    case TD_TC_JOURNAL_RESET:
        journal_reset(s, proc);
        break;
    case TD_TC_STOP:
        sim_violation(s, "%s stops: %s", proc_name(proc), e->text);
        break;
    case TD_TC_READ_ROLLOUT:
        rollout_follow(s, trainer, e);
        break;
    case TD_TC_READ_ROUND:
        read_round(s, trainer, e);
        break;
    case TD_TC_DROP_ROUND:
        s->trainers[trainer].batch_round = 0;
        break;
    case TD_TC_SETUP:
    case TD_TC_RING:
    case TD_TC_LOAD:
    case TD_TC_PREP:
    case TD_TC_STEP:
    case TD_TC_FINISH:
    case TD_TC_DIGEST:
    case TD_TC_SAVE:
        rank_command(s, trainer, e);
        break;
    case TD_TC_RESTART_WORKER:
        sim_kill(s, proc_of(RANK, trainer, (int)e->worker));
        break;
    case TD_TC_VERIFY:
    case TD_TC_LIST_FOLDERS:
    case TD_TC_DELETE_FOLDER:
    case TD_TC_READ_METRICS:
    case TD_TC_STAGE_METRICS:
    case TD_TC_CLOSE_METRICS:
    case TD_TC_CUT_METRICS:
        disk_effect(s, trainer, e);
        break;
    case TD_TC_REPORT: {
        struct msg *m = sim_msg();
        m->report = e->report;
        e->report = NULL;
        send_report(s, proc, m);
        break;
    }
    }
}

void trainer_event(struct sim *s, int proc, struct td_trainc_event *e) {
    struct trainer *t = &s->trainers[s->procs[proc].index];
    if (!t->machine) {
        return;
    }
    struct td_trainc_effects out = {0};
    td_trainc_step(t->machine, e, s->now, &out);
    for (size_t i = 0; i < out.count && !s->violated; i++) {
        execute(s, proc, &out.items[i]);
    }
    td_trainc_effects_fini(&out);
}

static void tick(struct sim *s, struct event *e) {
    struct td_trainc_event r = {.kind = TD_TC_TICK};
    trainer_event(s, e->proc, &r);
    sim_after(s, sim_between(s, 120, 180), e->proc, tick, NULL);
}

void trainer_start(struct sim *s, int proc) {
    int trainer = s->procs[proc].index;
    struct trainer *t = &s->trainers[trainer];
    struct member *m = member_of(s, proc);
    Tandem__Journal__DataIndex index;
    sim_index(s, sim_job_of_member(s, trainer), &index);
    if (s->p.assign) {
        index = m->index;
        memcpy(t->spec, s->jobs[job_index(s, m->job)].spec, sizeof t->spec);
    }
    struct td_trainc_config config = {
        .member = (uint64_t)proc + 1,
        .incarnation = s->p.assign ? m->incarnation : td_rng_next(&s->rng) | 1,
        .job = s->p.assign ? m->job : 0,
        .workers = NW,
        .build = "build",
        .device = "cpu",
        .index = &index,
        .report_ms = 300,
        .plan_of = sim_plan_train,
        .user = t,
    };
    t->machine = td_trainc_new(&config);
    t->scan = 0;
    t->pumping = false;
    t->batch_round = 0;
    journal_open(s, proc);
    sim_after(s, sim_between(s, 1, 150), proc, tick, NULL);
    for (int i = 0; i < NW; i++) {
        if (s->procs[proc_of(RANK, trainer, i)].alive) {
            rank_attach(s, trainer, i);
        }
    }
}
