// Rounds: DRAW, DROP, SEAL, RESEAL, and what the trainer has finished: COMMIT, CHECKPOINT. Fields
// of a report are copied as they are (rule A5): whether they are still current is the judge's to
// say.
#include "coordinator/coordinator_int.h"

#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/plant.h"

static bool put_commit(struct td_coordinator *c, const struct td_job_state *j,
                       const Tandem__Sync__TrainReport *t) {
    td_record record = TANDEM__JOURNAL__RECORD__INIT;
    Tandem__Journal__Commit body = TANDEM__JOURNAL__COMMIT__INIT;
    Tandem__Journal__RoleCommit role = TANDEM__JOURNAL__ROLE_COMMIT__INIT, *roles[] = {&role};
    Tandem__Sync__Finished *f = t->finished;
    if (!f || !f->version) {
        return false;
    }
    body.job = j->job->job;
    body.ref = f->version->step > 0 ? f->ref : NULL;
    body.version = f->version;
    body.n_roles = 1;
    body.roles = roles;
    role.role = (char *)"actor";
    role.gang = t->gang;
    role.generation = t->generation;
    role.weight_digest = f->weight_digest;
    role.state_digest = f->state_digest;
    const struct td_gang_state *g = td_co_gang(j);
    if (g) {
        role.build = g->spec->build;
        role.device = g->spec->device;
        role.ranks = g->spec->ranks;
    }
    record.body_case = TANDEM__JOURNAL__RECORD__BODY_COMMIT;
    record.commit = &body;
    return td_co_propose(c, &record);
}

static bool put_checkpoint(struct td_coordinator *c, const struct td_job_state *j,
                           const Tandem__Sync__TrainReport *t) {
    td_record record = TANDEM__JOURNAL__RECORD__INIT;
    if (!t->checkpoint || t->checkpoint->job != j->job->job) {
        return false;
    }
    record.body_case = TANDEM__JOURNAL__RECORD__BODY_CHECKPOINT;
    record.checkpoint = t->checkpoint;
    return td_co_propose(c, &record);
}

bool td_co_decide_results(struct td_coordinator *c, const struct td_job_state *j) {
    for (size_t i = 0; i < c->member_count; i++) {
        const struct td_member *m = &c->members[i];
        const Tandem__Sync__TrainReport *t = m->report ? m->report->train : NULL;
        if (t && t->job == j->job->job && (put_commit(c, j, t) || put_checkpoint(c, j, t))) {
            return true;
        }
    }
    return false;
}

// Gives out, once per oldest kept checkpoint, up to where the rollout log is not needed any more.
void td_co_trim_rollout(struct td_coordinator *c, struct td_job *job,
                        const struct td_job_state *j) {
    if (j->kept_count < TD_KEPT_MAX || job->trimmed_for == j->kept[0]->id) {
        return;
    }
    const Tandem__Journal__Checkpoint *oldest = j->kept[0];
    job->trimmed_for = oldest->id;
    struct td_coordinator_effect *e = td_co_push(c, TD_CO_TRIM_ROLLOUT);
    e->job = job->id;
    e->positions = td_alloc_array(oldest->n_positions, sizeof *e->positions);
    e->position_count = oldest->n_positions;
    for (size_t i = 0; i < oldest->n_positions; i++) {
        e->positions[i] =
            (struct td_log_position){oldest->positions[i]->partition, oldest->positions[i]->offset};
    }
}

static struct td_group group_at(const Tandem__Sync__TrainReport *t, size_t i) {
    const td_entry *e = t->arrived[i]->entry;
    return e ? td_group_of(e->group) : (struct td_group){0};
}

// members.c has put the list in order.
static const td_entry *find_arrived(const Tandem__Sync__TrainReport *t,
                                    const struct td_job_state *j, struct td_group group,
                                    uint64_t step) {
    size_t low = 0, high = t->n_arrived;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (td_group_compare(group_at(t, mid), group) < 0) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    for (; low < t->n_arrived && td_group_compare(group_at(t, low), group) == 0; low++) {
        const td_entry *e = t->arrived[low]->entry;
        if (e && e->group && td_job_allows_entry(j, e, step, NULL)) {
            return e;
        }
    }
    return NULL;
}

static const Tandem__Sync__TrainReport *arrivals_of(const struct td_coordinator *c,
                                                    const struct td_job_state *j) {
    const struct td_member *m = td_co_trainer(c, j);
    const Tandem__Sync__TrainReport *t = m ? m->report->train : NULL;
    return t && t->job == j->job->job ? t : NULL;
}

size_t td_co_find_open(const struct td_coordinator *c, const struct td_job *job,
                       const struct td_job_state *j, const td_entry **entries) {
    const Tandem__Sync__TrainReport *t = arrivals_of(c, j);
    size_t n = job->plan.train_batch_size, found = 0;
    n = n < j->open_count ? n : j->open_count;
    for (size_t i = 0; i < n; i++) {
        entries[i] = t ? find_arrived(t, j, j->open[i], j->head.step) : NULL;
        found += entries[i] != NULL;
    }
    size_t late = 0;
    for (size_t i = 0; TD_PLANTED(LATE_ATTEMPT) && t && found == n && i < t->n_arrived; i++) {
        bool fresh = late < n && t->arrived[i]->entry->min_step == j->head.step;
        if (fresh) {
            entries[late++] = t->arrived[i]->entry; // of dropped groups, too
        }
    }
    return found;
}

static bool same_place(const td_entry *a, const td_entry *b) {
    bool same = a->n_parts == b->n_parts;
    for (size_t i = 0; same && i < a->n_parts; i++) {
        same = a->parts[i]->partition == b->parts[i]->partition &&
               a->parts[i]->offset == b->parts[i]->offset;
    }
    return same;
}

bool td_co_find_missing(const struct td_coordinator *c, const struct td_job_state *j,
                        const struct td_round_state *r, size_t entry, const td_entry **found) {
    const Tandem__Sync__TrainReport *t = arrivals_of(c, j);
    *found = t ? find_arrived(t, j, td_group_of(r->entries[entry]->group), r->round - 1) : NULL;
    if (*found && same_place(*found, r->entries[entry])) {
        *found = NULL; // the copy that could not be read
    }
    return *found != NULL;
}

const struct td_round_state *td_co_missing_round(const struct td_job_state *j,
                                                 const Tandem__Sync__TrainReport *t) {
    const struct td_round_state *r = td_job_round(j, t->missing_round);
    bool open = r && t->n_missing && j->has_head && r->round > j->head.step;
    return open && td_pos_equal(r->ref, td_pos_of(t->missing_ref)) ? r : NULL;
}

// The same groups again, from newer copies (A12); it waits until all of them are there.
bool td_co_reseal(struct td_coordinator *c, struct td_job *job, const struct td_job_state *j,
                  const Tandem__Sync__TrainReport *t) {
    const struct td_round_state *r = td_co_missing_round(j, t);
    if (!r) {
        return false;
    }
    td_entry **entries = td_alloc_array(r->entry_count, sizeof *entries);
    memcpy(entries, r->entries, r->entry_count * sizeof *entries);
    size_t lacking = 0;
    for (size_t i = 0; i < t->n_missing; i++) {
        const td_entry *found = NULL;
        if (t->missing[i] < r->entry_count) {
            lacking += !td_co_find_missing(c, j, r, t->missing[i], &found);
        }
        if (found) {
            entries[t->missing[i]] = (td_entry *)found;
        }
    }
    bool put = false;
    if (lacking == 0) {
        td_record record = TANDEM__JOURNAL__RECORD__INIT;
        Tandem__Journal__Reseal body = TANDEM__JOURNAL__RESEAL__INIT;
        body.job = job->id;
        body.round = r->round;
        body.old_ref = t->missing_ref;
        body.n_entries = r->entry_count;
        body.entries = entries;
        record.body_case = TANDEM__JOURNAL__RECORD__BODY_RESEAL;
        record.reseal = &body;
        put = td_co_propose(c, &record);
    } else {
        td_co_wait(c, job, TD_WAIT_RECORDS, 0, "%zu lost groups of round %llu to come again: %s",
                   lacking, (unsigned long long)r->round, t->missing_cause);
    }
    td_free(entries);
    return put;
}

static bool put_draw(struct td_coordinator *c, const struct td_job_state *j, uint64_t n) {
    td_record record = TANDEM__JOURNAL__RECORD__INIT;
    Tandem__Journal__Draw body = TANDEM__JOURNAL__DRAW__INIT;
    uint64_t left = j->job->index->rows - j->cursor.index;
    body.job = j->job->job;
    body.data_epoch = j->cursor.data_epoch;
    body.from = j->cursor.index;
    body.to = body.from + (n < left ? n : left);
    record.body_case = TANDEM__JOURNAL__RECORD__BODY_DRAW;
    record.draw = &body;
    return td_co_propose(c, &record);
}

// What is open of data epochs that are over cannot fill a batch any more.
static bool put_epoch_end(struct td_coordinator *c, const struct td_job_state *j) {
    td_record record = TANDEM__JOURNAL__RECORD__INIT;
    Tandem__Journal__Drop body = TANDEM__JOURNAL__DROP__INIT;
    size_t n = 0;
    while (n < j->open_count && j->open[n].data_epoch < j->cursor.data_epoch) {
        n++;
    }
    if (n == 0) {
        return false;
    }
    Tandem__Journal__Group *groups = td_alloc_array(n, sizeof *groups);
    Tandem__Journal__Group **list = td_alloc_array(n, sizeof *list);
    body.reasons = td_alloc_array(n, sizeof *body.reasons);
    for (size_t i = 0; i < n; i++) {
        tandem__journal__group__init(&groups[i]);
        groups[i].data_epoch = j->open[i].data_epoch;
        groups[i].index = j->open[i].index;
        list[i] = &groups[i];
        body.reasons[i] = TANDEM__JOURNAL__DROP_REASON__DROP_EPOCH_END;
    }
    body.job = j->job->job;
    body.n_groups = body.n_reasons = n;
    body.groups = list;
    record.body_case = TANDEM__JOURNAL__RECORD__BODY_DROP;
    record.drop = &body;
    bool put = td_co_propose(c, &record);
    td_free(groups);
    td_free(list);
    td_free(body.reasons);
    return put;
}

static bool put_seal(struct td_coordinator *c, const struct td_job_state *j, td_entry **entries,
                     size_t n, Tandem__Journal__Draw *draw) {
    td_record record = TANDEM__JOURNAL__RECORD__INIT;
    Tandem__Journal__Seal body = TANDEM__JOURNAL__SEAL__INIT;
    Tandem__Journal__Version parent = TANDEM__JOURNAL__VERSION__INIT;
    parent.lineage = j->head.lineage;
    parent.step = j->head.step;
    body.job = j->job->job;
    body.round = j->sealed + 1;
    body.parent = &parent;
    body.n_entries = n;
    body.entries = entries;
    body.n_draws = draw != NULL;
    body.draws = &draw;
    record.body_case = TANDEM__JOURNAL__RECORD__BODY_SEAL;
    record.seal = &body;
    return td_co_propose(c, &record);
}

// The next rows of the permutation, drawn and sealed in one record.
static bool put_rows(struct td_coordinator *c, struct td_job *job, const struct td_job_state *j) {
    size_t n = job->plan.train_batch_size;
    Tandem__Journal__Draw draw = TANDEM__JOURNAL__DRAW__INIT;
    draw.job = job->id;
    draw.data_epoch = j->cursor.data_epoch;
    draw.from = j->cursor.index;
    draw.to = draw.from + n;
    td_entry *entries = td_alloc_array(n, sizeof *entries),
             **list = td_alloc_array(n, sizeof *list);
    Tandem__Journal__Group *groups = td_alloc_array(n, sizeof *groups);
    for (size_t i = 0; i < n; i++) {
        struct td_group at = {draw.data_epoch, draw.from + i};
        tandem__journal__entry__init(&entries[i]);
        tandem__journal__group__init(&groups[i]);
        groups[i].data_epoch = at.data_epoch;
        groups[i].index = at.index;
        entries[i].group = &groups[i];
        entries[i].min_step = entries[i].max_step = j->head.step;
        entries[i].samples = 1;
        if (c->config.row_digest) {
            entries[i].row_digest = c->config.row_digest(c->config.user, job->id, at);
        }
        list[i] = &entries[i];
    }
    bool put = put_seal(c, j, list, n, &draw);
    td_free(entries);
    td_free(list);
    td_free(groups);
    return put;
}

static bool seal_groups(struct td_coordinator *c, struct td_job *job,
                        const struct td_job_state *j) {
    size_t n = job->plan.train_batch_size;
    const td_entry **entries = td_alloc_array(n, sizeof *entries);
    size_t found = td_co_find_open(c, job, j, entries);
    bool put = found == n && put_seal(c, j, (td_entry **)entries, n, NULL);
    td_free(entries);
    if (!put) {
        td_co_wait_for_units(c, job, j, found, n);
    }
    return put;
}

static bool lacks_groups(struct td_coordinator *c, struct td_job *job,
                         const struct td_job_state *j) {
    uint64_t batch = job->plan.train_batch_size;
    uint64_t left = j->job->index->rows - j->cursor.index;
    if (put_epoch_end(c, j)) {
        return true;
    }
    if (job->plan.rows_job && left >= batch) {
        return put_rows(c, job, j);
    }
    return put_draw(c, j, batch - j->open_count);
}

bool td_co_decide_round(struct td_coordinator *c, struct td_job *job,
                        const struct td_job_state *j) {
    if (j->sealed > j->head.step && !TD_PLANTED(SEAL_ROUND_OPEN)) {
        const struct td_member *m = td_co_trainer(c, j);
        td_co_wait(c, job, TD_WAIT_TRAINING, m ? m->id : 0, "round %llu: %s",
                   (unsigned long long)(j->head.step + 1), td_co_trainer_waits_for(m));
        return false;
    }
    if (j->open_count < job->plan.train_batch_size) {
        return lacks_groups(c, job, j);
    }
    return seal_groups(c, job, j);
}
