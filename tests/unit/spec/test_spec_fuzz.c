// Random job files and random canonical bytes: nothing crashes, errors come with text, and what is
// accepted survives a round trip. TD_SEED replays.
#include "tests/unit/cmocka_all.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/rng.h"
#include "lib/spec/job_spec.h"
#include "lib/spec/schema.h"

static const char seed_file[] =
    "data: {train_files: [a.jsonl], train_batch_size: 64, val_files: v}\n"
    "actor_rollout_ref:\n"
    "  model:\n"
    "    path: \"m\"\n"
    "  actor: {ppo_mini_batch_size: 16, optim: {lr: 1e-6, betas: [0.9, 0.95]}}\n"
    "  rollout:\n"
    "    n: 8\n"
    "    engine_kwargs: {vllm: {a: [1, {b: null}]}}\n"
    "tandem:\n"
    "  rewards:\n"
    "  - {data_source: x, grader: 'exact'}\n"
    "  - data_source: y\n"
    "    grader: regex\n"
    "    pattern: \"(\\\\d+)\"\n";

static struct td_rng rng;

static void setup_seed(void) {
    const char *given = getenv("TD_SEED");
    rng.state = given ? strtoull(given, NULL, 0) : (uint64_t)td_clock_ns();
    print_message("TD_SEED=%llu\n", (unsigned long long)rng.state);
}

static void mutate(struct td_buf *text) {
    static const char odd[] = "{}[]:,-?*&!|>'\"%@`#\n\t \xff\x80\0~<=$0e.";
    uint32_t edits = 1 + td_rng_below(&rng, 6);
    for (uint32_t i = 0; i < edits && text->len > 0; i++) {
        uint32_t at = td_rng_below(&rng, (uint32_t)text->len);
        switch (td_rng_below(&rng, 4)) {
        case 0:
            text->data[at] = (uint8_t)odd[td_rng_below(&rng, sizeof odd - 1)];
            break;
        case 1:
            text->data[at] = (uint8_t)td_rng_next(&rng);
            break;
        case 2:
            memmove(text->data + at, text->data + at + 1, text->len - at - 1);
            text->len--;
            break;
        default: { // a piece of it once more
            uint32_t n = td_rng_below(&rng, (uint32_t)text->len - at) % 64;
            td_buf_room(text, n);
            memcpy(text->data + text->len, text->data + at, n);
            text->len += n;
            break;
        }
        }
    }
}

// A file of keys of the table with values of all sorts.
static void compose(struct td_buf *text) {
    static const char *const values[] = {
        "1",      "0",  "-1",     "1e-6", "2.5", "true", "null",  "x",
        "[a, b]", "{}", "{a: 1}", "''",   "[]",  "sft",  "grpo",  "load",
        "1e99",   "-0", ".",      "+1",   "0x1", "[[]]", "\"1\"", "99999999999999999999",
    };
    uint32_t lines = 1 + td_rng_below(&rng, 12);
    td_buf_puts(text, "data.train_files: t\nactor_rollout_ref.model.path: m\n");
    for (uint32_t i = 0; i < lines; i++) {
        unsigned kinds;
        const struct td_spec_key *key =
            td_spec_key(td_rng_below(&rng, (uint32_t)td_spec_key_count()), &kinds);
        td_buf_printf(text, "%s: %s\n", key->name,
                      values[td_rng_below(&rng, sizeof values / sizeof *values)]);
    }
}

static int check(const struct td_buf *yaml, const char *const *overrides, size_t count) {
    struct td_job_spec *spec = NULL, *again = NULL;
    struct td_spec_notes notes = {0};
    struct td_err err = {0};
    struct td_spec_text text = {"f", td_buf_str(yaml), yaml->len, overrides, count};
    enum td_rc rc = td_job_spec_parse(&text, &spec, &notes, &err);
    if (rc == TD_OK) {
        struct td_buf one = {0}, two = {0};
        assert_int_equal(notes.error_count, 0);
        td_job_spec_encode(spec, &one);
        if (td_job_spec_decode(one.data, one.len, &again, &err) != TD_OK) {
            fail_msg("%s of\n%s", err.msg, td_buf_str(yaml));
        }
        td_job_spec_encode(again, &two);
        assert_int_equal(one.len, two.len);
        assert_memory_equal(one.data, two.data, one.len);
        td_buf_fini(&one);
        td_buf_fini(&two);
    } else {
        assert_null(spec);
        assert_true(notes.error_count > 0 && notes.errors.len > 0 && err.msg[0] != '\0');
    }
    td_job_spec_free(spec);
    td_job_spec_free(again);
    td_spec_notes_fini(&notes);
    return rc == TD_OK;
}

static void test_fuzz_mutated_files(void **state) {
    int accepted = 0;
    (void)state;
    for (int i = 0; i < 2000; i++) {
        struct td_buf text = {0};
        td_buf_puts(&text, seed_file);
        mutate(&text);
        accepted += check(&text, NULL, 0);
        td_buf_fini(&text);
    }
    assert_in_range(accepted, 1, 1999);
}

static void test_fuzz_composed_files(void **state) {
    int accepted = 0;
    (void)state;
    for (int i = 0; i < 1500; i++) {
        struct td_buf text = {0};
        compose(&text);
        accepted += check(&text, NULL, 0);
        td_buf_fini(&text);
    }
    assert_in_range(accepted, 1, 1499);
}

static void test_fuzz_random_overrides(void **state) {
    (void)state;
    struct td_buf base = {0};
    td_buf_puts(&base, seed_file);
    for (int i = 0; i < 1500; i++) {
        struct td_buf arg = {0};
        td_buf_puts(&arg, "tandem={rewards: [{data_source: a, grader: exact}], seed: 3}");
        mutate(&arg);
        td_buf_put(&arg, "", 1); // mutation may have lost the final zero
        const char *text = td_buf_str(&arg);
        check(&base, &text, 1);
        td_buf_fini(&arg);
    }
    td_buf_fini(&base);
}

static void test_fuzz_canonical_bytes(void **state) {
    (void)state;
    struct td_job_spec *spec = NULL;
    struct td_spec_notes notes = {0};
    struct td_err err = {0};
    struct td_buf bytes = {0};
    struct td_spec_text text = {"f", seed_file, strlen(seed_file), NULL, 0};
    assert_int_equal(td_job_spec_parse(&text, &spec, &notes, &err), TD_OK);
    td_job_spec_encode(spec, &bytes);
    td_job_spec_free(spec);
    td_spec_notes_fini(&notes);
    for (int i = 0; i < 4000; i++) {
        struct td_buf copy = {0};
        struct td_job_spec *got = NULL;
        td_buf_put(&copy, bytes.data, bytes.len);
        mutate(&copy);
        enum td_rc rc = td_job_spec_decode(copy.data, copy.len, &got, &err);
        assert_int_equal(rc == TD_OK, got != NULL);
        td_job_spec_free(got);
        struct td_buf diff = {0};
        (void)td_job_spec_diff(bytes.data, bytes.len, copy.data, copy.len, &diff);
        td_buf_fini(&diff);
        td_buf_fini(&copy);
    }
    td_buf_fini(&bytes);
}

int main(void) {
    setup_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fuzz_mutated_files),
        cmocka_unit_test(test_fuzz_composed_files),
        cmocka_unit_test(test_fuzz_random_overrides),
        cmocka_unit_test(test_fuzz_canonical_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
