// TCP between workers: a listener on any free port, and a connection to it by its address.
#ifndef TD_WORKERS_COMM_TCP_H
#define TD_WORKERS_COMM_TCP_H

#include <stdint.h>

#include "lib/base/err.h"

// Bound to host (NULL: "127.0.0.1") and any free port; *address receives "host:port" (owned). A
// wildcard host is TD_EINVAL. *fd: non-blocking, close-on-exec, the caller's.
enum td_rc td_tcp_listen(const char *host, int backlog, int *fd, char **address,
                         struct td_err *err) TD_MUST_CHECK;
// Connects to "host:port" or "[host]:port". TD_ECLOSED: nobody listens there; TD_ETIMEOUT after
// deadline_ms (td_clock_ms). *fd as above, without delay of small pieces.
enum td_rc td_tcp_connect(const char *address, int64_t deadline_ms, int *fd,
                          struct td_err *err) TD_MUST_CHECK;
// Small pieces go out at once.
void td_tcp_no_delay(int fd);
// For poll: how long until deadline_ms, at most a minute.
int td_tcp_wait_ms(int64_t deadline_ms);

#endif
