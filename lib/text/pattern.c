// Pre-tokenizer patterns: HF runs them with Oniguruma, we with PCRE2, and they agree on everything
// the known tokenizers use but \s, which is therefore spelled out. Pure but for PCRE2's memory.
#include <string.h>

#include "lib/text/tokenizer_int.h"

enum { PCRE_MESSAGE_MAX = 160 };

// Oniguruma's \s: Unicode White_Space. PCRE2's with UCP has U+180E in it, too.
#define SPACES "\\t-\\r\\x{85}\\p{Z}"

// Escapes that mean the same to both, beside those of punctuation; \w and \b, for example, do not.
static const char shared_escapes[] = "dDfnpPrtx";

static enum td_rc put_escape(struct td_buf *out, char c, bool in_class, struct td_err *err) {
    bool word = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    if (c == 's') {
        td_buf_puts(out, in_class ? SPACES : "[" SPACES "]");
    } else if (c == 'S' && !in_class) {
        td_buf_puts(out, "[^" SPACES "]");
    } else if (word && strchr(shared_escapes, c) == NULL) {
        return td_fail(err, TD_EUNSUPPORTED, "\\%c%s is not supported", c,
                       in_class ? " inside [...]" : "");
    } else {
        char both[] = {'\\', c, 0};
        td_buf_puts(out, both);
    }
    return TD_OK;
}

// Refuses what Oniguruma and PCRE2 read differently: classes inside classes, intersections, ^ and
// $.
static enum td_rc spell_out_spaces(const char *pattern, struct td_buf *out, struct td_err *err) {
    bool in_class = false;
    for (const char *p = pattern; *p != 0; p++) {
        if (*p == '\\' && p[1] != 0) {
            p++;
            enum td_rc rc = put_escape(out, *p, in_class, err);
            if (rc != TD_OK) {
                return rc;
            }
            continue;
        }
        bool opens = *p == '[';
        size_t head = opens ? 1 + (p[1] == '^') : 0;
        if (in_class ? opens || strncmp(p, "&&", 2) == 0
                     : *p == '^' || *p == '$' || (opens && p[head] == ']')) {
            return td_fail(err, TD_EUNSUPPORTED, "'%c' at offset %zu of '%s' is not supported", *p,
                           (size_t)(p - pattern), pattern);
        }
        td_buf_put(out, p, opens ? head : 1);
        in_class = opens || (in_class && *p != ']');
        p += opens ? head - 1 : 0;
    }
    return TD_OK;
}

enum td_rc td_pattern_compile(const char *pattern, bool literal, pcre2_code **out,
                              struct td_err *err) {
    struct td_buf text = {0};
    enum td_rc rc = TD_OK;
    if (literal) {
        td_buf_puts(&text, pattern);
    } else {
        rc = spell_out_spaces(pattern, &text, err);
    }
    int code;
    size_t offset;
    uint32_t flags = literal ? PCRE2_UTF | PCRE2_LITERAL : PCRE2_UTF | PCRE2_UCP;
    pcre2_code *compiled = NULL;
    if (rc == TD_OK) {
        compiled =
            pcre2_compile((PCRE2_SPTR)td_buf_str(&text), text.len, flags, &code, &offset, NULL);
    }
    if (rc == TD_OK && compiled == NULL) {
        PCRE2_UCHAR message[PCRE_MESSAGE_MAX];
        pcre2_get_error_message(code, message, sizeof message);
        rc = td_fail(err, TD_EINVAL, "'%s' at offset %zu: %s", td_buf_str(&text), offset,
                     (const char *)message);
    }
    td_buf_fini(&text);
    if (rc != TD_OK) {
        return rc;
    }
    // without JIT the interpreter matches: the same pieces, slower
    (void)pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
    *out = compiled;
    return TD_OK;
}

void td_spans_put(struct td_spans *spans, const uint8_t *p, size_t n) {
    if (n == 0) {
        return;
    }
    TD_GROW(spans->v, spans->cap, spans->n + 1);
    spans->v[spans->n++] = (struct td_span){p, n};
}

// PCRE2's answer for the next match at or after from.
static int match_from(const pcre2_code *code, pcre2_match_context *limits, struct td_span t,
                      size_t from, pcre2_match_data *match) {
    int n = pcre2_match(code, t.p, t.n, from, PCRE2_NO_UTF_CHECK, match, limits);
    if (n == PCRE2_ERROR_JIT_STACKLIMIT) {
        // compiled code has a small stack; the interpreter has the heap
        n = pcre2_match(code, t.p, t.n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match, limits);
    }
    return n;
}

enum td_rc td_pattern_split(const pcre2_code *code, pcre2_match_context *limits,
                            struct td_span whole, struct td_spans *out, struct td_err *err) {
    pcre2_match_data *match = pcre2_match_data_create_from_pattern(code, NULL);
    if (match == NULL) {
        return td_fail(err, TD_ENOMEM, "pre-tokenizer");
    }
    const size_t *ends = pcre2_get_ovector_pointer(match);
    enum td_rc rc = TD_OK;
    size_t done = 0, from = 0;
    while (from < whole.n) {
        int n = match_from(code, limits, whole, from, match);
        if (n == PCRE2_ERROR_NOMATCH) {
            break;
        }
        if (n < 0) {
            PCRE2_UCHAR message[PCRE_MESSAGE_MAX];
            pcre2_get_error_message(n, message, sizeof message);
            rc = td_fail(err, TD_ELIMIT, "pre-tokenizer at byte %zu of %zu: %s", from, whole.n,
                         (const char *)message);
            break;
        }
        td_spans_put(out, whole.p + done, ends[0] - done);
        td_spans_put(out, whole.p + ends[0], ends[1] - ends[0]);
        done = ends[1];
        from = ends[1];
        if (ends[1] == ends[0]) {
            do {
                from++;
            } while (from < whole.n && (whole.p[from] & 0xc0) == 0x80);
        }
    }
    pcre2_match_data_free(match);
    if (rc == TD_OK) {
        td_spans_put(out, whole.p + done, whole.n - done);
    }
    return rc;
}
