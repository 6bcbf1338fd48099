// See template.h.
#include "lib/text/template.h"

#include <string.h>

#include "lib/base/check.h"
#include "lib/base/crc.h"

#define TURN_BEGIN "<|im_start|>"
#define TURN_END "<|im_end|>"

// The number behind the slash counts changes of what the template writes.
static const struct {
    const char *name, *definition;
} templates[TD_TEMPLATE_COUNT] = {
    [TD_TEMPLATE_PLAIN] = {"plain", "plain/1"},
    [TD_TEMPLATE_CHATML] = {"chatml", "chatml/1"},
};

enum td_rc td_template_parse(const char *name, enum td_template *out, struct td_err *err) {
    for (int t = 0; t < TD_TEMPLATE_COUNT; t++) {
        if (strcmp(templates[t].name, name) == 0) {
            *out = (enum td_template)t;
            return TD_OK;
        }
    }
    return td_fail(err, TD_EINVAL, "'%s' is not a template; use plain or chatml", name);
}

uint64_t td_template_digest(enum td_template t) {
    td_assert_op(t, <, TD_TEMPLATE_COUNT);
    return td_digest64(0, templates[t].definition, strlen(templates[t].definition));
}

static bool is_one_token(const struct td_tokenizer *tk, const char *text) {
    struct td_ids ids = {0};
    bool one = td_tokenizer_encode(tk, text, strlen(text), &ids, NULL) == TD_OK && ids.n == 1;
    td_ids_fini(&ids);
    return one;
}

enum td_rc td_template_check(enum td_template t, const struct td_tokenizer *tk,
                             struct td_err *err) {
    static const char *const written[] = {TURN_BEGIN, TURN_END};
    const char *own = td_tokenizer_chat_template(tk);
    if (own != NULL) {
        return td_fail(err, TD_EUNSUPPORTED,
                       "the model folder has a chat template of its own (%s), which cannot be "
                       "rendered yet; give prompts as strings and set the template to plain",
                       own);
    }
    for (size_t i = 0; i < 2 && t == TD_TEMPLATE_CHATML; i++) {
        if (!is_one_token(tk, written[i])) {
            return td_fail(err, TD_EINVAL,
                           "template chatml: tokenizer.json has no token %s; add it or set the "
                           "template to plain",
                           written[i]);
        }
    }
    return TD_OK;
}

// Where one call of td_template_encode writes.
struct sink {
    const struct td_tokenizer *tk;
    struct td_ids *ids;
    struct td_buf *mask; // NULL: not wanted
};

static void put_mask(const struct sink *s, size_t n, uint8_t trained) {
    if (s->mask != NULL && n > 0) {
        memset(td_buf_room(s->mask, n), trained, n);
        s->mask->len += n;
    }
}

static enum td_rc put_text(const struct sink *s, const char *text, size_t n, uint8_t trained,
                           struct td_err *err) {
    size_t before = s->ids->n;
    enum td_rc rc = td_tokenizer_encode(s->tk, text, n, s->ids, err);
    put_mask(s, s->ids->n - before, trained);
    return rc;
}

static enum td_rc put_plain(const struct sink *s, const struct td_message *m, bool answer,
                            struct td_err *err) {
    enum td_rc rc = put_text(s, m->content, strlen(m->content), answer, err);
    if (rc != TD_OK || !answer) {
        return rc;
    }
    int32_t eos = td_tokenizer_eos(s->tk);
    if (eos < 0) {
        return td_fail(err, TD_EINVAL,
                       "an answer ends with the eos token, and the model folder names none; set "
                       "eos_token in tokenizer_config.json or eos_token_id in config.json");
    }
    td_ids_put(s->ids, eos);
    put_mask(s, 1, 1);
    return TD_OK;
}

// The opening is encoded by itself, as generation has it: what is trained is what is generated.
static enum td_rc put_chatml(const struct sink *s, const struct td_message *m, bool answer,
                             struct td_err *err) {
    struct td_buf text = {0};
    td_buf_printf(&text, TURN_BEGIN "%s\n", m->role);
    enum td_rc rc = TD_OK;
    if (answer) {
        rc = put_text(s, td_buf_str(&text), text.len, 0, err);
        td_buf_clear(&text);
    }
    td_buf_puts(&text, m->content);
    td_buf_puts(&text, TURN_END "\n");
    if (rc == TD_OK) {
        rc = put_text(s, td_buf_str(&text), text.len, answer, err);
    }
    td_buf_fini(&text);
    return rc;
}

enum td_rc td_template_encode(enum td_template t, const struct td_tokenizer *tk,
                              const struct td_dialog *dialog, struct td_ids *ids,
                              struct td_buf *mask, struct td_err *err) {
    static const char opening[] = TURN_BEGIN "assistant\n";
    const struct sink s = {tk, ids, mask};
    for (size_t i = 0; i < dialog->n; i++) {
        const struct td_message *m = &dialog->messages[i];
        const char *role = m->role;
        bool answer = strcmp(role, "assistant") == 0;
        enum td_rc rc;
        if (!answer && strcmp(role, "user") != 0 && strcmp(role, "system") != 0) {
            rc = td_fail(err, TD_EINVAL, "role: '%s'; use system, user or assistant", role);
        } else {
            rc = t == TD_TEMPLATE_PLAIN ? put_plain(&s, m, answer, err)
                                        : put_chatml(&s, m, answer, err);
        }
        if (rc != TD_OK) {
            td_err_in(err, "message %zu", i);
            return rc;
        }
    }
    if (dialog->open_turn && t == TD_TEMPLATE_CHATML) {
        return put_text(&s, opening, sizeof opening - 1, 0, err);
    }
    return TD_OK;
}
