// A job file to a spec: what is special about jobs, their kind, classes of keys, and settings that
// follow from others in ways the table cannot say. Pure but for reading the file.
#include "lib/spec/job_spec.h"

#include <string.h>

#include "lib/base/file.h"
#include "lib/spec/load_int.h"
#include "lib/spec/value_int.h"

// The kind decides which table holds, so it is looked for before anything is judged.
static void find_kind(struct td_spec_loader *l) {
    const struct td_spec_key *key = td_spec_find("tandem.kind", TD_KINDS_GRPO | TD_KINDS_SFT, NULL);
    int kind = TD_JOB_GRPO;
    for (size_t i = 0; i < l->leaf_count; i++) {
        const struct td_spec_leaf *leaf = &l->leaves[i];
        if (strcmp(leaf->name, key->name) == 0 && leaf->node->kind == TD_YAML_SCALAR) {
            int word = td_spec_word(key->values, leaf->node->text);
            kind = word >= 0 ? word : kind;
        }
    }
    l->kinds = 1u << kind;
}

// What the table cannot say: one setting under two names, and a choice implied by another one.
static void derive(struct td_spec_loader *l) {
    struct td_spec_actor *actor = &l->spec->actor;
    bool sft = l->kinds == TD_KINDS_SFT;
    const char *dynamic = sft ? "data.use_dynamic_bsz" : "actor_rollout_ref.actor.use_dynamic_bsz";
    const char *micro = sft ? "data.micro_batch_size_per_gpu"
                            : "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu";
    if (!td_spec_was_set(l, dynamic) && td_spec_was_set(l, micro) &&
        actor->ppo_micro_batch_size_per_gpu > 0) {
        actor->use_dynamic_bsz = false;
    }
    if (!sft && td_spec_was_set(l, "actor_rollout_ref.actor.grad_clip") &&
        !td_spec_was_set(l, "actor_rollout_ref.actor.optim.clip_grad")) {
        actor->optim.clip_grad = actor->grad_clip;
    }
}

static json_t *neutral_value(struct td_spec_loader *l, const struct td_spec_key *key) {
    if (*key->def != '=') {
        return td_spec_value_parse(key->def);
    }
    struct td_buf text = {0};
    td_spec_value_print(td_spec_find(key->def + 1, l->kinds, NULL), l->spec, &text);
    json_t *value = td_spec_value_parse(td_buf_str(&text));
    td_buf_fini(&text);
    return value;
}

static void check_refused(struct td_spec_loader *l) {
    unsigned kinds;
    for (size_t i = 0; i < td_spec_key_count(); i++) {
        const struct td_spec_key *key = td_spec_key(i, &kinds);
        if (key->cls != TD_SPEC_REFUSED || !l->slots[i].value || l->slots[i].bad) {
            continue;
        }
        json_t *neutral = neutral_value(l, key);
        if (!td_spec_value_equal(l->slots[i].value, neutral)) {
            struct td_buf text = {0};
            td_spec_json_print(neutral, &text);
            td_spec_complain(l, key->name, "known, but only %s is possible here: %s",
                             td_buf_str(&text), key->help);
            td_buf_fini(&text);
        }
        json_decref(neutral);
    }
}

static void list_idle(struct td_spec_loader *l) {
    unsigned kinds;
    for (size_t i = 0; i < td_spec_key_count(); i++) {
        const struct td_spec_key *key = td_spec_key(i, &kinds);
        if (key->cls == TD_SPEC_NO_EFFECT && l->slots[i].leaf && !l->slots[i].bad) {
            l->notes->no_effect_count++;
            td_buf_printf(&l->notes->no_effect, "%s: %s\n", key->name, key->help);
        }
    }
    const struct td_spec_strings *loggers = &l->spec->trainer.logger;
    for (int i = 0; i < loggers->count; i++) {
        if (td_spec_word("console|file", loggers->items[i]) < 0) {
            l->notes->no_effect_count++;
            td_buf_printf(&l->notes->no_effect, "trainer.logger: %s is not written to\n",
                          loggers->items[i]);
        }
    }
}

static enum td_rc load(struct td_spec_loader *l, const struct td_spec_text *text,
                       struct td_err *err) {
    enum td_rc rc = td_spec_collect(l, text, err);
    if (rc != TD_OK) {
        return rc;
    }
    find_kind(l);
    td_spec_fill(l);
    derive(l);
    td_spec_check_together(l);
    check_refused(l);
    list_idle(l);
    return td_spec_verdict(l, err);
}

enum td_rc td_job_spec_parse(const struct td_spec_text *text, struct td_job_spec **out,
                             struct td_spec_notes *notes, struct td_err *err) {
    struct td_err cause = {0};
    struct td_spec_loader *l = td_spec_loader_new(&td_spec_jobs, text->name, notes);
    struct td_job_spec *spec = td_job_spec_new();
    l->spec = spec;
    l->fields = spec;
    l->kept = spec->arena;
    enum td_rc rc = load(l, text, &cause);
    td_spec_loader_free(l);
    if (rc == TD_OK) {
        *out = spec;
        return TD_OK;
    }
    td_job_spec_free(spec);
    if (err) {
        *err = cause;
    }
    return rc;
}

enum td_rc td_job_spec_load(const char *path, const char *const *overrides, size_t count,
                            struct td_job_spec **out, struct td_spec_notes *notes,
                            struct td_err *err) {
    struct td_err cause = {0};
    struct td_buf bytes = {0};
    enum td_rc rc = td_file_read(path, TD_SPEC_FILE_MAX, &bytes, &cause);
    if (rc == TD_OK) {
        struct td_spec_text text = {path, td_buf_str(&bytes), bytes.len, overrides, count};
        rc = td_job_spec_parse(&text, out, notes, err);
    } else {
        notes->error_count++;
        td_buf_printf(&notes->errors, "%s\n", cause.msg);
        if (err) {
            *err = cause;
        }
    }
    td_buf_fini(&bytes);
    return rc;
}

struct td_job_spec *td_job_spec_new(void) {
    struct td_job_spec *spec = td_alloc(sizeof *spec);
    spec->arena = td_arena_new();
    return spec;
}

void td_job_spec_free(struct td_job_spec *spec) {
    if (spec) {
        td_arena_free(spec->arena);
        td_free(spec);
    }
}
