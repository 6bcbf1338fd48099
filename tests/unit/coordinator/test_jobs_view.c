// What users are told is text, whatever members report and wherever it was cut: JSON and protobuf
// know nothing but UTF-8, and a client that gets something else sees no answer at all.
#include "coordinator/daemon/jobs_view.h"

#include <string.h>

#include "coordinator/daemon/daemon_int.h"
#include "lib/base/utf8.h"
#include "tests/unit/cmocka_all.h"
#include "tests/unit/coordinator/bench.h"

static void assert_text(const char *text) {
    assert_int_equal(td_utf8_check((const uint8_t *)text, strlen(text)), strlen(text));
}

static void assert_json(json_t *json) {
    assert_non_null(json);
    json_decref(json);
}

static Tandem__Sync__Report *train_member(struct bench *b, const char *trouble) {
    Tandem__Sync__Report *r = bench_make(b, sizeof *r);
    tandem__sync__report__init(r);
    r->member = TRAIN;
    r->kind = TANDEM__SYNC__MEMBER_KIND__TRAIN;
    r->report = 1;
    r->workers = r->workers_ready = 2;
    r->build = (char *)"now";
    r->serves = trouble[0] ? 1 : 0;
    r->trouble = (char *)trouble;
    return r;
}

static void test_jobs_view_cut_text(void **state) {
    (void)state;
    for (size_t before = 0; before < 4; before++) {
        struct bench b;
        bench_init(&b);
        b.assign = true;
        bench_start(&b, 0, true);
        bench_submit(&b, 0, "a request \xff", 5, 0);
        char trouble[400] = "xxx";
        for (size_t at = before; at + 3 < sizeof trouble; at += 3) {
            memcpy(trouble + at, "€", 4);
        }
        trouble[sizeof trouble - 3] = 0; // before all: cut within a character
        bench_report(&b, 0, train_member(&b, ""));
        bench_report(&b, 0, train_member(&b, trouble));
        struct td_jobs_view v = {b.c[0], "/shared \xe2\x82", b.now, td_arena_new()};
        Tandem__V1__Job job;
        Tandem__V1__ListMembersResponse members;
        assert_true(td_jobs_view_job(&v, 1, &job));
        td_jobs_view_members(&v, &members);
        assert_int_equal(members.n_members, 1);
        assert_non_null(strstr(job.waits_for, "€€€"));
        assert_text(job.waits_for);
        assert_text(job.request_id);
        assert_text(job.folder);
        assert_text(members.members[0]->waits_for);
        assert_json(td_coordinator_job_json(&job));
        assert_json(td_coordinator_member_json(members.members[0]));
        td_arena_free(v.arena);
        bench_fini(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_jobs_view_cut_text)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
