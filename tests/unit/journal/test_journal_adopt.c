// A job of a lost journal, adopted by a new one's INIT: what is trained stays, the rest comes
// again.
#include "tests/unit/cmocka_all.h"

#include <string.h>

#include "lib/journal/adopt.h"
#include "lib/journal/state.h"

enum { STEP = 5 };

struct kit {
    struct td_arena *arena;
    Tandem__Journal__JobState job;
    Tandem__Journal__Checkpoint checkpoint;
    Tandem__Journal__Version version;
};

static void *take(struct kit *k, size_t size) {
    return td_arena_alloc(k->arena, size);
}

static Tandem__Journal__Group *group(struct kit *k, uint64_t index) {
    Tandem__Journal__Group *g = take(k, sizeof *g);
    tandem__journal__group__init(g);
    g->index = index;
    return g;
}

static Tandem__Journal__Version *version(struct kit *k, uint64_t step) {
    Tandem__Journal__Version *v = take(k, sizeof *v);
    tandem__journal__version__init(v);
    v->step = step;
    return v;
}

static void add_round(struct kit *k, uint64_t round, bool committed) {
    Tandem__Journal__RoundState *r = take(k, sizeof *r);
    tandem__journal__round_state__init(r);
    r->round = round;
    r->parent = version(k, round - 1);
    r->ref = take(k, sizeof *r->ref);
    tandem__journal__position__init(r->ref);
    r->n_entries = 2;
    r->entries = take(k, 2 * sizeof *r->entries);
    for (size_t i = 0; i < 2; i++) {
        r->entries[i] = take(k, sizeof *r->entries[i]);
        tandem__journal__entry__init(r->entries[i]);
        r->entries[i]->group = group(k, 2 * round + i);
    }
    if (committed) {
        r->commit = take(k, sizeof *r->commit);
        tandem__journal__commit__init(r->commit);
        r->commit->version = version(k, round);
        r->commit->n_roles = 1;
        r->commit->roles = take(k, sizeof *r->commit->roles);
        r->commit->roles[0] = take(k, sizeof **r->commit->roles);
        tandem__journal__role_commit__init(r->commit->roles[0]);
        r->commit->roles[0]->role = "actor";
        r->commit->roles[0]->state_digest = 0xEE00 + round;
    }
    k->job.rounds[k->job.n_rounds++] = r;
}

// Steps 4 and 5 are committed, rounds 6 and 7 sealed, two groups are open.
static void kit_init(struct kit *k) {
    *k = (struct kit){.arena = td_arena_new()};
    Tandem__Journal__JobState *j = &k->job;
    tandem__journal__job_state__init(j);
    j->job = take(k, sizeof *j->job);
    tandem__journal__job__init(j->job);
    j->job->job = 3;
    j->job->rollout_log = 0x106;
    j->job->index = take(k, sizeof *j->job->index);
    tandem__journal__data_index__init(j->job->index);
    j->job->index->rows = 100;
    j->cursor_index = 30;
    j->rounds = take(k, 4 * sizeof *j->rounds);
    for (uint64_t r = 4; r <= 7; r++) {
        add_round(k, r, r <= STEP);
    }
    j->sealed = 7;
    j->has_head = true;
    j->head = version(k, STEP);
    j->lineage = 2;
    j->open = take(k, 2 * sizeof *j->open);
    j->open[0] = group(k, 1);
    j->open[1] = group(k, 29);
    j->n_open = 2;
    j->n_gangs = 1;
    j->gangs = take(k, sizeof *j->gangs);
    j->gangs[0] = take(k, sizeof **j->gangs);
    tandem__journal__gang_state__init(j->gangs[0]);
    j->gangs[0]->generation = 9;
    j->gangs[0]->spec = take(k, sizeof *j->gangs[0]->spec);
    tandem__journal__gang_spec__init(j->gangs[0]->spec);
    static uint64_t members[] = {0x71};
    j->gangs[0]->spec->n_members = 1;
    j->gangs[0]->spec->members = members;
    j->gangs[0]->spec->role = "actor";
    tandem__journal__checkpoint__init(&k->checkpoint);
    tandem__journal__version__init(&k->version);
    k->version.step = STEP;
    k->checkpoint.job = 3;
    k->checkpoint.id = 0xC5;
    k->checkpoint.version = &k->version;
    k->checkpoint.state_digest = 0xEE00 + STEP;
    k->checkpoint.folder = "five";
}

static void test_adopt_is_a_sound_job(void **unused) {
    (void)unused;
    struct kit k;
    kit_init(&k);
    Tandem__Journal__JobState out, *adopted[] = {&out};
    struct td_err err;
    assert_int_equal(td_journal_adopt(&k.job, &k.checkpoint, 0x207, k.arena, &out, &err), TD_OK);
    Tandem__Journal__Init init = TANDEM__JOURNAL__INIT__INIT;
    Tandem__Journal__Position prev = TANDEM__JOURNAL__POSITION__INIT;
    td_record record = TANDEM__JOURNAL__RECORD__INIT;
    init.term_floor = 8;
    init.n_adopted = 1;
    init.adopted = adopted;
    prev.offset = -1;
    record.format = TD_JOURNAL_FORMAT;
    record.journal_id = 0x1D;
    record.prev = &prev;
    record.body_case = TANDEM__JOURNAL__RECORD__BODY_INIT;
    record.init = &init;
    struct td_journal_state s;
    char why[256];
    td_journal_state_init(&s);
    assert_int_equal(td_journal_apply(&s, &record, (struct td_pos){0, 1}, why), TD_ACCEPTED);
    assert_true(s.term == 8 && s.generation == 9 && s.job_count == 1);
    const struct td_job_state *j = s.jobs[0];
    assert_true(j->head.step == STEP && j->sealed == STEP && j->lineage == 3);
    assert_int_equal(j->job->rollout_log, 0x207);
    static const uint64_t open[] = {1, 12, 13, 14, 15, 29};
    assert_int_equal(j->open_count, 6);
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(j->open[i].index, open[i]);
    }
    assert_true(j->kept_count == 1 && j->kept[0]->id == 0xC5 && !j->initial_kept);
    assert_true(j->gangs[0].has_base && j->gangs[0].base == 0xC5 && j->gangs[0].base_step == STEP);
    assert_true(j->cursor.index == 30 && j->round_count == 1);
    td_journal_state_fini(&s);
    assert_int_equal(k.job.n_rounds, 4); // the source is as it was
    td_arena_free(k.arena);
}

static void test_adopt_refuses_what_the_state_does_not_know(void **unused) {
    (void)unused;
    struct kit k;
    kit_init(&k);
    Tandem__Journal__JobState out;
    struct td_err err;
    k.checkpoint.state_digest++;
    assert_int_equal(td_journal_adopt(&k.job, &k.checkpoint, 1, k.arena, &out, &err), TD_ECORRUPT);
    k.checkpoint.state_digest--;
    k.version.step = 6; // sealed, never committed
    assert_int_equal(td_journal_adopt(&k.job, &k.checkpoint, 1, k.arena, &out, &err), TD_ECORRUPT);
    assert_non_null(strstr(err.msg, "step 6"));
    td_arena_free(k.arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adopt_is_a_sound_job),
        cmocka_unit_test(test_adopt_refuses_what_the_state_does_not_know),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
