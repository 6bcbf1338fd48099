// A growable byte buffer: see buf.h. Owned by one thread at a time.
#include "lib/base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/check.h"
#include "lib/base/mem.h"

void td_buf_fini(struct td_buf *buf) {
    td_free(buf->data);
    *buf = (struct td_buf){0};
}

void td_buf_clear(struct td_buf *buf) {
    buf->len = 0;
    if (buf->data) {
        buf->data[0] = 0;
    }
}

uint8_t *td_buf_room(struct td_buf *buf, size_t n) {
    td_assert(n < SIZE_MAX / 4);
    TD_GROW(buf->data, buf->cap, buf->len + n + 1);
    buf->data[buf->len + n] = 0;
    return buf->data + buf->len;
}

void td_buf_put(struct td_buf *buf, const void *bytes, size_t n) {
    uint8_t *to = td_buf_room(buf, n);
    if (n) {
        memcpy(to, bytes, n);
    }
    buf->len += n;
}

void td_buf_puts(struct td_buf *buf, const char *s) {
    td_buf_put(buf, s, strlen(s));
}

void td_buf_printf(struct td_buf *buf, const char *fmt, ...) {
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    td_assert_op(n, >=, 0);
    uint8_t *to = td_buf_room(buf, (size_t)n);
    vsnprintf((char *)to, (size_t)n + 1, fmt, again);
    va_end(again);
    buf->len += (size_t)n;
}

void td_buf_double(struct td_buf *buf, double value) {
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) {
            break;
        }
    }
    td_buf_puts(buf, text);
}

void td_buf_shift(struct td_buf *buf, size_t n) {
    td_assert_op(n, <=, buf->len);
    if (n) {
        memmove(buf->data, buf->data + n, buf->len - n + 1);
        buf->len -= n;
    }
}

const char *td_buf_str(const struct td_buf *buf) {
    return buf->data ? (const char *)buf->data : "";
}
