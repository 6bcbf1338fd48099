// What records do to the state, STATE in several parts, INIT with adopted jobs, the reader, and
// random journals over which two readers must agree.
#include "tests/unit/cmocka_all.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "lib/base/rng.h"
#include "lib/journal/follow.h"
#include "tests/unit/journal/kit.h"

static const struct td_job_state *job_of(const struct kit *k) {
    return td_journal_job(&k->state, KIT_JOB);
}

static void test_state_effects(void **unused) {
    (void)unused;
    struct kit k;
    kit_init(&k);
    kit_go(&k, KIT_STEP3);
    const struct td_job_state *j = job_of(&k);
    assert_int_equal(j->open_count, 0);
    assert_int_equal(j->sealed, 3);
    assert_int_equal(j->head.step, 3);
    assert_int_equal(j->kept_count, 2);
    assert_false(j->initial_kept);
    assert_int_equal(td_job_oldest_step(j), 1);
    assert_null(td_job_round(j, 0));
    assert_int_equal(td_job_round(j, 1)->entry_count, 0); // of the oldest kept step: COMMIT only
    assert_true(td_job_round(j, 1)->committed);
    assert_int_equal(td_job_round(j, 2)->entry_count, 2);
    assert_null(td_job_round(j, 4));
    assert_non_null(td_job_gang(j, "actor"));
    assert_null(td_job_gang(j, "critic"));
    assert_int_equal(td_job_kept(j, 0xC2)->version->step, 2);
    assert_null(td_job_kept(j, 0xC3));
    kit_fini(&k);
}

static void test_state_reseal_reopens(void **unused) {
    (void)unused;
    struct kit k;
    kit_init(&k);
    kit_go(&k, KIT_SEALED);
    assert_int_equal(kit_put(&k, kit_reseal(&k, 1, 1, 3)), TD_ACCEPTED);
    const struct td_job_state *j = job_of(&k);
    assert_true(td_job_is_open(j, (struct td_group){0, 0}));
    assert_false(td_job_is_open(j, (struct td_group){0, 1}));
    assert_false(td_job_is_open(j, (struct td_group){0, 2}));
    assert_int_equal(td_job_round(j, 1)->ref.offset, (int64_t)k.log_count - 1);
    kit_fini(&k);
}

static void test_state_fork_reopens_rounds(void **unused) {
    (void)unused;
    struct kit k;
    kit_init(&k);
    kit_go(&k, KIT_STEP3);
    struct td_pos ref = td_job_round(job_of(&k), 3)->ref;
    assert_int_equal(kit_put(&k, kit_fork(&k, 1)), TD_ACCEPTED); // disproves the COMMIT of 2
    const struct td_job_state *j = job_of(&k);
    assert_int_equal(j->lineage, 1);
    assert_int_equal(j->head.lineage, 0);
    assert_int_equal(j->head.step, 1);
    assert_int_equal(j->sealed, 3);
    assert_int_equal(j->kept_count, 1); // 0xC2 was of step 2
    assert_false(td_job_round(j, 2)->committed);
    assert_true(td_pos_equal(td_job_round(j, 3)->ref, ref));
    assert_int_equal(kit_put(&k, kit_seal(&k, 4, 6, 7, 1)), TD_REJECTED); // rounds are open
    assert_int_equal(kit_put(&k, kit_commit(&k, 2)), TD_ACCEPTED);
    assert_int_equal(job_of(&k)->head.lineage, 1);
    assert_int_equal(kit_put(&k, kit_commit(&k, 3)), TD_ACCEPTED);
    kit_fini(&k);
}

static void test_state_cursor_goes_over_the_epoch(void **unused) {
    (void)unused;
    struct kit k;
    kit_init(&k);
    kit_go(&k, KIT_STARTED);
    assert_int_equal(kit_put(&k, kit_draw(&k, 0, 0, 5)), TD_ACCEPTED);
    assert_int_equal(kit_put(&k, kit_drop(&k, 0, 0, 5)), TD_ACCEPTED);
    assert_int_equal(kit_put(&k, kit_draw(&k, 0, 5, KIT_ROWS)), TD_ACCEPTED);
    assert_int_equal(job_of(&k)->cursor.data_epoch, 1);
    assert_int_equal(job_of(&k)->cursor.index, 0);
    assert_int_equal(job_of(&k)->dropped, 5);
    assert_int_equal(kit_put(&k, kit_draw(&k, 0, 0, 1)), TD_REJECTED);
    assert_int_equal(kit_put(&k, kit_draw(&k, 1, 0, 1)), TD_ACCEPTED);
    kit_fini(&k);
}

// Writes STATE in parts of chunk bytes; returns the offset of part 1.
static int64_t put_state(struct kit *k, size_t chunk, uint32_t stop_before) {
    struct td_buf whole = {0};
    td_journal_snapshot(&k->state, &whole);
    uint32_t parts = (uint32_t)((whole.len + chunk - 1) / chunk);
    int64_t first = (int64_t)k->log_count;
    for (uint32_t part = 1; part <= parts && part != stop_before; part++) {
        size_t at = (part - 1) * chunk, n = whole.len - at < chunk ? whole.len - at : chunk;
        enum td_verdict verdict = kit_put(k, kit_state(k, part, parts, whole.data + at, n));
        if (verdict != TD_ACCEPTED) {
            fail_msg("STATE part %u of %u: %s", part, parts, k->why);
        }
    }
    td_buf_fini(&whole);
    return first;
}

static void test_state_in_parts(void **unused) {
    (void)unused;
    static const enum kit_stage stages[] = {KIT_LED,   KIT_JOBBED, KIT_SEALED,
                                            KIT_KEPT1, KIT_STEP3,  KIT_FORKED};
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++) {
        for (size_t chunk = 7; chunk < 5000; chunk = chunk * 5 + 1) {
            struct kit k;
            kit_init(&k);
            kit_go(&k, stages[i]);
            int64_t first = put_state(&k, chunk, 0);
            assert_int_equal(k.state.trim.offset, first);
            struct td_journal_state late;
            td_journal_state_init(&late);
            late.start = first;
            for (size_t r = (size_t)first; r < k.log_count; r++) {
                assert_false(late.based);
                assert_int_equal(kit_read(&k, r, &late, k.why), TD_ACCEPTED);
            }
            assert_true(late.based);
            assert_int_equal(td_journal_digest(&late), td_journal_digest(&k.state));
            td_journal_state_fini(&late);
            kit_fini(&k);
        }
    }
}

static void test_state_interrupted_is_no_trim_point(void **unused) {
    (void)unused;
    struct kit k;
    kit_init(&k);
    kit_go(&k, KIT_STEP3);
    put_state(&k, 64, 3); // two parts of many …
    assert_int_equal(kit_put(&k, kit_beat(&k)), TD_ACCEPTED);
    assert_int_equal(kit_put(&k, kit_state(&k, 3, 9, "x", 1)), TD_REJECTED); // … and no more
    assert_int_equal(k.state.trim.offset, -1);
    int64_t first = put_state(&k, 64, 0);
    assert_int_equal(k.state.trim.offset, first);
    kit_fini(&k);
}

static void test_state_start_without_base_is_damage(void **unused) {
    (void)unused;
    struct kit k;
    kit_init(&k);
    kit_go(&k, KIT_STEP1);
    int64_t first = put_state(&k, 64, 3);
    kit_put(&k, kit_beat(&k));
    struct td_journal_state s;
    td_journal_state_init(&s);
    s.start = 3; // a JOB
    assert_int_equal(kit_read(&k, 3, &s, k.why), TD_DAMAGED);
    s.start = first; // a STATE that was never finished
    assert_int_equal(kit_read(&k, (size_t)first, &s, k.why), TD_ACCEPTED);
    assert_int_equal(kit_read(&k, (size_t)first + 1, &s, k.why), TD_ACCEPTED);
    assert_int_equal(kit_read(&k, (size_t)first + 2, &s, k.why), TD_DAMAGED);
    td_journal_state_fini(&s);
    kit_fini(&k);
}

static void test_state_init_adopts(void **unused) {
    (void)unused;
    struct kit k;
    kit_init(&k);
    kit_go(&k, KIT_STEP3);
    struct td_buf whole = {0};
    td_journal_snapshot(&k.state, &whole);
    Tandem__Journal__JournalState *m =
        tandem__journal__journal_state__unpack(NULL, whole.len, whole.data);
    struct kit n;
    kit_init(&n);
    td_record *r = kit_init_record(&n, 0x2E, 42);
    r->init->n_adopted = m->n_jobs;
    r->init->adopted = m->jobs;
    assert_int_equal(kit_put_raw(&n, r), TD_ACCEPTED);
    assert_int_equal(n.state.term, 42);
    assert_int_equal(n.state.generation, 1);
    assert_int_equal(job_of(&n)->head.step, 3);
    assert_int_equal(kit_put(&n, kit_lead(&n)), TD_ACCEPTED);
    assert_int_equal(n.state.term, 43);
    assert_int_equal(kit_put(&n, kit_fork(&n, 2)), TD_ACCEPTED);
    tandem__journal__journal_state__free_unpacked(m, NULL);
    td_buf_fini(&whole);
    kit_fini(&k);
    kit_fini(&n);
}

static void test_state_keeps_how_a_job_ended(void **unused) {
    (void)unused;
    struct kit k;
    kit_init(&k);
    kit_go(&k, KIT_STEP3);
    assert_null(job_of(&k)->metrics);
    td_record *end = kit_end(&k, TANDEM__JOURNAL__OUTCOME__FAILED);
    end->end->cause = "row 3";
    end->end->metrics = "{\"training/global_step\": 3}";
    assert_int_equal(kit_put(&k, end), TD_ACCEPTED);
    int64_t first = put_state(&k, 100, 0);
    struct td_journal_state late;
    td_journal_state_init(&late);
    late.start = first;
    for (size_t at = (size_t)first; at < k.log_count; at++) {
        kit_read(&k, at, &late, NULL);
    }
    const struct td_job_state *j = td_journal_job(&late, KIT_JOB);
    assert_string_equal(j->cause, "row 3");
    assert_string_equal(j->metrics, "{\"training/global_step\": 3}");
    assert_true(td_journal_digest(&late) == td_journal_digest(&k.state));
    td_journal_state_fini(&late);
    kit_fini(&k);
}

// Changes that make a job's state contradict itself: readers stop instead of acting on it.
enum { WRONG_COUNT = 13 };

static void make_wrong(Tandem__Journal__JobState *m, int which) {
    Tandem__Journal__RoundState *last = m->rounds[m->n_rounds - 1];
    switch (which) {
    case 0:
        m->gangs[0]->spec->n_members = 0;
        break;
    case 1:
        m->n_kept = 0;
        break;
    case 2:
        m->sealed++;
        break;
    case 3:
        m->n_rounds--;
        break;
    case 4:
        m->n_rounds = 0;
        break;
    case 5:
        last->commit = NULL;
        break;
    case 6:
        last->commit->version = NULL;
        break;
    case 7:
        last->commit->n_roles = 0;
        break;
    case 8:
        last->round++;
        break;
    case 9:
        m->head->step = 1;
        break;
    case 10:
        m->has_head = false;
        break;
    case 11:
        m->cursor_index = KIT_ROWS;
        break;
    default:
        m->kept[0]->version->step = 0; // below the rounds that are held
        break;
    }
}

static void test_state_init_refuses_contradictions(void **unused) {
    (void)unused;
    for (int which = -1; which < WRONG_COUNT; which++) {
        struct kit k, n;
        kit_init(&k);
        kit_init(&n);
        kit_go(&k, KIT_STEP3);
        struct td_buf whole = {0};
        td_journal_snapshot(&k.state, &whole);
        Tandem__Journal__JournalState *m =
            tandem__journal__journal_state__unpack(NULL, whole.len, whole.data);
        Tandem__Journal__JobState job = *m->jobs[0], *jobs[] = {&job};
        Tandem__Journal__RoundState last = *job.rounds[job.n_rounds - 1];
        Tandem__Journal__Commit of_last = *last.commit;
        Tandem__Journal__GangSpec spec = *job.gangs[0]->spec;
        Tandem__Journal__RoundState *old_last = job.rounds[job.n_rounds - 1];
        Tandem__Journal__GangSpec *old_spec = job.gangs[0]->spec;
        last.commit = &of_last;
        job.rounds[job.n_rounds - 1] = &last;
        job.gangs[0]->spec = &spec;
        if (which >= 0) {
            make_wrong(&job, which);
        }
        td_record *r = kit_init_record(&n, 0x2E, 42);
        r->init->n_adopted = 1;
        r->init->adopted = jobs;
        enum td_verdict verdict = kit_put_raw(&n, r);
        if (verdict != (which < 0 ? TD_ACCEPTED : TD_DAMAGED)) {
            print_error("contradiction %d: verdict %d\n", which, (int)verdict);
            fail();
        }
        m->jobs[0]->rounds[m->jobs[0]->n_rounds - 1] = old_last;
        m->jobs[0]->gangs[0]->spec = old_spec;
        tandem__journal__journal_state__free_unpacked(m, NULL);
        td_buf_fini(&whole);
        kit_fini(&k);
        kit_fini(&n);
    }
}

static void test_record_decode_refuses(void **unused) {
    (void)unused;
    struct kit k;
    kit_init(&k);
    struct td_err err;
    td_record *out = NULL;
    assert_int_equal(td_record_decode("\xff\xff", 2, &out, &err), TD_ECORRUPT);
    td_record *r = kit_beat(&k);
    struct td_buf buf = {0};
    td_record_encode(r, &buf, NULL); // format 0
    assert_int_equal(td_record_decode(buf.data, buf.len, &out, &err), TD_ECORRUPT);
    assert_non_null(strstr(err.msg, "format 0"));
    td_buf_clear(&buf);
    r->format = TD_JOURNAL_FORMAT;
    r->body_case = TANDEM__JOURNAL__RECORD__BODY__NOT_SET;
    td_record_encode(r, &buf, NULL);
    assert_int_equal(td_record_decode(buf.data, buf.len, &out, &err), TD_ECORRUPT);
    assert_null(out);
    assert_string_equal(td_record_name(kit_lead(&k)), "LEAD");
    assert_string_equal(td_record_name(r), "NOTHING");
    td_buf_fini(&buf);
    kit_fini(&k);
}

static enum td_follow_want feed(struct td_follower *f, const struct kit *k, size_t i,
                                enum td_verdict *verdict) {
    return td_follower_record(f, k->log[i].pos, k->log[i].bytes, k->log[i].n, verdict);
}

static void test_follower_catches_up(void **unused) {
    (void)unused;
    struct kit k;
    kit_init(&k);
    kit_go(&k, KIT_STEP3);
    struct td_follower f;
    td_follower_init(&f);
    enum td_verdict verdict;
    assert_int_equal(feed(&f, &k, 0, &verdict), TD_WANT_NOTHING); // not started: not read
    assert_int_equal(td_follower_start(&f, 0), TD_WANT_END);
    for (size_t i = 0; i < k.log_count; i++) {
        assert_int_equal(feed(&f, &k, i, &verdict), TD_WANT_NOTHING);
        assert_int_equal(verdict, TD_ACCEPTED);
        assert_false(td_follower_ready(&f));
        if (i == 3) {
            assert_int_equal(feed(&f, &k, 2, &verdict), TD_WANT_NOTHING); // delivered again
            assert_int_equal(verdict, TD_IGNORED);
        }
    }
    td_follower_end(&f, (int64_t)k.log_count + 1);
    assert_false(td_follower_ready(&f));
    kit_put(&k, kit_beat(&k));
    feed(&f, &k, k.log_count - 1, NULL);
    assert_true(td_follower_ready(&f));
    assert_int_equal(td_journal_digest(&f.state), td_journal_digest(&k.state));
    // a gap: drop all and start again
    kit_put(&k, kit_beat(&k));
    kit_put(&k, kit_beat(&k));
    assert_int_equal(feed(&f, &k, k.log_count - 1, NULL), TD_WANT_RESET);
    assert_false(td_follower_ready(&f));
    td_follower_start(&f, 0);
    assert_false(f.state.based);
    for (size_t i = 0; i < k.log_count; i++) {
        feed(&f, &k, i, NULL);
    }
    td_follower_end(&f, (int64_t)k.log_count);
    assert_true(td_follower_ready(&f));
    td_follower_fini(&f);
    kit_fini(&k);
}

// The same gap again after a reset: the log lacks the record, and reading once more would not end.
static void test_follower_stops_at_a_gap_read_twice(void **unused) {
    (void)unused;
    struct kit k;
    kit_init(&k);
    kit_go(&k, KIT_STARTED);
    struct td_follower f;
    td_follower_init(&f);
    for (int round = 0; round < 2; round++) {
        td_follower_start(&f, 0);
        feed(&f, &k, 0, NULL);
        assert_int_equal(feed(&f, &k, 2, NULL), round == 0 ? TD_WANT_RESET : TD_WANT_STOP);
    }
    assert_non_null(strstr(f.cause, "records 1 to 1 were not read"));
    td_follower_fini(&f);
    td_follower_init(&f);
    for (int round = 0; round < 4; round++) { // healed in between, so it is another one
        td_follower_start(&f, 0);
        feed(&f, &k, 0, NULL);
        if (round % 2 == 1) {
            feed(&f, &k, 1, NULL);
        }
        assert_int_equal(feed(&f, &k, 2, NULL), round % 2 == 1 ? TD_WANT_NOTHING : TD_WANT_RESET);
    }
    td_follower_fini(&f);
    kit_fini(&k);
}

static void test_follower_stops_at_damage(void **unused) {
    (void)unused;
    struct kit k;
    kit_init(&k);
    kit_go(&k, KIT_STARTED);
    struct td_follower f;
    td_follower_init(&f);
    k.log[4].bytes = (uint8_t *)"?"; // one accepted record is rubbish now
    k.log[4].n = 1;
    kit_put(&k, kit_beat(&k));
    for (int round = 0; round < 2; round++) {
        td_follower_start(&f, 0);
        for (size_t i = 0; i < 5; i++) {
            assert_int_equal(feed(&f, &k, i, NULL), TD_WANT_NOTHING);
        }
        assert_int_equal(feed(&f, &k, 5, NULL), round == 0 ? TD_WANT_RESET : TD_WANT_STOP);
    }
    assert_non_null(strstr(f.cause, "journal damaged at 5"));
    assert_int_equal(feed(&f, &k, 6, NULL), TD_WANT_NOTHING);
    td_follower_fini(&f);
    kit_fini(&k);
}

static td_record *at_epoch(td_record *r, uint64_t epoch) {
    for (size_t i = 0; i < r->seal->n_entries; i++) {
        r->seal->entries[i]->group->data_epoch = epoch;
        r->seal->entries[i]->parts[0]->offset += (int64_t)(epoch * KIT_ROWS);
    }
    return r;
}

static td_record *random_body(struct kit *k, struct td_rng *rng) {
    const struct td_job_state *j = td_journal_job(&k->state, KIT_JOB);
    uint64_t gen = k->state.generation + (td_rng_below(rng, 8) != 0);
    uint64_t step = (j->has_head ? j->head.step : 0) + (td_rng_below(rng, 6) != 0);
    uint64_t at = j->cursor.index, epoch = j->cursor.data_epoch;
    uint64_t low = j->open_count ? j->open[td_rng_below(rng, (uint32_t)j->open_count)].index
                                 : td_rng_below(rng, KIT_ROWS);
    switch (td_rng_below(rng, 14)) {
    case 0:
        return kit_gang(k, gen);
    case 1:
    case 2:
        return kit_restore(k, k->state.generation,
                           j->kept_count ? j->kept[td_rng_below(rng, (uint32_t)j->kept_count)]->id
                                         : td_rng_below(rng, 2));
    case 3:
    case 4:
        return kit_draw(k, epoch, at, at + 1 + td_rng_below(rng, 4));
    case 5:
        return kit_drop(k, j->open_count ? j->open[0].data_epoch : epoch, low, low + 1);
    case 6:
    case 7:
        return at_epoch(kit_seal(k, step, low, low + 1 + td_rng_below(rng, 2), step - (step > 0)),
                        j->open_count ? j->open[0].data_epoch : epoch);
    case 8:
        return j->sealed ? kit_reseal(k, j->sealed, low, low + 1) : kit_beat(k);
    case 9:
    case 10:
        return kit_commit(k, j->has_head ? step : 0);
    case 11:
        return j->gang_count ? kit_checkpoint(k, 1 + td_rng_below(rng, 1000), step - (step > 0))
                             : kit_beat(k);
    case 12:
        return j->gang_count && j->has_head && j->head.step && td_rng_below(rng, 3) == 0
                   ? kit_fork(k, j->head.step - 1)
                   : kit_beat(k);
    default:
        return td_rng_below(rng, 5) == 0 ? kit_lead(k) : kit_beat(k);
    }
}

// One reader from INIT, one from each STATE: after every record all have the same digest; and a
// snapshot of the state read back is the state.
static void run_random(uint64_t seed, uint64_t accepted[16]) {
    struct td_rng rng = {seed};
    struct kit k;
    kit_init(&k);
    kit_go(&k, KIT_JOBBED);
    struct td_journal_state late;
    td_journal_state_init(&late);
    bool has_late = false;
    for (int i = 0; i < 250; i++) {
        size_t before = k.log_count;
        if (td_rng_below(&rng, 20) == 0) {
            put_state(&k, 16 + td_rng_below(&rng, 2000), td_rng_below(&rng, 8));
        } else {
            td_record *r = random_body(&k, &rng);
            td_journal_header(&k.state, r);
            bool allowed = td_journal_allows(&k.state, r, NULL);
            enum td_verdict verdict = kit_put(&k, r);
            assert_int_equal(verdict, allowed ? TD_ACCEPTED : TD_REJECTED);
            accepted[r->body_case - TANDEM__JOURNAL__RECORD__BODY_INIT] += allowed;
        }
        for (size_t at = before; has_late && at < k.log_count; at++) {
            kit_read(&k, at, &late, NULL);
        }
        if (k.state.trim.offset >= 0 && (!has_late || td_rng_below(&rng, 30) == 0)) {
            td_journal_state_fini(&late);
            late.start = k.state.trim.offset;
            for (size_t at = (size_t)late.start; at < k.log_count; at++) {
                kit_read(&k, at, &late, NULL);
            }
            has_late = true;
        }
        if (has_late && td_journal_digest(&late) != td_journal_digest(&k.state)) {
            fail_msg("seed %" PRIu64 ": the readers differ after %zu records", seed, k.log_count);
        }
    }
    td_journal_state_fini(&late);
    kit_fini(&k);
}

static void test_state_random_readers_agree(void **unused) {
    (void)unused;
    uint64_t accepted[16] = {0};
    for (uint64_t seed = 1; seed <= 60; seed++) {
        run_random(seed, accepted);
    }
    uint64_t fresh = (uint64_t)time(NULL);
    print_message("fresh seed %" PRIu64 "\n", fresh);
    run_random(fresh, accepted);
    static const int needed[] = {5, 6, 7, 8, 9, 10, 11, 12, 13}; // GANG … FORK all happened
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        if (accepted[needed[i]] < 10) {
            fail_msg("only %" PRIu64 " accepted records of body %d", accepted[needed[i]],
                     needed[i]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_state_effects),
        cmocka_unit_test(test_state_reseal_reopens),
        cmocka_unit_test(test_state_fork_reopens_rounds),
        cmocka_unit_test(test_state_cursor_goes_over_the_epoch),
        cmocka_unit_test(test_state_in_parts),
        cmocka_unit_test(test_state_interrupted_is_no_trim_point),
        cmocka_unit_test(test_state_start_without_base_is_damage),
        cmocka_unit_test(test_state_init_adopts),
        cmocka_unit_test(test_state_keeps_how_a_job_ended),
        cmocka_unit_test(test_state_init_refuses_contradictions),
        cmocka_unit_test(test_record_decode_refuses),
        cmocka_unit_test(test_follower_catches_up),
        cmocka_unit_test(test_follower_stops_at_a_gap_read_twice),
        cmocka_unit_test(test_follower_stops_at_damage),
        cmocka_unit_test(test_state_random_readers_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
