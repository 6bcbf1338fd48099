// The state as a message and back, and its digest. Pure.
#include <string.h>

#include "lib/base/check.h"
#include "lib/base/crc.h"
#include "lib/base/mem.h"
#include "lib/base/rng.h"
#include "lib/journal/state_int.h"

// Messages of a snapshot point into the state wherever they can and live in an arena.
struct packer {
    struct td_arena *arena;
};

static void *take(struct packer *p, size_t size) {
    return td_arena_alloc(p->arena, size);
}

static Tandem__Journal__Position *pack_pos(struct packer *p, struct td_pos pos) {
    Tandem__Journal__Position *m = take(p, sizeof *m);
    tandem__journal__position__init(m);
    m->offset = pos.offset;
    m->crc = pos.crc;
    return m;
}

static Tandem__Journal__Version *pack_version(struct packer *p, struct td_version v) {
    Tandem__Journal__Version *m = take(p, sizeof *m);
    tandem__journal__version__init(m);
    m->lineage = v.lineage;
    m->step = v.step;
    return m;
}

static Tandem__Journal__RoundState *pack_round(struct packer *p, const struct td_round_state *r) {
    Tandem__Journal__RoundState *m = take(p, sizeof *m);
    tandem__journal__round_state__init(m);
    m->round = r->round;
    m->ref = pack_pos(p, r->ref);
    m->parent = pack_version(p, r->parent);
    m->n_entries = r->entry_count;
    m->entries = r->entries;
    if (r->committed) {
        m->commit = take(p, sizeof *m->commit);
        tandem__journal__commit__init(m->commit);
        m->commit->version = pack_version(p, r->version);
        m->commit->n_roles = r->role_count;
        m->commit->roles = r->roles;
        m->commit_position = pack_pos(p, r->commit);
    }
    return m;
}

static Tandem__Journal__GangState *pack_gang(struct packer *p, const struct td_gang_state *g) {
    Tandem__Journal__GangState *m = take(p, sizeof *m);
    tandem__journal__gang_state__init(m);
    m->spec = g->spec;
    m->generation = g->generation;
    m->has_base = g->has_base;
    m->base_id = g->base;
    m->base_step = g->base_step;
    return m;
}

static void pack_lists(struct packer *p, const struct td_job_state *j,
                       Tandem__Journal__JobState *m) {
    m->n_open = j->open_count;
    m->open = take(p, j->open_count * sizeof *m->open);
    for (size_t i = 0; i < j->open_count; i++) {
        m->open[i] = take(p, sizeof *m->open[i]);
        tandem__journal__group__init(m->open[i]);
        m->open[i]->data_epoch = j->open[i].data_epoch;
        m->open[i]->index = j->open[i].index;
    }
    m->n_rounds = j->round_count;
    m->rounds = take(p, j->round_count * sizeof *m->rounds);
    for (size_t i = 0; i < j->round_count; i++) {
        m->rounds[i] = pack_round(p, &j->rounds[i]);
    }
    m->n_gangs = j->gang_count;
    m->gangs = take(p, j->gang_count * sizeof *m->gangs);
    for (size_t i = 0; i < j->gang_count; i++) {
        m->gangs[i] = pack_gang(p, &j->gangs[i]);
    }
}

static Tandem__Journal__JobState *pack_job(struct packer *p, const struct td_job_state *j) {
    Tandem__Journal__JobState *m = take(p, sizeof *m);
    tandem__journal__job_state__init(m);
    m->job = j->job;
    m->cursor_epoch = j->cursor.data_epoch;
    m->cursor_index = j->cursor.index;
    m->sealed = j->sealed;
    m->dropped = j->dropped;
    m->has_head = j->has_head;
    m->head = j->has_head ? pack_version(p, j->head) : NULL;
    m->lineage = j->lineage;
    m->initial_kept = j->initial_kept;
    m->n_kept = j->kept_count;
    m->kept = (Tandem__Journal__Checkpoint **)j->kept;
    m->outcome = j->outcome;
    m->cause = j->cause ? j->cause : m->cause;
    m->metrics = j->metrics ? j->metrics : m->metrics;
    pack_lists(p, j, m);
    return m;
}

void td_journal_snapshot(const struct td_journal_state *s, struct td_buf *whole) {
    struct packer p = {td_arena_new()};
    Tandem__Journal__JournalState m;
    tandem__journal__journal_state__init(&m);
    m.journal_id = s->journal_id;
    m.term = s->term;
    m.owner = s->owner;
    m.seq = s->seq;
    m.generation = s->generation;
    m.n_jobs = s->job_count;
    m.jobs = take(&p, s->job_count * sizeof *m.jobs);
    for (size_t i = 0; i < s->job_count; i++) {
        m.jobs[i] = pack_job(&p, s->jobs[i]);
    }
    size_t n = tandem__journal__journal_state__get_packed_size(&m);
    whole->len += tandem__journal__journal_state__pack(&m, td_buf_room(whole, n));
    td_arena_free(p.arena);
}

static void load_round(struct td_job_state *j, const Tandem__Journal__RoundState *m) {
    struct td_round_state *r = td_job_add_round(j, m->round);
    r->ref = td_pos_of(m->ref);
    r->parent = td_version_of(m->parent);
    r->entry_count = m->n_entries;
    if (m->n_entries) {
        r->entries = td_alloc_array(m->n_entries, sizeof *r->entries);
    }
    for (size_t i = 0; i < m->n_entries; i++) {
        r->entries[i] = td_message_dup(m->entries[i]);
    }
    if (m->commit) {
        r->committed = true;
        r->version = td_version_of(m->commit->version);
        r->commit = td_pos_of(m->commit_position);
        r->role_count = m->commit->n_roles;
        r->roles = td_alloc_array(m->commit->n_roles, sizeof *r->roles);
        for (size_t i = 0; i < r->role_count; i++) {
            r->roles[i] = td_message_dup(m->commit->roles[i]);
        }
    }
}

static bool round_consistent(const Tandem__Journal__RoundState *m, bool committed) {
    const Tandem__Journal__Commit *c = m->commit;
    if (committed != (c != NULL) ||
        (c && (!c->version || c->version->step != m->round || c->n_roles == 0))) {
        return false;
    }
    for (size_t i = 0; i < m->n_entries; i++) {
        if (!m->entries[i]->group) {
            return false;
        }
    }
    return true;
}

// Rounds follow each other from the oldest kept step, or before it, to the last sealed one; up to
// the head each has its COMMIT.
static bool rounds_consistent(const Tandem__Journal__JobState *m) {
    size_t n = m->n_rounds;
    if (!m->has_head) {
        return n == 0 && m->sealed == 0 && m->n_kept == 0;
    }
    uint64_t oldest = m->initial_kept ? 0 : m->kept[0]->version->step;
    if (!m->head || n == 0 || m->rounds[0]->round > oldest || oldest > m->head->step ||
        m->head->step > m->sealed || m->rounds[n - 1]->round != m->sealed) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        const Tandem__Journal__RoundState *r = m->rounds[i];
        if (r->round != m->rounds[0]->round + i ||
            !round_consistent(r, r->round <= m->head->step)) {
            return false;
        }
    }
    return true;
}

// What the rest of the program takes for granted of a state that apply made.
static bool consistent(const Tandem__Journal__JobState *m) {
    if (!m->job || !m->job->index || m->cursor_index >= m->job->index->rows ||
        m->n_gangs > TD_GANGS_MAX || m->n_kept > TD_KEPT_MAX ||
        (!m->initial_kept && m->n_kept == 0)) {
        return false;
    }
    for (size_t i = 0; i < m->n_kept; i++) {
        if (!m->kept[i]->version) {
            return false;
        }
    }
    for (size_t i = 0; i < m->n_gangs; i++) {
        if (!m->gangs[i]->spec || m->gangs[i]->spec->n_members == 0) {
            return false;
        }
    }
    return rounds_consistent(m);
}

struct td_job_state *td_job_load(const Tandem__Journal__JobState *m) {
    if (!consistent(m)) {
        return NULL;
    }
    struct td_job_state *j = td_alloc(sizeof *j);
    j->job = td_message_dup(m->job);
    j->max_staleness = m->job->max_staleness;
    j->open_max = m->job->open_max;
    j->cursor = (struct td_group){m->cursor_epoch, m->cursor_index};
    for (size_t i = 0; i < m->n_open; i++) {
        td_job_open_add(j, td_group_of(m->open[i]));
    }
    j->sealed = m->sealed;
    j->dropped = m->dropped;
    j->has_head = m->has_head;
    j->head = td_version_of(m->head);
    j->lineage = m->lineage;
    j->initial_kept = m->initial_kept;
    for (size_t i = 0; i < m->n_rounds; i++) {
        load_round(j, m->rounds[i]);
    }
    for (size_t i = 0; i < m->n_gangs; i++) {
        j->gangs[j->gang_count++] =
            (struct td_gang_state){.spec = td_message_dup(m->gangs[i]->spec),
                                   .generation = m->gangs[i]->generation,
                                   .has_base = m->gangs[i]->has_base,
                                   .base = m->gangs[i]->base_id,
                                   .base_step = m->gangs[i]->base_step};
    }
    for (size_t i = 0; i < m->n_kept; i++) {
        j->kept[j->kept_count++] = td_message_dup(m->kept[i]);
    }
    j->outcome = m->outcome;
    if (j->outcome != TANDEM__JOURNAL__OUTCOME__OUTCOME_NONE) {
        j->cause = td_strdup(m->cause);
        j->metrics = td_strdup(m->metrics);
    }
    return j;
}

bool td_journal_load(struct td_journal_state *s, const void *bytes, size_t n) {
    Tandem__Journal__JournalState *m = tandem__journal__journal_state__unpack(NULL, n, bytes);
    if (!m) {
        return false;
    }
    bool ok = m->n_jobs <= TD_JOBS_MAX;
    for (size_t i = 0; ok && i < m->n_jobs; i++) {
        struct td_job_state *j = td_job_load(m->jobs[i]);
        ok = j != NULL;
        if (ok) {
            s->jobs[s->job_count++] = j;
        }
    }
    s->journal_id = m->journal_id;
    s->term = m->term;
    s->owner = m->owner;
    s->seq = m->seq;
    s->generation = m->generation;
    tandem__journal__journal_state__free_unpacked(m, NULL);
    return ok;
}

static uint64_t mix_pos(uint64_t h, struct td_pos pos) {
    return td_hash_u64(td_hash_u64(h, (uint64_t)pos.offset), pos.crc);
}

static uint64_t mix_group(uint64_t h, struct td_group group) {
    return td_hash_u64(td_hash_u64(h, group.data_epoch), group.index);
}

static uint64_t mix_version(uint64_t h, struct td_version v) {
    return td_hash_u64(td_hash_u64(h, v.lineage), v.step);
}

static uint64_t mix_text(uint64_t h, const char *text) {
    return text ? td_digest64(h, text, strlen(text)) : td_hash_u64(h, 0);
}

static uint64_t mix_entry(uint64_t h, const td_entry *e) {
    h = mix_group(h, td_group_of(e->group));
    h = td_hash_u64(td_hash_u64(h, e->log), e->row_digest);
    for (size_t i = 0; i < e->n_parts; i++) {
        const Tandem__Journal__LogPosition *part = e->parts[i];
        h = td_hash_u64(td_hash_u64(h, (uint64_t)part->partition << 32 | part->crc),
                        (uint64_t)part->offset);
    }
    h = td_hash_u64(td_hash_u64(h, e->min_step), e->max_step);
    return td_hash_u64(td_hash_u64(h, e->samples), e->tokens);
}

static uint64_t mix_round(uint64_t h, const struct td_round_state *r) {
    h = mix_version(mix_pos(td_hash_u64(h, r->round), r->ref), r->parent);
    h = td_hash_u64(h, r->entry_count);
    for (size_t i = 0; i < r->entry_count; i++) {
        h = mix_entry(h, r->entries[i]);
    }
    h = mix_pos(mix_version(td_hash_u64(h, r->committed), r->version), r->commit);
    for (size_t i = 0; i < r->role_count; i++) {
        const Tandem__Journal__RoleCommit *role = r->roles[i];
        h = td_hash_u64(td_hash_u64(mix_text(h, role->role), role->gang), role->generation);
        h = td_hash_u64(td_hash_u64(h, role->weight_digest), role->state_digest);
        h = td_hash_u64(mix_text(mix_text(h, role->build), role->device), role->ranks);
    }
    return h;
}

static uint64_t mix_gang(uint64_t h, const struct td_gang_state *g) {
    h = td_hash_u64(td_hash_u64(h, g->spec->gang), g->spec->ranks);
    h = mix_text(mix_text(mix_text(h, g->spec->role), g->spec->build), g->spec->device);
    for (size_t i = 0; i < g->spec->n_members; i++) {
        h = td_hash_u64(h, g->spec->members[i]);
    }
    h = td_hash_u64(td_hash_u64(h, g->generation), g->has_base);
    return td_hash_u64(td_hash_u64(h, g->base), g->base_step);
}

static uint64_t mix_kept(uint64_t h, const Tandem__Journal__Checkpoint *c) {
    h = mix_version(td_hash_u64(h, c->id), td_version_of(c->version));
    h = td_hash_u64(td_hash_u64(h, c->gang), c->generation);
    h = td_hash_u64(td_hash_u64(h, c->state_digest), c->manifest_digest);
    for (size_t i = 0; i < c->n_positions; i++) {
        h = td_hash_u64(h, c->positions[i]->partition);
        h = td_hash_u64(h, (uint64_t)c->positions[i]->offset);
    }
    return mix_text(h, c->folder);
}

static uint64_t mix_job(uint64_t h, const struct td_job_state *j) {
    h = mix_text(td_hash_u64(h, j->job->job), j->job->request_id);
    h = td_digest64(h, j->job->spec.data, j->job->spec.len);
    h = td_hash_u64(td_hash_u64(h, j->job->rollout_log), j->job->index->rows);
    h = td_hash_u64(td_hash_u64(h, j->max_staleness), j->open_max);
    h = mix_group(h, j->cursor);
    for (size_t i = 0; i < j->open_count; i++) {
        h = mix_group(h, j->open[i]);
    }
    h = td_hash_u64(td_hash_u64(h, j->sealed), j->dropped);
    h = mix_version(td_hash_u64(h, j->has_head), j->head);
    h = td_hash_u64(td_hash_u64(h, j->lineage), j->initial_kept);
    for (size_t i = 0; i < j->round_count; i++) {
        h = mix_round(h, &j->rounds[i]);
    }
    for (size_t i = 0; i < j->gang_count; i++) {
        h = mix_gang(h, &j->gangs[i]);
    }
    for (size_t i = 0; i < j->kept_count; i++) {
        h = mix_kept(h, j->kept[i]);
    }
    return mix_text(mix_text(td_hash_u64(h, j->outcome), j->cause), j->metrics);
}

uint64_t td_journal_digest(const struct td_journal_state *s) {
    uint64_t h = td_hash_u64(td_hash_u64(s->based, s->journal_id), s->term);
    h = td_hash_u64(td_hash_u64(h, s->owner), s->seq);
    h = mix_pos(td_hash_u64(h, s->generation), s->last);
    h = td_hash_u64(td_hash_u64(h, s->partial_next), s->partial_count);
    h = mix_pos(mix_pos(h, s->partial_first), s->trim);
    for (size_t i = 0; i < s->job_count; i++) {
        h = mix_job(h, s->jobs[i]);
    }
    return h;
}
