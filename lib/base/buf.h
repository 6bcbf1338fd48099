// A growable byte buffer. Always followed by a zero byte that does not count. Sizes that come from
// a peer are checked against a limit before they get here.
#ifndef TD_BASE_BUF_H
#define TD_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct td_buf {
    uint8_t *data; // owned; NULL while empty
    size_t len, cap;
};

void td_buf_fini(struct td_buf *buf);
void td_buf_clear(struct td_buf *buf); // keeps the memory
// Makes room for n more bytes and returns where they go; the caller adds to len.
uint8_t *td_buf_room(struct td_buf *buf, size_t n);
void td_buf_put(struct td_buf *buf, const void *bytes, size_t n);
void td_buf_puts(struct td_buf *buf, const char *s);
void td_buf_printf(struct td_buf *buf, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
// The fewest digits that are this double again; finite.
void td_buf_double(struct td_buf *buf, double value);
// Drops the first n bytes.
void td_buf_shift(struct td_buf *buf, size_t n);
// The text, never NULL.
const char *td_buf_str(const struct td_buf *buf);

#endif
