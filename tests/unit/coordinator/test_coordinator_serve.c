// Which job a member serves, and how a job is submitted whose files a member has to read first.
#include "tests/unit/cmocka_all.h"

#include <string.h>

#include "tests/unit/coordinator/bench.h"

static void begin(struct bench *b) {
    bench_init(b);
    b->assign = true;
    bench_start(b, 0, true);
}

// A member that serves nothing yet, or a job whose files it has.
static Tandem__Sync__Report *idle(struct bench *b, uint64_t member, bool train) {
    Tandem__Sync__Report *r = bench_make(b, sizeof *r);
    tandem__sync__report__init(r);
    r->member = member;
    r->kind = train ? TANDEM__SYNC__MEMBER_KIND__TRAIN : TANDEM__SYNC__MEMBER_KIND__ROLLOUT;
    r->report = 1;
    r->workers = 2;
    r->build = (char *)"now";
    return r;
}

static Tandem__Sync__Report *serving(struct bench *b, uint64_t member, bool train, uint64_t job) {
    Tandem__Sync__Report *r = idle(b, member, train);
    r->serves = job;
    r->workers_ready = 2;
    r->index = bench_index(b, td_journal_job(&b->truth, job)->job->index->rows);
    return r;
}

static void come(struct bench *b, uint64_t member, bool train) {
    bench_report(b, 0, idle(b, member, train));
}

static void serve(struct bench *b, uint64_t member, uint64_t job) {
    bench_report(b, 0, serving(b, member, true, job));
}

// A train member comes, is told the job and takes it up.
static void train(struct bench *b, uint64_t member, uint64_t job) {
    come(b, member, true);
    serve(b, member, job);
}

static void first_trains(struct bench *b) {
    bench_submit(b, 0, "first", 5, 0);
    train(b, TRAIN, 1);
}

static uint64_t told(const struct bench *b, uint64_t member) {
    const Tandem__Sync__Orders *o = b->orders[member % 512];
    return o && o->serve ? o->serve->job : 0;
}

static const char *asked(const struct bench *b, uint64_t member) {
    const Tandem__Sync__Orders *o = b->orders[member % 512];
    return o && o->n_index ? o->index[0]->request_id : "";
}

// What the member was asked last, answered or not.
static Tandem__Sync__Indexed *answer(struct bench *b, uint64_t member) {
    const Tandem__Sync__Index *order = b->orders[member % 512]->index[0];
    Tandem__Sync__Indexed *x = bench_make(b, sizeof *x);
    tandem__sync__indexed__init(x);
    x->request_id = td_arena_strndup(b->arena, order->request_id, strlen(order->request_id));
    x->attempt = bench_make(b, sizeof *x->attempt);
    *x->attempt = *order->attempt;
    return x;
}

static void report_indexed(struct bench *b, uint64_t member, Tandem__Sync__Indexed *x,
                           uint64_t rows, const char *error) {
    Tandem__Sync__Report *r = idle(b, member, true);
    x->index = rows ? bench_index(b, rows) : NULL;
    x->error = (char *)error;
    r->indexed = bench_make(b, sizeof *r->indexed);
    r->indexed[0] = x;
    r->n_indexed = 1;
    bench_report(b, 0, r);
}

static void indexed(struct bench *b, uint64_t member, uint64_t rows, const char *error) {
    report_indexed(b, member, answer(b, member), rows, error);
}

static void test_serve_index(void **unused) {
    (void)unused;
    struct bench b;
    begin(&b);
    bench_submit(&b, 0, "first", 0, 0);
    bench_pass(&b, 500);
    assert_int_equal(b.accepted, 0); // nobody is there to read its files
    come(&b, TRAIN, true);
    assert_string_equal(asked(&b, TRAIN), "first");
    bench_pass(&b, 2000); // it went away
    come(&b, ROLL, false);
    assert_string_equal(asked(&b, ROLL), "first");
    indexed(&b, ROLL, 5, "");
    assert_int_equal(b.accepted, 1);
    assert_int_equal(bench_job(&b)->job->index->rows, 5);
    assert_int_equal(bench_job(&b)->open_max, 7); // one batch and one data epoch
    assert_string_equal(asked(&b, ROLL), "");
    bench_submit(&b, 0, "second", 0, 0);
    come(&b, ROLL, false);
    indexed(&b, ROLL, 0, "no such file");
    assert_string_equal(b.refused, "no such file");
    bench_submit(&b, 0, "third", 0, 0);
    come(&b, ROLL, false);
    indexed(&b, ROLL, 1, "");
    assert_string_equal(b.refused, "fewer rows than data.train_batch_size");
    bench_submit(&b, 0, "first", 0, 0); // the same job
    bench_pass(&b, 100);
    assert_int_equal(b.accepted, 1);
    assert_int_equal(b.truth.job_count, 1);
    bench_fini(&b);
}

// The same request again after a refusal: what was said of the first attempt does not count.
static void test_serve_index_of_an_old_attempt(void **unused) {
    (void)unused;
    struct bench b;
    begin(&b);
    bench_submit(&b, 0, "first", 0, 0);
    come(&b, ROLL, false);
    Tandem__Sync__Indexed *old = answer(&b, ROLL);
    report_indexed(&b, ROLL, old, 0, "no such file");
    assert_string_equal(b.refused, "no such file");
    bench_submit(&b, 0, "first", 0, 0);
    come(&b, ROLL, false);
    report_indexed(&b, ROLL, old, 0, "no such file");
    assert_string_equal(b.refused, "");
    report_indexed(&b, ROLL, old, 4, "");
    assert_int_equal(b.accepted, 0);
    indexed(&b, ROLL, 5, "");
    assert_int_equal(b.accepted, 1);
    assert_int_equal(bench_job(&b)->job->index->rows, 5);
    bench_fini(&b);
}

// A leader that was deposed and leads again: what it was submitted before, others may have refused.
static void test_serve_submission_of_an_old_term(void **unused) {
    (void)unused;
    struct bench b;
    begin(&b);
    bench_start(&b, 1, false);
    bench_submit(&b, 0, "first", 0, 0);
    b.cut[0] = true;
    bench_pass(&b, 2500);
    assert_true(td_coordinator_leads(b.c[1]));
    b.cut[0] = false;
    b.cut[1] = true;
    struct td_coordinator_event e = {.kind = TD_CO_APPENDED};
    bench_event(&b, 0, &e); // of its last BEAT
    bench_pass(&b, 5000);
    assert_int_equal(b.truth.term, 3);
    assert_int_equal(b.truth.owner, 0xC0);
    come(&b, ROLL, false);
    assert_string_equal(asked(&b, ROLL), "");
    bench_submit(&b, 0, "first", 0, 0);
    come(&b, ROLL, false);
    assert_string_equal(asked(&b, ROLL), "first");
    bench_fini(&b);
}

// One train member, two jobs: the second one waits until the first has ended.
static void test_serve_train_members_one_job_each(void **unused) {
    (void)unused;
    struct bench b;
    begin(&b);
    bench_submit(&b, 0, "first", 5, 0);
    bench_submit(&b, 0, "second", 5, 0);
    come(&b, TRAIN, true);
    assert_int_equal(told(&b, TRAIN), 1);
    assert_int_equal(b.truth.jobs[0]->gang_count, 0); // its files are not read yet
    serve(&b, TRAIN, 1);
    assert_int_equal(b.truth.jobs[0]->gang_count, 1);
    come(&b, TRAIN + 1, true);
    assert_int_equal(told(&b, TRAIN + 1), 2);
    come(&b, TRAIN + 2, true);
    assert_int_equal(told(&b, TRAIN + 2), 0); // nothing is left
    struct td_coordinator_event e = {.kind = TD_CO_CANCEL, .job = 1};
    bench_event(&b, 0, &e);
    serve(&b, TRAIN, 1);
    assert_int_equal(told(&b, TRAIN), 0);
    assert_int_equal(told(&b, TRAIN + 1), 2);
    bench_fini(&b);
}

// The gang's member died: another one takes the job up.
static void test_serve_train_member_replaced(void **unused) {
    (void)unused;
    struct bench b;
    begin(&b);
    first_trains(&b);
    for (int i = 0; i < 20; i++) {
        come(&b, TRAIN + 1, true);
        bench_pass(&b, 100);
    }
    assert_int_equal(told(&b, TRAIN + 1), 1);
    serve(&b, TRAIN + 1, 1);
    const struct td_gang_state *g = td_job_gang(bench_job(&b), "actor");
    assert_true(g->generation == 2 && g->spec->members[0] == TRAIN + 1);
    bench_fini(&b);
}

static void roll(struct bench *b, uint64_t member) {
    uint64_t job = told(b, member);
    bench_report(b, 0, job ? serving(b, member, false, job) : idle(b, member, false));
}

static void test_serve_rollout_members_are_shared_out(void **unused) {
    (void)unused;
    struct bench b;
    begin(&b);
    bench_submit(&b, 0, "first", 5, 0);
    roll(&b, ROLL);
    assert_int_equal(told(&b, ROLL), 0); // it does not train yet
    come(&b, TRAIN, true);
    serve(&b, TRAIN, 1);
    for (uint64_t i = 0; i < 3; i++) {
        roll(&b, ROLL + i);
        roll(&b, ROLL + i);
        assert_int_equal(told(&b, ROLL + i), 1);
    }
    bench_submit(&b, 0, "second", 5, 0);
    train(&b, TRAIN + 1, 2);
    size_t second = 0;
    for (uint64_t i = 0; i < 3; i++) {
        roll(&b, ROLL + i);
        second += told(&b, ROLL + i) == 2;
    }
    assert_int_equal(second, 1);
    struct td_coordinator_event e = {.kind = TD_CO_CANCEL, .job = 1};
    bench_event(&b, 0, &e);
    for (uint64_t i = 0; i < 3; i++) {
        roll(&b, ROLL + i);
        assert_int_equal(told(&b, ROLL + i), 2);
    }
    bench_fini(&b);
}

static void assert_waits(const struct bench *b, const char *text) {
    struct td_job_view view;
    assert_true(td_coordinator_job_view(b->c[0], 1, &view));
    assert_non_null(strstr(view.text, text));
}

// A member whose files are others, or that cannot serve the job, is left alone for a while.
static void test_serve_unfit(void **unused) {
    (void)unused;
    for (int wrong_files = 0; wrong_files < 2; wrong_files++) {
        struct bench b;
        begin(&b);
        bench_submit(&b, 0, "first", 5, 0);
        come(&b, TRAIN, true);
        assert_int_equal(told(&b, TRAIN), 1);
        Tandem__Sync__Report *r = serving(&b, TRAIN, true, 1);
        if (wrong_files) {
            r->index->data_digest++;
        } else {
            r->trouble = (char *)"no such model";
        }
        bench_report(&b, 0, r);
        assert_int_equal(told(&b, TRAIN), 0);
        assert_int_equal(bench_job(&b)->gang_count, 0);
        assert_waits(&b, wrong_files ? "its files are others" : "no such model");
        come(&b, TRAIN + 1, true);
        assert_int_equal(told(&b, TRAIN + 1), 1);
        bench_pass(&b, 31000);
        come(&b, TRAIN, true);
        assert_int_equal(told(&b, TRAIN), 1); // the other one has gone meanwhile
        bench_fini(&b);
    }
}

// One that leads a gang cannot serve the job any more: another one takes it up, the gang goes
// there.
static void test_serve_gang_of_an_unfit_member(void **unused) {
    (void)unused;
    struct bench b;
    begin(&b);
    first_trains(&b);
    assert_int_equal(bench_job(&b)->gang_count, 1);
    Tandem__Sync__Report *r = serving(&b, TRAIN, true, 1); // it was started anew
    r->trouble = (char *)"no such model";
    r->workers_ready = 0;
    bench_report(&b, 0, r);
    assert_int_equal(told(&b, TRAIN), 0);
    come(&b, TRAIN + 1, true);
    assert_int_equal(told(&b, TRAIN + 1), 1);
    serve(&b, TRAIN + 1, 1);
    assert_int_equal(td_job_gang(bench_job(&b), "actor")->spec->members[0], TRAIN + 1);
    bench_fini(&b);
}

// The first orders of a term name what is served, even while the leader waits for the log: without
// it the member would give up the job that it leads the gang of.
static void test_serve_first_orders_of_a_term(void **unused) {
    (void)unused;
    struct bench b;
    begin(&b);
    bench_start(&b, 1, false);
    first_trains(&b);
    b.cut[0] = true;
    bench_pass(&b, 2500);
    assert_true(td_coordinator_leads(b.c[1]));
    b.cut[1] = true;
    struct td_coordinator_event e = {.kind = TD_CO_APPENDED};
    bench_event(&b, 1, &e);                     // and it asks for the log's end
    bench_report(&b, 1, idle(&b, TRAIN, true)); // it was started anew, its workers go on
    assert_int_equal(b.orders[TRAIN]->term, 2);
    assert_int_equal(told(&b, TRAIN), 1);
    bench_fini(&b);
}

static void roll_units(struct bench *b, uint64_t member, uint32_t capacity) {
    Tandem__Sync__Report *r = bench_roll(b, member, capacity);
    r->serves = told(b, member);
    bench_report(b, 0, r);
}

// A member that is moved to another job loses its units.
static void test_serve_units_of_a_moved_member(void **unused) {
    (void)unused;
    struct bench b;
    begin(&b);
    first_trains(&b);
    Tandem__Sync__Report *r = bench_train(&b);
    bench_report(&b, 0, r); // RESTORE
    bench_add_finished(&b, r);
    bench_report(&b, 0, r);
    bench_report(&b, 0, bench_train(&b)); // DRAW
    assert_int_equal(bench_job(&b)->open_count, 2);
    for (uint64_t i = 0; i < 2; i++) {
        roll(&b, ROLL + i);
        roll_units(&b, ROLL + i, 1);
        assert_int_equal(b.orders[ROLL + i]->n_units, 1);
    }
    bench_submit(&b, 0, "second", 5, 0);
    train(&b, TRAIN + 1, 2);
    roll_units(&b, ROLL, 1);
    roll_units(&b, ROLL + 1, 1);
    assert_int_equal(told(&b, ROLL) + told(&b, ROLL + 1), 3);
    uint64_t stays = told(&b, ROLL) == 1 ? ROLL : ROLL + 1;
    bench_report(&b, 0, bench_train(&b));
    roll_units(&b, stays, 2); // and one for which there is room yet
    assert_int_equal(b.orders[stays]->n_units, 2);
    bench_fini(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_serve_index),
        cmocka_unit_test(test_serve_index_of_an_old_attempt),
        cmocka_unit_test(test_serve_submission_of_an_old_term),
        cmocka_unit_test(test_serve_train_members_one_job_each),
        cmocka_unit_test(test_serve_train_member_replaced),
        cmocka_unit_test(test_serve_rollout_members_are_shared_out),
        cmocka_unit_test(test_serve_unfit),
        cmocka_unit_test(test_serve_gang_of_an_unfit_member),
        cmocka_unit_test(test_serve_first_orders_of_a_term),
        cmocka_unit_test(test_serve_units_of_a_moved_member),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
