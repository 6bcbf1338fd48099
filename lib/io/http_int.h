// For tests: waiting out the real time would make them long.
#ifndef TD_IO_HTTP_INT_H
#define TD_IO_HTTP_INT_H

#include "lib/io/http.h"

// Instead of TD_HTTP_TIMEOUT_S, for connections accepted from now on.
void td_http_set_timeout(struct td_http *http, int64_t timeout_ms);

#endif
