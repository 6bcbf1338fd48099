// Addresses: see address.h.
#include "lib/base/address.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { PORT_DIGITS = 5, PORT_MAX = 65535 };

static bool parse_port(const char *text, int *port) {
    size_t n = strspn(text, "0123456789");
    if (n == 0 || n > PORT_DIGITS || text[n]) {
        return false;
    }
    *port = (int)strtol(text, NULL, 10);
    return *port <= PORT_MAX;
}

// Bytes that no host name or IP address has would end up in log lines and file names.
static bool is_host(const char *host, size_t n, bool bracketed) {
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
    static const char ipv6[] = "abcdefABCDEF0123456789.:%_-ghijklmnopqrstuvwxyz"; // with a zone
    return n > 0 && n <= TD_HOST_MAX && strspn(host, bracketed ? ipv6 : letters) >= n;
}

enum td_rc td_address_parse(const char *text, struct td_address *out, struct td_err *err) {
    bool bracketed = *text == '[';
    const char *host = text + bracketed;
    const char *end = bracketed ? strchr(host, ']') : strrchr(host, ':');
    const char *colon = bracketed && end ? end + 1 : end;
    struct td_address address = {0};
    if (!colon || *colon != ':' || !parse_port(colon + 1, &address.port) ||
        !is_host(host, (size_t)(end - host), bracketed)) {
        return td_fail(err, TD_EINVAL,
                       "\"%.300s\" is not an address; write HOST:PORT, as in 127.0.0.1:8080 or "
                       "[::1]:8080",
                       text);
    }
    memcpy(address.host, host, (size_t)(end - host));
    *out = address;
    return TD_OK;
}
