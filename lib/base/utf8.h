// UTF-8, one character at a time. Pure.
#ifndef TD_BASE_UTF8_H
#define TD_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/buf.h"

#define TD_UTF8_BAD "\xef\xbf\xbd" // U+FFFD

// Looks at n ≥ 1 bytes. Well-formed: *ok is true and the result is the length of the first
// character (1..4). Else *ok is false and the result is the length of the part that one U+FFFD
// stands for: the longest beginning of a well-formed character, or 1 (Unicode 3.9, "maximal
// subpart", as Rust's from_utf8_lossy and the WHATWG do it).
size_t td_utf8_step(const uint8_t *s, size_t n, bool *ok);

// The offset of the first byte that is not well-formed; n when all are.
size_t td_utf8_check(const uint8_t *s, size_t n);

// Appends the text; what is not well-formed becomes U+FFFD.
void td_utf8_repair(const void *text, size_t n, struct td_buf *out);

#endif
