// The schema table: complete against verl's key list, sound in itself, and what docs/job-file.md
// says.
#include "tests/unit/cmocka_all.h"

#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "lib/base/file.h"
#include "lib/base/map.h"
#include "lib/spec/schema.h"
#include "lib/spec/value_int.h"

static void read_source(const char *name, struct td_buf *out) {
    char path[512];
    struct td_err err = {0};
    snprintf(path, sizeof path, "%s/%s", TD_TEST_SOURCE_DIR, name);
    if (td_file_read(path, 1 << 20, out, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
}

// "ppo KEY" and "sft KEY" lines; calls visit with the kind.
static void each_verl_key(void (*visit)(const char *key, unsigned kind, void *user), void *user) {
    struct td_buf text = {0};
    read_source("tests/unit/spec/verl_keys.txt", &text);
    char *line = (char *)text.data;
    while (line && *line) {
        char *end = strchr(line, '\n');
        assert_non_null(end);
        *end = '\0';
        if (*line != '#') {
            bool ppo = strncmp(line, "ppo ", 4) == 0;
            assert_true(ppo || strncmp(line, "sft ", 4) == 0);
            visit(line + 4, ppo ? TD_KINDS_GRPO : TD_KINDS_SFT, user);
        }
        line = end + 1;
    }
    td_buf_fini(&text);
}

static void note_key(const char *key, unsigned kind, void *user) {
    if (!td_spec_find(key, kind, NULL)) {
        fail_msg("verl's key %s is not in the table", key);
    }
    char name[256];
    int n = snprintf(name, sizeof name, "%u %s", kind, key);
    td_map_put(user, name, (size_t)n, 1);
}

static void test_schema_has_verls_keys_and_no_others(void **state) {
    (void)state;
    struct td_map *seen = td_map_new();
    each_verl_key(note_key, seen);
    assert_int_equal(td_map_count(seen), 708);
    for (size_t i = 0; i < td_spec_key_count(); i++) {
        unsigned kinds;
        const struct td_spec_key *key = td_spec_key(i, &kinds);
        for (unsigned kind = 1; kind <= TD_KINDS_SFT; kind <<= 1) {
            char name[256];
            int n = snprintf(name, sizeof name, "%u %s", kind, key->name);
            bool verl = td_map_get(seen, name, (size_t)n, NULL);
            if ((kinds & kind) && verl == (key->ours != NULL)) {
                fail_msg("%s: %s", key->name,
                         verl ? "verl has it, the table says it is ours"
                              : "verl has no such key, and no reason is given");
            }
        }
    }
    td_map_free(seen);
}

static void check_key(const struct td_spec_key *key, unsigned kinds) {
    size_t index;
    assert_non_null(key->help);
    assert_true(*key->help != '\0');
    assert_ptr_equal(td_spec_find(key->name, kinds & -kinds, &index), key); // names are unique
    assert_int_equal(key->required, key->cls == TD_SPEC_DONE && !key->def);
    assert_int_equal(key->verl != NULL, key->why != NULL);
    assert_false(td_spec_is_section(key->name, kinds));
    if (key->cls == TD_SPEC_DONE) {
        assert_int_not_equal(key->type, TD_SPEC_ANY);
        assert_true(key->offset < sizeof(struct td_job_spec));
        assert_int_equal(key->values != NULL,
                         key->type == TD_SPEC_ENUM || strcmp(key->name, "trainer.logger") == 0);
    }
    if (key->def && *key->def == '=') {
        const struct td_spec_key *from = td_spec_find(key->def + 1, kinds, NULL);
        assert_non_null(from);
        assert_int_equal(from->type, key->type);
        assert_true(from->def && *from->def != '='); // chains are not followed
    } else if (key->def) {
        json_t *value = td_spec_value_parse(key->def);
        assert_non_null(value);
        struct td_buf why = {0};
        if (key->cls == TD_SPEC_DONE && !td_spec_value_check(key, value, &why)) {
            fail_msg("%s: default %s: %s", key->name, key->def, td_buf_str(&why));
        }
        td_buf_fini(&why);
        json_decref(value);
    }
}

static void test_schema_is_sound(void **state) {
    int classes[3] = {0};
    (void)state;
    for (size_t i = 0; i < td_spec_key_count(); i++) {
        unsigned kinds;
        const struct td_spec_key *key = td_spec_key(i, &kinds);
        check_key(key, kinds);
        classes[key->cls]++;
    }
    assert_null(td_spec_key(td_spec_key_count(), &(unsigned){0}));
    assert_true(classes[TD_SPEC_DONE] > 90 && classes[TD_SPEC_NO_EFFECT] > 400 &&
                classes[TD_SPEC_REFUSED] > 80);
}

// Two settings must not share a field by a slip; those that do are one setting under two names.
static void test_schema_fields_are_distinct(void **state) {
    (void)state;
    for (size_t i = 0; i < td_spec_key_count(); i++) {
        unsigned kinds, other_kinds;
        const struct td_spec_key *key = td_spec_key(i, &kinds);
        for (size_t k = 0; k < i && key->cls == TD_SPEC_DONE; k++) {
            const struct td_spec_key *other = td_spec_key(k, &other_kinds);
            if (other->cls == TD_SPEC_DONE && (kinds & other_kinds) &&
                other->offset == key->offset) {
                fail_msg("%s and %s share a field", key->name, other->name);
            }
        }
    }
}

static void test_schema_docs_are_current(void **state) {
    struct td_buf want = {0}, have = {0};
    (void)state;
    td_spec_print_docs(&want);
    read_source("docs/job-file.md", &have);
    if (strcmp(td_buf_str(&want), td_buf_str(&have)) != 0) {
        fail_msg("docs/job-file.md is old: tandem help job-file > docs/job-file.md");
    }
    td_buf_fini(&want);
    td_buf_fini(&have);
}

static void test_schema_nearest(void **state) {
    static const struct {
        const char *name, *want;
    } rows[] = {
        {"trainer.total_epoch", "trainer.total_epochs"},
        {"trainer.totalepochs", "trainer.total_epochs"},
        {"data.ppo_mini_batch_size", "actor_rollout_ref.actor.ppo_mini_batch_size"},
        {"rollout.temperature", "actor_rollout_ref.rollout.temperature"},
        {"actor_rollout_ref.actor.lr", "actor_rollout_ref.actor.optim.lr"},
        {"critic.cliprange_valu", "critic.cliprange_value"},
        {"tandem.worker_grace", "tandem.worker_grace_s"},
        {"actor_rolout_ref.rollout.n", "actor_rollout_ref.rollout.n"},
        {"actor_rolout_ref", "actor_rollout_ref"},
        {"zzzzzzzz", NULL},
        {"", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct td_buf got = {0};
        assert_int_equal(td_spec_nearest(rows[i].name, TD_KINDS_GRPO, &got), rows[i].want != NULL);
        assert_string_equal(td_buf_str(&got), rows[i].want ? rows[i].want : "");
        td_buf_fini(&got);
    }
}

static void test_schema_help(void **state) {
    struct td_buf out = {0};
    (void)state;
    td_spec_print_help(td_spec_find("tandem.run_dir", TD_KINDS_SFT, NULL),
                       TD_KINDS_GRPO | TD_KINDS_SFT, &out);
    td_spec_print_help(td_spec_find("algorithm.adv_estimator", TD_KINDS_GRPO, NULL), TD_KINDS_GRPO,
                       &out);
    assert_string_equal(
        td_buf_str(&out),
        "tandem.run_dir (every kind)\n"
        "  folder of the run: journal, logs, checkpoints, metrics.jsonl; it holds one job\n"
        "  value: a string\n"
        "  default: \"tandem-run\"\n"
        "  may change from run to run of the same job\n"
        "algorithm.adv_estimator (kind grpo)\n"
        "  how rewards become advantages\n"
        "  value: one of grpo\n"
        "  default: \"grpo\"\n"
        "  verl's default: \"gae\"; ours differs: gae needs a critic, which is not built\n");
    td_buf_fini(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schema_has_verls_keys_and_no_others),
        cmocka_unit_test(test_schema_is_sound),
        cmocka_unit_test(test_schema_fields_are_distinct),
        cmocka_unit_test(test_schema_docs_are_current),
        cmocka_unit_test(test_schema_nearest),
        cmocka_unit_test(test_schema_help),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
