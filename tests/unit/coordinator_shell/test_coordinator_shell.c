// The coordinator's shell over a memory log: it leads, survives unknown outcomes, stops at failed
// ones, and is not called once it is gone; over a file log it follows another one.
#include "coordinator/shell.h"
#include "lib/io/link.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/clock.h"
#include "lib/base/file.h"
#include "lib/io/log_file.h"
#include "lib/io/log_memory.h"
#include "tests/unit/io/wait.h"

enum { JOURNAL = 0x10c, MEMBER = 5, HEIR_TAKEOVER_MS = 3000 };

struct rig {
    struct td_loop *loop;
    struct td_log *journal;
    struct td_link_hub *hub;
    struct td_coordinator_shell *shell;
    bool heir; // follows another one
    int stops, accepted, refused, leads, orders, closed;
    char cause[256];
    uint64_t job;
};

static bool plan_of(void *user, const Tandem__Journal__Job *job, struct td_job_plan *out) {
    (void)user;
    *out = (struct td_job_plan){.rows_job = true,
                                .train_batch_size = 2,
                                .total_steps = 3,
                                .unit_groups = 1,
                                .lease_ms = 1000};
    return job->spec.len > 0;
}

static uint64_t row_digest(void *user, uint64_t job, struct td_group group) {
    (void)user, (void)job;
    return group.index;
}

static void on_accepted(void *user, const char *request_id, uint64_t job) {
    struct rig *r = user;
    assert_string_equal(request_id, "request");
    r->accepted++;
    r->job = job;
}

static void on_refused(void *user, const char *request_id, const char *cause) {
    struct rig *r = user;
    (void)request_id, (void)cause;
    r->refused++;
}

static void on_ended(void *user, uint64_t job, enum _Tandem__Journal__Outcome outcome,
                     const char *cause) {
    (void)user, (void)job, (void)outcome, (void)cause;
    fail();
}

static void on_stop(void *user, const char *cause) {
    struct rig *r = user;
    r->stops++;
    strncpy(r->cause, cause, sizeof r->cause - 1);
}

static void on_trim(void *user, uint64_t job, const struct td_log_position *positions, size_t n) {
    (void)user, (void)job, (void)positions, (void)n;
}

static void on_orders_out(void *user, uint64_t member, const uint8_t *bytes, size_t n) {
    const struct rig *r = user;
    td_link_orders(r->hub, member, bytes, n);
}

static void on_changed(void *user) {
    struct rig *r = user;
    const struct td_coordinator *c = td_coordinator_shell_machine(r->shell);
    r->leads = td_coordinator_leads(c) && td_coordinator_state(c)->based;
}

static void start(struct rig *r, uint64_t expect) {
    struct td_coordinator_shell_config c = {
        .loop = r->loop,
        .journal = r->journal,
        .machine = {.owner = (uint64_t)(uintptr_t)r | 1,
                    .create_journal_id = JOURNAL,
                    .expect_journal_id = expect,
                    .lead_at_once = !r->heir,
                    .takeover_ms = r->heir ? HEIR_TAKEOVER_MS : 20000,
                    .beat_ms = 50,
                    .member_timeout_ms = 20000,
                    .state_every = 1000,
                    .plan_of = plan_of,
                    .row_digest = row_digest,
                    .user = r},
        .fns = {on_accepted, on_refused, on_ended, on_stop, on_trim, on_orders_out, on_changed},
        .user = r};
    r->shell = td_coordinator_shell_new(&c);
    r->hub = td_link_hub_new_local(r->loop, td_coordinator_shell_report, r->shell);
}

static void make(struct rig *r) {
    *r = (struct rig){.loop = new_loop()};
    r->journal = td_log_memory_new(r->loop, JOURNAL, 1);
    start(r, JOURNAL);
}

static void drop(struct rig *r) {
    td_coordinator_shell_free(r->shell);
    td_link_hub_free(r->hub);
    r->shell = NULL;
    r->hub = NULL;
}

static void on_closed(void *user) {
    ((struct rig *)user)->closed++;
}

static void close_journal(struct rig *r) {
    if (r->shell) {
        drop(r);
    }
    td_log_close(r->journal, on_closed, r);
    wait_until(r->loop, &r->closed, 1);
}

static void fini(struct rig *r) {
    close_journal(r);
    td_loop_free(r->loop);
}

static void submit(struct rig *r, size_t spec_bytes) {
    Tandem__Journal__DataIndex index = TANDEM__JOURNAL__DATA_INDEX__INIT;
    index.rows = 10;
    struct td_submit s = {.request_id = "request",
                          .spec = "spec",
                          .spec_bytes = spec_bytes,
                          .index = &index,
                          .open_max = 100};
    td_coordinator_shell_submit(r->shell, &s);
}

static void pass_ms(struct rig *r, int64_t ms) {
    int zero = 0;
    struct wait wait = {r->loop, NULL, &zero, 1, td_clock_ms() + ms};
    wait.timer = td_timer_new(r->loop, wait_check, &wait);
    td_timer_start(wait.timer, 0);
    td_loop_run(r->loop);
    td_timer_close(wait.timer);
}

static void test_coordinator_shell_leads(void **state) {
    (void)state;
    struct rig r;
    make(&r);
    wait_until(r.loop, &r.leads, 1);
    submit(&r, 4);
    wait_until(r.loop, &r.accepted, 1);
    uint64_t job = r.job;
    submit(&r, 4); // the same request
    wait_until(r.loop, &r.accepted, 2);
    assert_true(r.job == job && r.stops == 0 && r.refused == 0);
    drop(&r);
    r.leads = 0;
    start(&r, JOURNAL); // another process on the same journal: the job is there
    wait_until(r.loop, &r.leads, 1);
    struct td_job_view view;
    assert_true(td_coordinator_job_view(td_coordinator_shell_machine(r.shell), job, &view));
    fini(&r);
}

static void test_coordinator_shell_refuses(void **state) {
    (void)state;
    struct rig r;
    make(&r);
    submit(&r, 0); // settings that nobody understands
    wait_until(r.loop, &r.refused, 1);
    assert_int_equal(r.stops, 0);
    fini(&r);
}

// Whether an append of unknown outcome landed or not makes no difference.
static void test_coordinator_shell_unknown_outcomes(void **state) {
    (void)state;
    for (int landed = 0; landed < 2; landed++) {
        struct rig r;
        make(&r);
        td_log_memory_inject(r.journal, TD_LOG_UNKNOWN, landed);
        wait_until(r.loop, &r.leads, 1);
        submit(&r, 4);
        wait_until(r.loop, &r.accepted, 1);
        assert_int_equal(r.stops, 0);
        fini(&r);
    }
}

// A disk that is full: told once an append has failed, with its cause.
static void test_coordinator_shell_failed_append(void **state) {
    (void)state;
    struct rig r;
    make(&r);
    td_log_memory_inject(r.journal, TD_LOG_FAILED, false);
    wait_until(r.loop, &r.stops, 1);
    assert_true(strlen(r.cause) > 0);
    fini(&r);
}

// A log that does not answer: nothing stops, and it leads when the log is back.
static void test_coordinator_shell_outage(void **state) {
    (void)state;
    struct rig r = {.loop = new_loop()};
    r.journal = td_log_memory_new(r.loop, JOURNAL, 1);
    td_log_memory_set_outage(r.journal, true); // from the first question on
    start(&r, JOURNAL);
    pass_ms(&r, 500);
    assert_true(r.leads == 0 && r.stops == 0);
    td_log_memory_set_outage(r.journal, false);
    wait_until(r.loop, &r.leads, 1);
    td_log_memory_set_outage(r.journal, true); // while it leads, with a record to write
    submit(&r, 4);
    pass_ms(&r, 500);
    assert_true(r.accepted == 0 && r.stops == 0);
    td_log_memory_set_outage(r.journal, false);
    wait_until(r.loop, &r.accepted, 1);
    assert_int_equal(r.stops, 0);
    fini(&r);
}

static void test_coordinator_shell_other_journal(void **state) {
    (void)state;
    struct rig r;
    make(&r);
    wait_until(r.loop, &r.leads, 1);
    drop(&r);
    start(&r, JOURNAL + 1);
    wait_until(r.loop, &r.stops, 1);
    assert_non_null(strstr(r.cause, "holds journal 000000000000010c"));
    fini(&r);
}

// Freed with calls of the log under way, at different moments: none of them reaches it.
static void test_coordinator_shell_free_at_any_time(void **state) {
    (void)state;
    for (int turns = 0; turns < 12; turns++) {
        struct rig r;
        make(&r);
        for (int i = 0; i < turns; i++) {
            pass_ms(&r, 0);
        }
        submit(&r, 4);
        drop(&r);
        fini(&r);
    }
}

// ---- after another one ----

struct unseen { // of the log's thread
    atomic_bool wanted;
    atomic_int count;
};

static int keep_unseen(void *user, const char *name) {
    struct unseen *u = user;
    bool hit = atomic_load(&u->wanted) && strcmp(name, "publish") == 0;
    atomic_fetch_add(&u->count, hit);
    return hit ? EIO : 0;
}

// A leader dies between writing a record and publishing it. The LEAD of the next one lands behind
// that record, which it could not see, and comes to nothing; it soon tries again.
static void test_coordinator_shell_leads_soon_behind_an_unseen_record(void **state) {
    (void)state;
    char folder[] = "/tmp/td-unseen-XXXXXX";
    assert_non_null(mkdtemp(folder));
    struct unseen unseen = {0};
    struct td_log_hooks hooks = {keep_unseen, &unseen};
    struct td_log_file_opts opts = {.folder = folder, .id = JOURNAL, .partitions = 1};
    struct rig dies = {.loop = new_loop()}, heir = {.loop = dies.loop, .heir = true};
    assert_int_equal(td_log_file_create(&opts, NULL), TD_OK);
    assert_int_equal(td_log_file_open(heir.loop, &opts, &heir.journal, NULL), TD_OK);
    opts.hooks = &hooks;
    assert_int_equal(td_log_file_open(dies.loop, &opts, &dies.journal, NULL), TD_OK);
    start(&dies, JOURNAL);
    wait_until(dies.loop, &dies.leads, 1);
    start(&heir, JOURNAL);
    pass_ms(&heir, 200);
    atomic_store(&unseen.wanted, true);
    while (atomic_load(&unseen.count) == 0) {
        pass_ms(&heir, 5);
    }
    close_journal(&dies);
    int64_t since_ms = td_clock_ms();
    wait_until(heir.loop, &heir.leads, 1);
    assert_true(td_clock_ms() - since_ms < 2 * HEIR_TAKEOVER_MS - 500);
    assert_int_equal(td_coordinator_state(td_coordinator_shell_machine(heir.shell))->term, 2);
    fini(&heir);
    assert_int_equal(td_remove_tree(folder, NULL), TD_OK);
}

// ---- reports ----

static void on_orders(void *user, const uint8_t *bytes, size_t n) {
    struct rig *r = user;
    Tandem__Sync__Orders *o = tandem__sync__orders__unpack(NULL, n, bytes);
    assert_non_null(o);
    assert_int_equal(o->journal_id, JOURNAL);
    r->orders++;
    tandem__sync__orders__free_unpacked(o, NULL);
}

// Orders answer a report; bytes that are none, or of another member, are passed over.
static void test_coordinator_shell_reports(void **state) {
    (void)state;
    struct rig r;
    struct td_link *link = NULL;
    make(&r);
    wait_until(r.loop, &r.leads, 1);
    assert_int_equal(td_link_new(r.hub, MEMBER, on_orders, &r, &link, NULL), TD_OK);
    Tandem__Sync__Report report = TANDEM__SYNC__REPORT__INIT;
    report.kind = TANDEM__SYNC__MEMBER_KIND__TRAIN;
    report.build = (char *)"b";
    report.device = (char *)"cpu";
    uint8_t bytes[256];
    td_coordinator_shell_report(r.shell, MEMBER, (const uint8_t *)"\xff\xff\xff", 3);
    report.member = MEMBER + 1;
    size_t n = tandem__sync__report__pack(&report, bytes);
    td_coordinator_shell_report(r.shell, MEMBER, bytes, n);
    assert_int_equal(r.orders, 0);
    report.member = MEMBER;
    report.report = 1;
    n = tandem__sync__report__pack(&report, bytes);
    td_link_report(link, bytes, n);
    wait_until(r.loop, &r.orders, 1);
    td_link_free(link);
    fini(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_coordinator_shell_leads),
        cmocka_unit_test(test_coordinator_shell_refuses),
        cmocka_unit_test(test_coordinator_shell_unknown_outcomes),
        cmocka_unit_test(test_coordinator_shell_failed_append),
        cmocka_unit_test(test_coordinator_shell_outage),
        cmocka_unit_test(test_coordinator_shell_other_journal),
        cmocka_unit_test(test_coordinator_shell_free_at_any_time),
        cmocka_unit_test(test_coordinator_shell_leads_soon_behind_an_unseen_record),
        cmocka_unit_test(test_coordinator_shell_reports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
