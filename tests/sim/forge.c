// A careless leader: records with the header of the one that leads now, whose body it should never
// have sent. Old bodies word for word, as from a report that was on its way for too long; and
// bodies that are wrong in one clause. Only the preconditions stand between them and the state.
#include <string.h>

#include "lib/base/mem.h"
#include "tests/sim/sim.h"

enum { FORGERIES_MAX = 64 };

static void remember(struct sim *s, td_record *r) {
    Tandem__Journal__Position prev = TANDEM__JOURNAL__POSITION__INIT;
    r->prev = &prev;
    r->format = TD_JOURNAL_FORMAT;
    struct td_buf bytes = {0};
    td_record_encode(r, &bytes, NULL);
    r->prev = NULL;
    for (size_t i = 0; i < s->forgery_count; i++) {
        if (s->forgeries[i]->n == bytes.len &&
            memcmp(s->forgeries[i]->bytes, bytes.data, bytes.len) == 0) {
            td_buf_fini(&bytes);
            return;
        }
    }
    struct msg *m = sim_msg();
    m->bytes = bytes.data;
    m->n = bytes.len;
    if (s->forgery_count == FORGERIES_MAX) {
        sim_msg_unref(s->forgeries[0]);
        memmove(s->forgeries, s->forgeries + 1, --s->forgery_count * sizeof *s->forgeries);
    }
    TD_GROW(s->forgeries, s->forgery_cap, s->forgery_count + 1);
    s->forgeries[s->forgery_count++] = m;
}

// What a leader could make of a report, now or much later.
void forge_remember(struct sim *s, const Tandem__Sync__Report *report) {
    Tandem__Sync__TrainReport *t = report->train;
    if (!s->p.careless || !t) {
        return;
    }
    td_record r = TANDEM__JOURNAL__RECORD__INIT;
    if (t->finished) {
        Tandem__Journal__Commit b = TANDEM__JOURNAL__COMMIT__INIT;
        Tandem__Journal__RoleCommit role = TANDEM__JOURNAL__ROLE_COMMIT__INIT, *roles[] = {&role};
        b.job = t->job;
        b.ref = t->finished->ref;
        b.version = t->finished->version;
        b.n_roles = 1;
        b.roles = roles;
        role.role = (char *)"actor";
        role.generation = t->generation;
        role.weight_digest = t->finished->weight_digest;
        role.state_digest = t->finished->state_digest;
        r.body_case = TANDEM__JOURNAL__RECORD__BODY_COMMIT;
        r.commit = &b;
        remember(s, &r);
    }
    if (t->checkpoint) {
        r.body_case = TANDEM__JOURNAL__RECORD__BODY_CHECKPOINT;
        r.checkpoint = t->checkpoint;
        remember(s, &r);
    }
}

static void put(struct sim *s, td_record *r) {
    Tandem__Journal__Position prev = TANDEM__JOURNAL__POSITION__INIT;
    r->prev = &prev;
    td_journal_header(&s->truth, r);
    r->owner = s->truth.owner;
    struct td_buf bytes = {0};
    td_record_encode(r, &bytes, NULL);
    r->prev = NULL;
    s->forging = true;
    sim_trace(s, "forged:");
    journal_land(s, bytes.data, bytes.len);
    s->forging = false;
    td_buf_fini(&bytes);
}

static void repeat(struct sim *s) {
    td_record *r;
    if (s->forgery_count == 0) {
        return;
    }
    const struct msg *m = s->forgeries[sim_below(s, (uint32_t)s->forgery_count)];
    if (td_record_decode(m->bytes, m->n, &r, NULL)) {
        return;
    }
    Tandem__Journal__Position *own = r->prev;
    put(s, r);
    r->prev = own;
    tandem__journal__record__free_unpacked(r, NULL);
}

static void draw(struct sim *s, const struct td_job_state *j, bool right) {
    td_record r = TANDEM__JOURNAL__RECORD__INIT;
    Tandem__Journal__Draw b = TANDEM__JOURNAL__DRAW__INIT;
    b.job = j->job->job;
    b.data_epoch = j->cursor.data_epoch;
    b.from = right ? j->cursor.index : j->cursor.index - (j->cursor.index > 0);
    b.to = j->cursor.index + (right || j->cursor.index == 0);
    if (!right && j->cursor.index == 0) {
        return;
    }
    r.body_case = TANDEM__JOURNAL__RECORD__BODY_DRAW;
    r.draw = &b;
    put(s, &r);
}

// Groups that were sealed before: dropped, or sealed once more.
static void use_again(struct sim *s, const struct td_job_state *j, bool by_seal) {
    const struct td_round_state *old = td_job_round(j, j->sealed);
    if (!old || old->entry_count == 0) {
        return;
    }
    td_record r = TANDEM__JOURNAL__RECORD__INIT;
    Tandem__Journal__Seal seal = TANDEM__JOURNAL__SEAL__INIT;
    Tandem__Journal__Drop drop = TANDEM__JOURNAL__DROP__INIT;
    Tandem__Journal__Version parent = TANDEM__JOURNAL__VERSION__INIT;
    Tandem__Journal__DropReason reason = TANDEM__JOURNAL__DROP_REASON__DROP_FILTERED;
    td_entry *entry = td_message_dup(old->entries[0]), *list[] = {entry};
    if (by_seal) {
        parent.lineage = j->head.lineage;
        parent.step = j->head.step;
        entry->min_step = entry->max_step = j->head.step;
        seal.job = j->job->job;
        seal.round = j->sealed + 1;
        seal.parent = &parent;
        seal.n_entries = 1;
        seal.entries = list;
        r.body_case = TANDEM__JOURNAL__RECORD__BODY_SEAL;
        r.seal = &seal;
    } else {
        drop.job = j->job->job;
        drop.n_groups = drop.n_reasons = 1;
        drop.groups = &entry->group;
        drop.reasons = &reason;
        r.body_case = TANDEM__JOURNAL__RECORD__BODY_DROP;
        r.drop = &drop;
    }
    put(s, &r);
    tandem__journal__entry__free_unpacked(entry, NULL);
}

// A round while another one is open.
static void seal_early(struct sim *s, const struct td_job_state *j) {
    if (!j->has_head || j->sealed == j->head.step || j->open_count == 0) {
        return;
    }
    td_record r = TANDEM__JOURNAL__RECORD__INIT;
    Tandem__Journal__Seal b = TANDEM__JOURNAL__SEAL__INIT;
    Tandem__Journal__Version parent = TANDEM__JOURNAL__VERSION__INIT;
    td_entry entry = TANDEM__JOURNAL__ENTRY__INIT, *entries[] = {&entry};
    Tandem__Journal__Group group = TANDEM__JOURNAL__GROUP__INIT;
    Tandem__Journal__LogPosition part = TANDEM__JOURNAL__LOG_POSITION__INIT, *parts[] = {&part};
    parent.lineage = j->head.lineage;
    parent.step = j->head.step;
    group.data_epoch = j->open[0].data_epoch;
    group.index = j->open[0].index;
    part.offset = INT32_MAX;
    entry.group = &group;
    entry.log = j->job->rollout_log;
    entry.min_step = entry.max_step = j->head.step;
    entry.n_parts = j->job->rollout_log != 0;
    entry.parts = parts;
    b.job = j->job->job;
    b.round = j->sealed + 1;
    b.parent = &parent;
    b.n_entries = 1;
    b.entries = entries;
    r.body_case = TANDEM__JOURNAL__RECORD__BODY_SEAL;
    r.seal = &b;
    put(s, &r);
}

static void restore_unkept(struct sim *s, const struct td_job_state *j) {
    const struct td_gang_state *g = td_job_gang(j, "actor");
    if (!g || g->has_base || s->folder_count == 0) {
        return;
    }
    const struct folder *f = &s->folders[sim_below(s, (uint32_t)s->folder_count)];
    td_record r = TANDEM__JOURNAL__RECORD__INIT;
    Tandem__Journal__Restore b = TANDEM__JOURNAL__RESTORE__INIT;
    if (td_job_kept(j, f->id)) {
        return;
    }
    b.job = j->job->job;
    b.generation = g->generation;
    b.checkpoint = f->id;
    r.body_case = TANDEM__JOURNAL__RECORD__BODY_RESTORE;
    r.restore = &b;
    put(s, &r);
}

// A state that was never committed, saved and offered as a checkpoint of a committed step.
static void checkpoint_uncommitted(struct sim *s, const struct td_job_state *j) {
    const struct td_gang_state *g = td_job_gang(j, "actor");
    const struct td_round_state *r = j->has_head ? td_job_round(j, j->head.step) : NULL;
    if (!g || !r || !r->committed || j->head.step == 0) {
        return;
    }
    TD_GROW(s->folders, s->folder_cap, s->folder_count + 1);
    struct folder *f = &s->folders[s->folder_count++];
    *f = (struct folder){.name = td_asprintf("step-forged-%zu", s->folder_count),
                         .job = j->job->job,
                         .id = td_rng_next(&s->rng),
                         .generation = g->generation,
                         .step = j->head.step,
                         .state = r->roles[0]->state_digest ^ 0xF0,
                         .whole = true};
    f->manifest = td_hash_u64(f->id, f->state);
    td_record record = TANDEM__JOURNAL__RECORD__INIT;
    Tandem__Journal__Checkpoint b = TANDEM__JOURNAL__CHECKPOINT__INIT;
    Tandem__Journal__Version version = TANDEM__JOURNAL__VERSION__INIT;
    version.lineage = r->version.lineage;
    version.step = r->version.step;
    b.job = f->job;
    b.id = f->id;
    b.version = &version;
    b.generation = f->generation;
    b.state_digest = f->state;
    b.manifest_digest = f->manifest;
    b.folder = f->name;
    record.body_case = TANDEM__JOURNAL__RECORD__BODY_CHECKPOINT;
    record.checkpoint = &b;
    put(s, &record);
}

// The COMMIT that a FORK made void, once more.
static void commit_old_lineage(struct sim *s, const struct td_job_state *j) {
    const struct td_gang_state *g = td_job_gang(j, "actor");
    const struct job_facts *f = &s->jobs[job_index(s, j->job->job)];
    uint64_t step = j->head.step + 1;
    const struct td_round_state *r = j->has_head ? td_job_round(j, step) : NULL;
    if (!g || !r || j->lineage == 0 || step >= ROUNDS_MAX || !f->ever[step][j->lineage - 1]) {
        return;
    }
    td_record record = TANDEM__JOURNAL__RECORD__INIT;
    Tandem__Journal__Commit b = TANDEM__JOURNAL__COMMIT__INIT;
    Tandem__Journal__RoleCommit role = TANDEM__JOURNAL__ROLE_COMMIT__INIT, *roles[] = {&role};
    Tandem__Journal__Version version = TANDEM__JOURNAL__VERSION__INIT;
    Tandem__Journal__Position ref = TANDEM__JOURNAL__POSITION__INIT;
    ref.offset = r->ref.offset;
    ref.crc = r->ref.crc;
    version.lineage = j->lineage - 1;
    version.step = step;
    b.job = j->job->job;
    b.ref = &ref;
    b.version = &version;
    b.n_roles = 1;
    b.roles = roles;
    role.role = (char *)"actor";
    role.generation = g->generation;
    role.state_digest = f->ever[step][j->lineage - 1];
    role.weight_digest = weights_of(role.state_digest);
    record.body_case = TANDEM__JOURNAL__RECORD__BODY_COMMIT;
    record.commit = &b;
    put(s, &record);
}

// Right by every precondition, if not what this project's leader does: work under the old seal has
// to be given up, and groups that were left out or dropped must not be trained on.
static void reseal_smaller(struct sim *s, const struct td_job_state *j) {
    const struct td_round_state *old =
        j->has_head && j->sealed > j->head.step ? td_job_round(j, j->head.step + 1) : NULL;
    if (!old || old->entry_count < 2 || s->p.rows_job) {
        return;
    }
    td_record r = TANDEM__JOURNAL__RECORD__INIT;
    Tandem__Journal__Reseal b = TANDEM__JOURNAL__RESEAL__INIT;
    Tandem__Journal__Position ref = TANDEM__JOURNAL__POSITION__INIT;
    td_entry *copies[64];
    ref.offset = old->ref.offset;
    ref.crc = old->ref.crc;
    b.job = j->job->job;
    b.round = old->round;
    b.old_ref = &ref;
    b.entries = copies;
    for (size_t i = 1; i < old->entry_count && i < 64; i++) {
        copies[b.n_entries++] = td_message_dup(old->entries[i]);
    }
    r.body_case = TANDEM__JOURNAL__RECORD__BODY_RESEAL;
    r.reseal = &b;
    put(s, &r);
    for (size_t i = 0; i < b.n_entries; i++) {
        tandem__journal__entry__free_unpacked(copies[i], NULL);
    }
}

static void drop_open(struct sim *s, const struct td_job_state *j) {
    if (j->open_count == 0) {
        return;
    }
    td_record r = TANDEM__JOURNAL__RECORD__INIT;
    Tandem__Journal__Drop b = TANDEM__JOURNAL__DROP__INIT;
    Tandem__Journal__Group group = TANDEM__JOURNAL__GROUP__INIT, *list[] = {&group};
    Tandem__Journal__DropReason reason = TANDEM__JOURNAL__DROP_REASON__DROP_GAVE_UP;
    const struct td_group *at = &j->open[sim_below(s, (uint32_t)j->open_count)];
    group.data_epoch = at->data_epoch;
    group.index = at->index;
    b.job = j->job->job;
    b.n_groups = b.n_reasons = 1;
    b.groups = list;
    b.reasons = &reason;
    r.body_case = TANDEM__JOURNAL__RECORD__BODY_DROP;
    r.drop = &b;
    put(s, &r);
}

void forge_record(struct sim *s) {
    const struct td_job_state *j =
        td_journal_job(&s->truth, s->jobs[sim_below(s, (uint32_t)s->p.jobs)].id);
    if (!j || s->truth.term == 0) {
        return;
    }
    switch (sim_below(s, 16)) {
    case 0:
        draw(s, j, false);
        break;
    case 1:
        if (!s->p.rows_job) {
            draw(s, j, true);
        }
        break;
    case 2:
        use_again(s, j, true);
        break;
    case 3:
        use_again(s, j, false);
        break;
    case 4:
        seal_early(s, j);
        break;
    case 5:
    case 6:
        restore_unkept(s, j);
        break;
    case 7:
        checkpoint_uncommitted(s, j);
        break;
    case 8:
        commit_old_lineage(s, j);
        break;
    case 9:
    case 10:
        reseal_smaller(s, j);
        break;
    case 11:
        drop_open(s, j);
        break;
    default:
        repeat(s);
        break;
    }
}
