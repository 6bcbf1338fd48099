// What lies on disks: recovery checkpoints, which all train controllers share, and the metric lines
// of each.
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "tests/sim/sim.h"

struct folder *find_folder(struct sim *s, int job, const char *name) {
    for (size_t i = s->folder_count; i-- > 0;) {
        struct folder *f = &s->folders[i];
        if (!f->gone && job_index(s, f->job) == job && strcmp(f->name, name) == 0) {
            return f;
        }
    }
    return NULL;
}

struct folder *find_checkpoint(struct sim *s, uint64_t id) {
    for (size_t i = s->folder_count; i-- > 0;) {
        if (s->folders[i].id == id) {
            return &s->folders[i];
        }
    }
    return NULL;
}

void disk_save_begin(struct sim *s, int trainer, const struct td_trainc_effect *e) {
    const struct rank *r = &s->trainers[trainer].ranks[0];
    struct folder *f = find_folder(s, job_index(s, e->job), e->text);
    if (f && strncmp(e->text, "global_step_", 12) != 0) {
        sim_violation(s, "recovery folder %s is written twice", e->text);
        return;
    }
    if (!f) {
        TD_GROW(s->folders, s->folder_cap, s->folder_count + 1);
        f = &s->folders[s->folder_count++];
        *f = (struct folder){.name = td_strdup(e->text), .job = e->job};
    }
    f->id = e->id;
    f->generation = e->generation;
    f->step = r->version.step;
    f->state = r->state;
    f->manifest = td_hash_u64(e->id, r->state);
}

static void verified(struct sim *s, struct event *e) {
    const struct folder *f = find_checkpoint(s, e->a);
    bool ok = f && f->whole && !f->corrupt && !f->gone && f->manifest == e->b;
    struct td_trainc_event r = {
        .kind = TD_TC_CHECKPOINT_READ, .id = e->a, .ok = ok, .text = "its files differ"};
    trainer_event(s, e->proc, &r);
}

static void listed(struct sim *s, struct event *e) {
    struct td_folder *list = td_alloc_array(s->folder_count, sizeof *list);
    size_t n = 0;
    for (size_t i = 0; i < s->folder_count; i++) {
        const struct folder *f = &s->folders[i];
        if (!f->gone && f->job == e->a && strncmp(f->name, "step-", 5) == 0) {
            list[n++] = (struct td_folder){f->name, f->id, f->generation, f->step};
        }
    }
    struct td_trainc_event r = {.kind = TD_TC_FOLDERS, .folders = list, .folder_count = n};
    trainer_event(s, e->proc, &r);
    td_free(list);
}

static void delete_folder(struct sim *s, int trainer, const char *name) {
    uint64_t job = s->trainers[trainer].scan_job;
    for (size_t i = 0; i < s->folder_count; i++) {
        struct folder *f = &s->folders[i];
        bool same = !f->gone && strcmp(f->name, name) == 0 && (f->job == job || !job);
        if (same) {
            sim_trace(s, "T%d deletes %s", trainer, name);
            check_folder_deletion(s, f);
            f->gone = true;
        }
    }
}

// ---- metric lines ----

// Daemons have one folder for each job, where all of them see it.
struct lines *lines_of(struct sim *s, int trainer) {
    const struct member *m = member_of(s, proc_of(TRAINER, trainer, 0));
    return s->p.assign ? &s->lines[job_index(s, m->job)] : &s->trainers[trainer].lines;
}

struct line_change {
    enum td_trainc_effect_kind kind;
    uint64_t round, job, generation, lineage; // lineage: of the head
    struct td_pos ref;
};

static void change_lines(struct sim *s, struct event *e) {
    const struct line_change *c = e->msg->more;
    struct lines *lines = lines_of(s, s->procs[e->proc].index);
    struct td_metrics_on_disk *d = &lines->disk;
    if (c->kind != TD_TC_READ_METRICS) {
        sim_trace(s, "T%d %s the metrics of step %" PRIu64, s->procs[e->proc].index,
                  c->kind == TD_TC_STAGE_METRICS   ? "stages"
                  : c->kind == TD_TC_CLOSE_METRICS ? "closes"
                                                   : "cuts behind",
                  c->round);
    }
    switch (c->kind) {
    case TD_TC_READ_METRICS:
        break;
    case TD_TC_STAGE_METRICS:
        d->has_staged = true;
        d->staged_step = c->round;
        d->staged_ref = c->ref;
        break;
    case TD_TC_CLOSE_METRICS:
        if (s->p.assign && d->has_line && c->round <= d->step) {
            break; // the member that led before was late: metrics_file.c finds its line
        }
        if (s->p.assign && (!d->has_staged || d->staged_step != c->round)) {
            sim_violation(s, "the staged line of step %" PRIu64 " is gone", c->round);
        }
        if (d->has_line && c->round <= d->step) {
            sim_violation(s, "metrics.jsonl of T%d: step %" PRIu64 " behind step %" PRIu64,
                          s->procs[e->proc].index, c->round, d->step);
        }
        d->has_line = true;
        d->step = c->round;
        lines->count++;
        lines->version = (struct td_version){c->lineage, c->round};
        lines->generation = c->generation;
        lines->closed_ms = s->now;
        fault_at_close(s);
        break;
    default: // CUT_METRICS: lines of later steps go
        lines->count -= d->has_line && d->step > c->round ? d->step - c->round : 0;
        d->step = d->step < c->round ? d->step : c->round;
        break;
    }
    struct td_trainc_event r = {.kind = TD_TC_METRICS, .metrics = d};
    trainer_event(s, e->proc, &r);
}

static struct line_change *change_of(const struct sim *s, int trainer,
                                     const struct td_trainc_effect *e) {
    const struct td_journal_state *state = td_trainc_journal(s->trainers[trainer].machine);
    const struct td_job_state *j = td_journal_job(state, e->job);
    struct line_change c = {.kind = e->kind, .round = e->round, .job = e->job, .ref = e->ref};
    if (j) {
        c.lineage = j->head.lineage;
        c.generation = td_job_gang(j, "actor")->generation;
    }
    return td_memdup(&c, sizeof c);
}

void disk_effect(struct sim *s, int trainer, const struct td_trainc_effect *e) {
    int proc = proc_of(TRAINER, trainer, 0);
    int64_t delay = sim_between(s, 1, 20);
    switch (e->kind) {
    case TD_TC_VERIFY: {
        struct event *ev = sim_after(s, delay, proc, verified, NULL);
        ev->a = e->id;
        ev->b = e->digest;
        break;
    }
    case TD_TC_LIST_FOLDERS:
        sim_after(s, delay, proc, listed, NULL)->a = e->job;
        break;
    case TD_TC_DELETE_FOLDER:
        delete_folder(s, trainer, e->text);
        break;
    default: {
        struct msg *m = sim_msg();
        m->more = change_of(s, trainer, e);
        sim_after(s, delay, proc, change_lines, m);
        break;
    }
    }
}
