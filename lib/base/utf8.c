// See utf8.h. The ranges are table 3-7 of the Unicode standard.
#include "lib/base/utf8.h"

size_t td_utf8_step(const uint8_t *s, size_t n, bool *ok) {
    uint8_t lead = s[0], low = 0x80, high = 0xbf;
    size_t want = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    *ok = false;
    if (want == 0 || lead > 0xf4) {
        return 1;
    }
    if (lead == 0xe0) {
        low = 0xa0; // no longer form of what two bytes say
    } else if (lead == 0xed) {
        high = 0x9f; // no surrogates
    } else if (lead == 0xf0) {
        low = 0x90;
    } else if (lead == 0xf4) {
        high = 0x8f; // nothing above U+10FFFF
    }
    for (size_t i = 1; i < want; i++) {
        if (i >= n || s[i] < low || s[i] > high) {
            return i;
        }
        low = 0x80;
        high = 0xbf;
    }
    *ok = true;
    return want;
}

size_t td_utf8_check(const uint8_t *s, size_t n) {
    size_t at = 0;
    while (at < n) {
        bool ok;
        size_t len = td_utf8_step(s + at, n - at, &ok);
        if (!ok) {
            return at;
        }
        at += len;
    }
    return n;
}

void td_utf8_repair(const void *text, size_t n, struct td_buf *out) {
    const uint8_t *s = text;
    for (size_t at = 0; at < n;) {
        bool ok;
        size_t len = td_utf8_step(s + at, n - at, &ok);
        if (ok) {
            td_buf_put(out, s + at, len);
        } else {
            td_buf_puts(out, TD_UTF8_BAD);
        }
        at += len;
    }
}
