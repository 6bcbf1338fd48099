// Tables: see table.h.
#include "cli/table.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/check.h"

enum { CELL_MAX = 1024, GAP = 3 };

// Columns as a terminal counts them, near enough: one for each UTF-8 sequence.
static size_t width_of(const char *s) {
    size_t n = 0;
    for (; *s; s++) {
        n += ((unsigned char)*s & 0xc0) != 0x80;
    }
    return n;
}

static void put(struct td_table *t, const char *cell) {
    size_t column = t->cells++ % t->columns, width = width_of(cell);
    t->width[column] = width > t->width[column] ? width : t->width[column];
    td_buf_put(&t->text, cell, strlen(cell) + 1);
}

void td_table_head(struct td_table *t, const char *headers) {
    char cell[CELL_MAX];
    t->columns = 1;
    for (const char *s = headers; *s; s++) {
        t->columns += *s == '|';
    }
    td_assert_op(t->columns, <=, TD_TABLE_COLUMNS_MAX);
    for (const char *s = headers; *s;) {
        size_t n = strcspn(s, "|");
        snprintf(cell, sizeof cell, "%.*s", (int)n, s);
        put(t, cell);
        s += n + (s[n] == '|');
    }
}

void td_table_put(struct td_table *t, const char *fmt, ...) {
    char cell[CELL_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(cell, sizeof cell, fmt, ap);
    va_end(ap);
    for (char *s = cell; *s; s++) {
        *s = (unsigned char)*s < ' ' || *s == 127 ? ' ' : *s;
    }
    put(t, *cell ? cell : "-");
}

void td_table_print(const struct td_table *t, struct td_buf *out) {
    const char *cell = td_buf_str(&t->text);
    td_assert_op(t->cells % t->columns, ==, 0);
    for (size_t i = 0; i < t->cells; i++, cell += strlen(cell) + 1) {
        size_t column = i % t->columns;
        td_buf_puts(out, cell);
        if (column + 1 == t->columns) {
            td_buf_puts(out, "\n");
        } else {
            td_buf_printf(out, "%*s", (int)(t->width[column] - width_of(cell) + GAP), "");
        }
    }
}

void td_table_fini(struct td_table *t) {
    td_buf_fini(&t->text);
    *t = (struct td_table){0};
}

void td_put_duration(struct td_buf *out, int64_t ms) {
    enum { S = 1000, M = 60 * S, H = 60 * M, D = 24 * H };
    if (ms < S) {
        td_buf_printf(out, "%" PRId64 "ms", ms < 0 ? 0 : ms);
    } else if (ms < M) {
        td_buf_printf(out, "%" PRId64 "s", ms / S);
    } else if (ms < H) {
        td_buf_printf(out, "%" PRId64 "m%" PRId64 "s", ms / M, ms % M / S);
    } else if (ms < D) {
        td_buf_printf(out, "%" PRId64 "h%" PRId64 "m", ms / H, ms % H / M);
    } else {
        td_buf_printf(out, "%" PRId64 "d%" PRId64 "h", ms / D, ms % D / H);
    }
}
