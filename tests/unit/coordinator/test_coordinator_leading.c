// Leading: INIT, LEAD, BEAT, STATE, take-over, silence.
#include "tests/unit/cmocka_all.h"

#include <string.h>

#include "tests/unit/coordinator/bench.h"

static void test_leading_creates_the_journal_and_leads_at_once(void **unused) {
    (void)unused;
    struct bench b;
    bench_init(&b);
    bench_start(&b, 0, true);
    assert_string_equal(bench_names(&b, 0), "INIT LEAD");
    assert_true(td_coordinator_leads(b.c[0]));
    assert_int_equal(td_coordinator_state(b.c[0])->journal_id, 0x1D);
    bench_fini(&b);
}

static void test_leading_waits_for_the_takeover_time(void **unused) {
    (void)unused;
    struct bench b;
    bench_init(&b);
    bench_start(&b, 0, false);
    bench_start(&b, 1, false);
    bench_pass(&b, 900);
    assert_string_equal(bench_names(&b, 0), "INIT");
    bench_pass(&b, 300);
    assert_string_equal(bench_names(&b, 0), "INIT LEAD");
    assert_true(td_coordinator_leads(b.c[0]) != td_coordinator_leads(b.c[1]));
    bench_fini(&b);
}

// Two coordinators; the first leads, and members reach it.
static void two(struct bench *b) {
    bench_init(b);
    bench_start(b, 0, true);
    bench_start(b, 1, false);
    bench_report(b, 0, bench_train(b));
}

static void pass_with_reports(struct bench *b, int leader, int64_t ms) {
    for (int64_t end = b->now + ms; b->now < end;) {
        bench_pass(b, 100);
        bench_report(b, leader, bench_train(b));
    }
}

static void test_leading_beats_keep_the_standby_quiet(void **unused) {
    (void)unused;
    struct bench b;
    two(&b);
    pass_with_reports(&b, 0, 5000);
    assert_int_equal(b.truth.term, 1);
    assert_true(b.log_count > 20 && b.log_count < 60); // about one BEAT each 200 ms
    bench_fini(&b);
}

static void test_leading_cut_off_from_the_log_is_replaced_and_gives_no_orders(void **unused) {
    (void)unused;
    struct bench b;
    two(&b);
    b.cut[0] = true;
    pass_with_reports(&b, 0, 900);
    assert_int_equal(b.truth.term, 1);
    pass_with_reports(&b, 0, 1000);
    assert_int_equal(b.truth.term, 2);
    assert_true(td_coordinator_leads(b.c[1]));
    size_t orders = b.orders_count;
    pass_with_reports(&b, 0, 500);
    assert_int_equal(b.orders_count, orders); // it still believes that it leads, but says nothing
    assert_true(td_coordinator_leads(b.c[0]));
    bench_fini(&b);
}

// Two, and the leader is dead from now on; what it appended last is there, but is not seen.
static void two_and_one_dies_within_an_append(struct bench *b) {
    two(b);
    pass_with_reports(b, 0, 1000);
    b->cut[1] = true;
    size_t count = b->log_count;
    while (b->log_count == count) {
        bench_pass(b, 50);
    }
    b->cut[0] = true;
    b->cut[1] = false;
    b->hidden = true;
}

static void test_leading_is_tried_again_soon_behind_an_unseen_record(void **unused) {
    (void)unused;
    struct bench b;
    two_and_one_dies_within_an_append(&b);
    size_t count = b.log_count;
    bench_pass(&b, 1000);
    assert_int_equal(b.log_count, count + 1); // a LEAD that came to nothing
    assert_int_equal(b.truth.term, 1);
    bench_pass(&b, 500);
    assert_int_equal(b.truth.term, 2);
    assert_true(td_coordinator_leads(b.c[1]));
    bench_fini(&b);
}

static void test_leading_is_not_tried_again_soon_when_the_leader_goes_on(void **unused) {
    (void)unused;
    struct bench b;
    two_and_one_dies_within_an_append(&b);
    size_t count = b.log_count;
    while (b.log_count == count) {
        bench_pass(&b, 50);
    }
    b.cut[0] = false;
    struct td_coordinator_event lost = {.kind = TD_CO_APPENDED};
    bench_event(&b, 0, &lost); // what it appended in the meantime
    pass_with_reports(&b, 0, 3000);
    assert_int_equal(b.truth.term, 1);
    assert_true(b.log_count > count + 10); // beats
    bench_fini(&b);
}

static void test_leading_without_members_falls_silent(void **unused) {
    (void)unused;
    struct bench b;
    bench_init(&b);
    bench_start(&b, 0, false);
    bench_pass(&b, 1500);
    assert_true(td_coordinator_leads(b.c[0]));
    bench_start(&b, 1, false);
    bench_pass(&b, 2800); // a take-over time with beats, one without
    assert_int_equal(b.truth.term, 2);
    assert_true(td_coordinator_leads(b.c[1]));
    bench_fini(&b);
}

static void test_leading_writes_state_and_trims(void **unused) {
    (void)unused;
    struct bench b;
    two(&b);
    bench_submit(&b, 0, "first", 10, 4);
    pass_with_reports(&b, 0, 12000);
    assert_true(b.trimmed > 0);
    assert_int_equal(b.trimmed, b.truth.trim.offset);
    struct td_journal_state late;
    td_journal_state_init(&late);
    late.start = b.trimmed;
    for (size_t i = (size_t)b.trimmed; i < b.log_count; i++) {
        td_record *r;
        assert_int_equal(td_record_decode(b.log[i].bytes, b.log[i].n, &r, NULL), TD_OK);
        td_journal_apply(&late, r, b.log[i].pos, NULL);
        tandem__journal__record__free_unpacked(r, NULL);
    }
    assert_int_equal(td_journal_digest(&late), td_journal_digest(&b.truth));
    td_journal_state_fini(&late);
    assert_int_equal(b.truth.rejected, 0);
    bench_fini(&b);
}

static void test_leading_submit_is_idempotent_and_refused_with_a_cause(void **unused) {
    (void)unused;
    struct bench b;
    bench_init(&b);
    bench_start(&b, 0, true);
    bench_submit(&b, 0, "first", 10, 4);
    assert_int_equal(b.accepted, 1);
    b.accepted = 0;
    bench_submit(&b, 0, "first", 10, 4);
    assert_int_equal(b.accepted, 1);
    bench_submit(&b, 0, "second", 10, 4);
    assert_int_equal(b.accepted, 2);
    bench_submit(&b, 0, "third", 1, 4);
    assert_non_null(strstr(b.refused, "fewer rows"));
    bench_submit(&b, 0, "third", 10, 1);
    assert_non_null(strstr(b.refused, "open"));
    bench_submit(&b, 0, "", 10, 4);
    assert_non_null(strstr(b.refused, "request id"));
    b.refuse_spec = true;
    bench_submit(&b, 0, "third", 10, 4);
    assert_non_null(strstr(b.refused, "spec"));
    assert_string_equal(bench_names(&b, 0), "INIT LEAD JOB JOB");
    bench_fini(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_leading_creates_the_journal_and_leads_at_once),
        cmocka_unit_test(test_leading_waits_for_the_takeover_time),
        cmocka_unit_test(test_leading_beats_keep_the_standby_quiet),
        cmocka_unit_test(test_leading_cut_off_from_the_log_is_replaced_and_gives_no_orders),
        cmocka_unit_test(test_leading_is_tried_again_soon_behind_an_unseen_record),
        cmocka_unit_test(test_leading_is_not_tried_again_soon_when_the_leader_goes_on),
        cmocka_unit_test(test_leading_without_members_falls_silent),
        cmocka_unit_test(test_leading_writes_state_and_trims),
        cmocka_unit_test(test_leading_submit_is_idempotent_and_refused_with_a_cause),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
