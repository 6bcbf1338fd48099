// Network addresses as people write them: "HOST:PORT", "[IPv6]:PORT". Pure.
#ifndef TD_BASE_ADDRESS_H
#define TD_BASE_ADDRESS_H

#include "lib/base/err.h"

enum { TD_HOST_MAX = 255 };

struct td_address {
    char host[TD_HOST_MAX + 1]; // without brackets
    int port;                   // 0 … 65535
};

// Looks at the form only; no name is looked up. TD_EINVAL.
enum td_rc td_address_parse(const char *text, struct td_address *out,
                            struct td_err *err) TD_MUST_CHECK;

#endif
