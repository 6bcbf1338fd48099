// The canonical form of a spec, proto/job.proto, and the difference of two. Pure.
#include "lib/spec/job_spec.h"

#include <string.h>

#include "lib/base/check.h"
#include "lib/spec/load_int.h"
#include "lib/spec/value_int.h"
#include "proto/job.pb-c.h"

enum { FORMAT = 1, BYTES_MAX = 8 << 20 };

static void encode(const struct td_job_spec *spec, bool process, struct td_buf *out) {
    struct td_arena *arena = td_arena_new();
    Tandem__Job__Setting *settings[TD_SPEC_KEYS_MAX];
    Tandem__Job__Spec message = TANDEM__JOB__SPEC__INIT;
    message.format = FORMAT;
    message.settings = settings;
    unsigned kinds;
    for (size_t i = 0; i < td_spec_key_count(); i++) {
        const struct td_spec_key *key = td_spec_key(i, &kinds);
        if (key->cls != TD_SPEC_DONE || (key->process && !process) ||
            !(kinds & 1u << spec->tandem.kind)) {
            continue;
        }
        struct td_buf text = {0};
        td_spec_value_print(key, spec, &text);
        Tandem__Job__Setting *setting = td_arena_alloc(arena, sizeof *setting);
        tandem__job__setting__init(setting);
        setting->key = (char *)key->name;
        setting->value = td_arena_strndup(arena, td_buf_str(&text), text.len);
        settings[message.n_settings++] = setting;
        td_buf_fini(&text);
    }
    size_t n = tandem__job__spec__get_packed_size(&message);
    tandem__job__spec__pack(&message, td_buf_room(out, n));
    out->len += n;
    td_arena_free(arena);
}

void td_job_spec_encode(const struct td_job_spec *spec, struct td_buf *out) {
    encode(spec, false, out);
}

void td_job_spec_encode_all(const struct td_job_spec *spec, struct td_buf *out) {
    encode(spec, true, out);
}

static Tandem__Job__Spec *unpack(const void *bytes, size_t n, struct td_err *err) {
    Tandem__Job__Spec *message = n <= BYTES_MAX ? tandem__job__spec__unpack(NULL, n, bytes) : NULL;
    if (!message) {
        (void)td_fail(err, TD_ECORRUPT, "job spec: not a message of that type");
    } else if (message->format != FORMAT) {
        (void)td_fail(err, TD_EUNSUPPORTED, "job spec: format %u, this build knows %d",
                      message->format, FORMAT);
        tandem__job__spec__free_unpacked(message, NULL);
        message = NULL;
    }
    return message;
}

static enum td_rc find_kind(const Tandem__Job__Spec *message, unsigned *kind, struct td_err *err) {
    for (size_t i = 0; i < message->n_settings; i++) {
        const Tandem__Job__Setting *setting = message->settings[i];
        if (strcmp(setting->key, "tandem.kind") == 0) {
            *kind = strcmp(setting->value, "\"sft\"") == 0 ? TD_KINDS_SFT : TD_KINDS_GRPO;
            return TD_OK;
        }
    }
    return td_fail(err, TD_EUNSUPPORTED, "job spec: tandem.kind is missing");
}

static enum td_rc take(const struct td_spec_key *key, const char *text, struct td_job_spec *spec,
                       struct td_err *err) {
    struct td_buf why = {0};
    json_t *value = td_spec_value_parse(text);
    enum td_rc rc = TD_OK;
    if (!value) {
        rc = td_fail(err, TD_ECORRUPT, "job spec: %s: not JSON", key->name);
    } else if (!td_spec_value_check(key, value, &why)) {
        rc = td_fail(err, TD_ECORRUPT, "job spec: %s: %s", key->name, td_buf_str(&why));
    } else {
        td_spec_value_store(key, value, spec, spec->arena);
    }
    json_decref(value);
    td_buf_fini(&why);
    return rc;
}

// Settings in table order, each once; those of the process may be left out: their defaults.
static enum td_rc take_all(const Tandem__Job__Spec *message, unsigned kind,
                           struct td_job_spec *spec, struct td_err *err) {
    size_t at = 0;
    enum td_rc rc = TD_OK;
    unsigned kinds;
    for (size_t i = 0; i < td_spec_key_count() && rc == TD_OK; i++) {
        const struct td_spec_key *key = td_spec_key(i, &kinds);
        if (key->cls != TD_SPEC_DONE || !(kinds & kind)) {
            continue;
        }
        const Tandem__Job__Setting *next = at < message->n_settings ? message->settings[at] : NULL;
        if (next && strcmp(next->key, key->name) == 0) {
            rc = take(key, next->value, spec, err);
            at++;
        } else if (key->process) {
            rc = take(key, key->def, spec, err);
        } else {
            return td_fail(err, TD_EUNSUPPORTED,
                           "job spec: expected %s, got %s: written by another build", key->name,
                           next ? next->key : "the end");
        }
    }
    if (rc == TD_OK && at < message->n_settings) {
        rc = td_fail(err, TD_EUNSUPPORTED, "job spec: unknown key %s: written by another build",
                     message->settings[at]->key);
    }
    return rc;
}

enum td_rc td_job_spec_decode(const void *bytes, size_t n, struct td_job_spec **out,
                              struct td_err *err) {
    struct td_err cause = {0};
    struct td_job_spec *spec = td_job_spec_new();
    unsigned kind = 0;
    Tandem__Job__Spec *message = unpack(bytes, n, &cause);
    enum td_rc rc = message ? find_kind(message, &kind, &cause) : cause.code;
    if (rc == TD_OK) {
        rc = take_all(message, kind, spec, &cause);
    }
    if (message) {
        tandem__job__spec__free_unpacked(message, NULL);
    }
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

static const char *value_of(const Tandem__Job__Spec *message, const char *key) {
    for (size_t i = 0; i < message->n_settings; i++) {
        if (strcmp(message->settings[i]->key, key) == 0) {
            return message->settings[i]->value;
        }
    }
    return NULL;
}

int td_job_spec_diff(const void *old_bytes, size_t old_n, const void *new_bytes, size_t new_n,
                     struct td_buf *out) {
    Tandem__Job__Spec *before = unpack(old_bytes, old_n, NULL);
    Tandem__Job__Spec *after = unpack(new_bytes, new_n, NULL);
    int count = before && after ? 0 : -1;
    for (size_t i = 0; count >= 0 && i < after->n_settings; i++) {
        const Tandem__Job__Setting *setting = after->settings[i];
        const char *old = value_of(before, setting->key);
        if (!old || strcmp(old, setting->value) != 0) {
            td_buf_printf(out, "%s: %s → %s\n", setting->key, old ? old : "(none)", setting->value);
            count++;
        }
    }
    for (size_t i = 0; count >= 0 && i < before->n_settings; i++) {
        const Tandem__Job__Setting *setting = before->settings[i];
        if (!value_of(after, setting->key)) {
            td_buf_printf(out, "%s: %s → (none)\n", setting->key, setting->value);
            count++;
        }
    }
    if (before) {
        tandem__job__spec__free_unpacked(before, NULL);
    }
    if (after) {
        tandem__job__spec__free_unpacked(after, NULL);
    }
    return count;
}
