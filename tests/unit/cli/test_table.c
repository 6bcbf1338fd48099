// What commands print of the API's messages: tables, lines, JSON.
#include "tests/unit/cmocka_all.h"

#include <jansson.h>
#include <string.h>

#include "cli/job_text.h"
#include "cli/lists.h"
#include "cli/message_json.h"
#include "cli/table.h"

static void expect(struct td_buf *out, const char *text) {
    assert_string_equal(td_buf_str(out), text);
    td_buf_fini(out);
}

static void test_table_aligns(void **state) {
    (void)state;
    struct td_table t = {0};
    struct td_buf out = {0};
    td_table_head(&t, "ID|NAME|WHY");
    td_table_put(&t, "%d", 1);
    td_table_put(&t, "é");
    td_table_put(&t, "one\ntwo\x1b[31m");
    td_table_put(&t, "%d", 1000);
    td_table_put(&t, "%s", "");
    td_table_put(&t, "x");
    td_table_print(&t, &out);
    td_table_fini(&t);
    expect(&out, "ID     NAME   WHY\n"
                 "1      é      one two [31m\n"
                 "1000   -      x\n");
}

static void test_table_durations(void **state) {
    static const struct {
        int64_t ms;
        const char *text;
    } rows[] = {{-5, "0ms"},       {999, "999ms"},       {1000, "1s"},
                {59999, "59s"},    {60000, "1m0s"},      {3599000, "59m59s"},
                {3600000, "1h0m"}, {86399000, "23h59m"}, {90000000, "1d1h"}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct td_buf out = {0};
        td_put_duration(&out, rows[i].ms);
        expect(&out, rows[i].text);
    }
}

static Tandem__V1__Job running(void) {
    Tandem__V1__Job job = TANDEM__V1__JOB__INIT;
    job.id = 12;
    job.kind = "grpo";
    job.state = TANDEM__V1__JOB_STATE__RUNNING;
    job.step = 3;
    job.total_steps = 40;
    job.waits_for = "group 7 of rollout-1";
    job.waits_since_ms = 61000;
    job.weight_digest = 0xfedcba9876543210;
    job.metrics = "{\"critic/score/mean\": 0.5, \"actor/ppo_kl\": 0.25}";
    return job;
}

static void test_table_jobs(void **state) {
    (void)state;
    Tandem__V1__Job one = running(), two = TANDEM__V1__JOB__INIT, *list[] = {&one, &two};
    two.id = 3;
    two.kind = "sft";
    two.state = (Tandem__V1__JobState)77;
    struct td_buf out = {0};
    td_list_jobs(list, 2, &out);
    expect(&out,
           "ID   KIND   STATE     STEP   REWARD   ACCURACY   KL       WAITS FOR\n"
           "12   grpo   RUNNING   3/40   0.500    -          0.2500   group 7 of rollout-1 (1m1s)\n"
           "3    sft    UNKNOWN   0/0    -        -          -        -\n");
    td_list_jobs(list, 0, &out);
    expect(&out, "ID   KIND   STATE   STEP   REWARD   ACCURACY   KL   WAITS FOR\n");
}

static void test_table_line(void **state) {
    (void)state;
    struct td_buf out = {0};
    Tandem__V1__Job job = running();
    td_job_line(&job, &out);
    expect(&out, "job 12 RUNNING: step 3/40  reward 0.500  KL 0.2500; waits for: group 7 of "
                 "rollout-1");
    job.state = TANDEM__V1__JOB_STATE__FAILED;
    job.metrics = "not JSON";
    job.cause = "no room";
    td_job_line(&job, &out);
    expect(&out, "job 12 FAILED: step 3/40; no room");
}

static void test_table_json(void **state) {
    (void)state;
    Tandem__V1__Job one = running(), *list[] = {&one};
    Tandem__V1__ListJobsResponse all = TANDEM__V1__LIST_JOBS_RESPONSE__INIT;
    all.jobs = list;
    all.n_jobs = 1;
    struct td_buf out = {0};
    td_message_json(&all.base, true, &out);
    assert_ptr_equal(strchr(td_buf_str(&out), '\n'), td_buf_str(&out) + out.len - 1);
    json_t *root = json_loads(td_buf_str(&out), 0, NULL);
    const json_t *job = json_array_get(json_object_get(root, "jobs"), 0);
    assert_int_equal(json_integer_value(json_object_get(job, "id")), 12);
    assert_string_equal(json_string_value(json_object_get(job, "state")), "RUNNING");
    assert_string_equal(json_string_value(json_object_get(job, "weight_digest")),
                        "fedcba9876543210");
    const json_t *metrics = json_object_get(job, "metrics");
    assert_true(json_number_value(json_object_get(metrics, "critic/score/mean")) == 0.5);
    // Every field of the API is there, those with default values too.
    assert_int_equal(json_object_size(job), tandem__v1__job__descriptor.n_fields);
    json_decref(root);
    td_buf_fini(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table_aligns), cmocka_unit_test(test_table_durations),
        cmocka_unit_test(test_table_jobs),   cmocka_unit_test(test_table_line),
        cmocka_unit_test(test_table_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
