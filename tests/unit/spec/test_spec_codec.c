// The canonical form: round trips, differences, and bytes that are not to be trusted.
#include "tests/unit/cmocka_all.h"

#include <string.h>

#include "lib/spec/job_spec.h"
#include "lib/spec/schema.h"
#include "proto/job.pb-c.h"

#define GRPO                                                                                       \
    "data: {train_files: [t.jsonl, \"\\u00e4|\\\"x\"]}\n"                                          \
    "actor_rollout_ref: {model: {path: m}, rollout: {n: 4}, actor: {optim: {lr: 1e-6}}}\n"         \
    "tandem: {rewards: [{data_source: s, grader: regex, pattern: '(\\d+)$'}]}\n"
#define SFT "tandem: {kind: sft}\ndata: {train_files: t.jsonl}\nmodel: {path: m}\n"

static struct td_job_spec *parse(const char *yaml, const char *override) {
    struct td_job_spec *spec = NULL;
    struct td_spec_notes notes = {0};
    struct td_err err = {0};
    struct td_spec_text text = {"job.yaml", yaml, strlen(yaml), &override, override ? 1 : 0};
    if (td_job_spec_parse(&text, &spec, &notes, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
    td_spec_notes_fini(&notes);
    return spec;
}

static struct td_buf encode(const char *yaml, const char *override) {
    struct td_buf bytes = {0};
    struct td_job_spec *spec = parse(yaml, override);
    td_job_spec_encode(spec, &bytes);
    td_job_spec_free(spec);
    return bytes;
}

static bool same(const struct td_buf *a, const struct td_buf *b) {
    return a->len == b->len && memcmp(a->data, b->data, a->len) == 0;
}

static void round_trip(const char *yaml, const char *override) {
    struct td_err err = {0};
    struct td_job_spec *spec = NULL;
    struct td_buf first = encode(yaml, override), second = {0};
    if (td_job_spec_decode(first.data, first.len, &spec, &err) != TD_OK) {
        fail_msg("%s: %s", override ? override : "", err.msg);
    }
    td_job_spec_encode(spec, &second);
    assert_true(same(&first, &second));
    td_job_spec_free(spec);
    td_buf_fini(&first);
    td_buf_fini(&second);
}

static void test_codec_round_trip(void **state) {
    (void)state;
    round_trip(GRPO, NULL);
    round_trip(SFT, NULL);
    round_trip(GRPO, "actor_rollout_ref.actor.optim.lr=0.1234567890123456789");
    round_trip(GRPO, "tandem.seed=9007199254740991");
    round_trip(GRPO, "data.val_files=[]");
    round_trip(GRPO, "actor_rollout_ref.actor.loss_scale_factor=1e12");
    round_trip(GRPO, "trainer.default_local_dir=/tmp/a b");
}

static void test_codec_decoded_spec_is_the_spec(void **state) {
    (void)state;
    struct td_err err = {0};
    struct td_job_spec *spec = NULL;
    struct td_buf bytes = encode(GRPO, "tandem.run_dir=elsewhere");
    assert_int_equal(td_job_spec_decode(bytes.data, bytes.len, &spec, &err), TD_OK);
    assert_int_equal(spec->rollout.n, 4);
    assert_true(spec->actor.optim.lr == 1e-6);
    assert_string_equal(spec->data.train_files.items[1], "\xc3\xa4|\"x");
    assert_string_equal(spec->tandem.rewards[0].pattern, "(\\d+)$");
    assert_int_equal(spec->data.seed, 1);
    // Settings of the process are not carried.
    assert_string_equal(spec->tandem.run_dir, "tandem-run");
    assert_int_equal(spec->tandem.worker_grace_s, 60);
    td_job_spec_free(spec);
    td_buf_fini(&bytes);
}

// A submitted job takes along how it is to be run.
static void test_codec_whole_spec_carries_the_process(void **state) {
    (void)state;
    struct td_err err = {0};
    struct td_job_spec *spec = parse(GRPO, "tandem.lease_s=3"), *found = NULL;
    struct td_buf bytes = {0}, again = {0};
    td_job_spec_encode_all(spec, &bytes);
    assert_int_equal(td_job_spec_decode(bytes.data, bytes.len, &found, &err), TD_OK);
    assert_int_equal(found->tandem.lease_s, 3);
    assert_int_equal(found->tandem.worker_grace_s, 60);
    td_job_spec_encode_all(found, &again);
    assert_true(same(&bytes, &again));
    td_job_spec_free(spec);
    td_job_spec_free(found);
    td_buf_fini(&bytes);
    td_buf_fini(&again);
}

// Every setting of the job that is done gives other bytes when it is changed, those of the process
// do not.
static void test_codec_covers_every_setting(void **state) {
    static const struct {
        const char *override;
        int differences;
    } rows[] = {
        {"tandem.seed=2", 2}, // data.seed follows
        {"tandem.init=random", 1},
        {"tandem.rollout.unit_groups=4", 1},
        {"actor_rollout_ref.actor.clip_ratio=0.3", 3},
        {"actor_rollout_ref.actor.optim.betas=[0.9, 0.95]", 1},
        {"actor_rollout_ref.rollout.val_kwargs.temperature=0.5", 1},
        {"algorithm.norm_adv_by_std_in_grpo=false", 1},
        {"tandem.rewards=[]", 1},
        {"trainer.total_training_steps=9", 1},
        {"tandem.run_dir=x", 0},
        {"tandem.threads=3", 0},
        {"tandem.rollout.workers=2", 0},
        {"tandem.log.fsync=false", 0},
        {"trainer.logger=console", 0},
        {"trainer.project_name=x", 0},
        {"data.train_batch_size=1024", 0}, // the default, said aloud
        {"actor_rollout_ref.actor.optim.lr=0.000001", 0},
    };
    (void)state;
    struct td_buf base = encode(GRPO, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct td_buf other = encode(GRPO, rows[i].override), diff = {0};
        int n = td_job_spec_diff(base.data, base.len, other.data, other.len, &diff);
        if (n != rows[i].differences || same(&base, &other) != (n == 0)) {
            fail_msg("%s: %d differences: %s", rows[i].override, n, td_buf_str(&diff));
        }
        td_buf_fini(&other);
        td_buf_fini(&diff);
    }
    td_buf_fini(&base);
}

static void test_codec_diff_text(void **state) {
    (void)state;
    struct td_buf a = encode(GRPO, NULL), b = encode(GRPO, "actor_rollout_ref.rollout.n=8");
    struct td_buf diff = {0};
    assert_int_equal(td_job_spec_diff(a.data, a.len, b.data, b.len, &diff), 1);
    assert_string_equal(td_buf_str(&diff), "actor_rollout_ref.rollout.n: 4 → 8\n");
    td_buf_clear(&diff);
    struct td_buf sft = encode(SFT, NULL);
    assert_true(td_job_spec_diff(a.data, a.len, sft.data, sft.len, &diff) > 20);
    assert_non_null(strstr(td_buf_str(&diff), "tandem.kind: \"grpo\" → \"sft\"\n"));
    assert_non_null(strstr(td_buf_str(&diff), "model.path: (none) → \"m\"\n"));
    assert_non_null(strstr(td_buf_str(&diff), "actor_rollout_ref.rollout.n: 4 → (none)\n"));
    assert_int_equal(td_job_spec_diff("\x0a", 1, b.data, b.len, &diff), -1);
    td_buf_fini(&a);
    td_buf_fini(&b);
    td_buf_fini(&sft);
    td_buf_fini(&diff);
}

// Changes one setting in packed bytes; decode must refuse with rc and say what.
static void refuse(const char *key, const char *new_key, const char *new_value, enum td_rc want,
                   const char *what) {
    struct td_buf bytes = encode(GRPO, NULL), out = {0};
    struct td_err err = {0};
    struct td_job_spec *spec = NULL;
    Tandem__Job__Spec *m = tandem__job__spec__unpack(NULL, bytes.len, bytes.data);
    for (size_t i = 0; i < m->n_settings; i++) {
        Tandem__Job__Setting *setting = m->settings[i];
        if (strcmp(setting->key, key) == 0) {
            char *old_key = setting->key, *old_value = setting->value;
            setting->key = new_key ? (char *)new_key : old_key;
            setting->value = new_value ? (char *)new_value : old_value;
            tandem__job__spec__pack(m, td_buf_room(&out, tandem__job__spec__get_packed_size(m)));
            out.len += tandem__job__spec__get_packed_size(m);
            setting->key = old_key;
            setting->value = old_value;
        }
    }
    assert_true(out.len > 0);
    tandem__job__spec__free_unpacked(m, NULL);
    assert_int_equal(td_job_spec_decode(out.data, out.len, &spec, &err), want);
    assert_string_equal(err.msg, what);
    assert_null(spec);
    td_buf_fini(&bytes);
    td_buf_fini(&out);
}

static void test_codec_refuses(void **state) {
    (void)state;
    refuse("actor_rollout_ref.rollout.n", NULL, "0", TD_ECORRUPT,
           "job spec: actor_rollout_ref.rollout.n: expected an integer from 1 to 4096, got 0");
    refuse("actor_rollout_ref.rollout.n", NULL, "4x", TD_ECORRUPT,
           "job spec: actor_rollout_ref.rollout.n: not JSON");
    refuse("tandem.init", NULL, "\"maybe\"", TD_ECORRUPT,
           "job spec: tandem.init: expected one of load, random, got \"maybe\"");
    refuse("tandem.seed", "tandem.sede", NULL, TD_EUNSUPPORTED,
           "job spec: expected tandem.seed, got tandem.sede: written by another build");
    refuse("tandem.kind", "tandem.kin", NULL, TD_EUNSUPPORTED, "job spec: tandem.kind is missing");
}

static void test_codec_refuses_other_bytes(void **state) {
    (void)state;
    struct td_buf bytes = encode(GRPO, NULL);
    struct td_err err = {0};
    struct td_job_spec *spec = NULL;
    for (size_t n = 0; n < bytes.len; n++) {
        assert_int_not_equal(td_job_spec_decode(bytes.data, n, &spec, &err), TD_OK);
        assert_null(spec);
    }
    assert_int_equal(td_job_spec_decode(bytes.data, bytes.len - 1, &spec, &err), TD_ECORRUPT);
    bytes.data[1] = 2; // field 1, the format
    assert_int_equal(td_job_spec_decode(bytes.data, bytes.len, &spec, &err), TD_EUNSUPPORTED);
    assert_string_equal(err.msg, "job spec: format 2, this build knows 1");
    td_buf_fini(&bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codec_round_trip),
        cmocka_unit_test(test_codec_decoded_spec_is_the_spec),
        cmocka_unit_test(test_codec_whole_spec_carries_the_process),
        cmocka_unit_test(test_codec_covers_every_setting),
        cmocka_unit_test(test_codec_diff_text),
        cmocka_unit_test(test_codec_refuses),
        cmocka_unit_test(test_codec_refuses_other_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
