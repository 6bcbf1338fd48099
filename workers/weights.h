// Snapshots from worker to worker (docs/architecture.md, one round). A train worker serves what it
// holds: workers of the same machine get the memfd itself over a UNIX socket, others the bytes over
// TCP, from any offset, so that a broken pull goes on where it was. What arrives is checked by
// size, header and digest by the reader. A version is asked for by (step, digest), whatever its
// lineage. An address is one string: "BOOT_ID unix:PATH tcp:HOST:PORT".
#ifndef TD_WORKERS_WEIGHTS_H
#define TD_WORKERS_WEIGHTS_H

#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"

struct td_weights_server; // a thread of its own

enum { TD_WEIGHTS_KEPT = 2, TD_WEIGHTS_CLIENTS_MAX = 64 };

// socket_path: of the UNIX socket (replaced if a dead one is there); host: the name or address
// under which other machines reach this one, on which TCP is listened; NULL: 127.0.0.1. Port: any.
enum td_rc td_weights_server_new(const char *socket_path, const char *host,
                                 struct td_weights_server **out, struct td_err *err) TD_MUST_CHECK;
void td_weights_server_free(struct td_weights_server *server); // accepts NULL; joins its thread
const char *td_weights_server_address(const struct td_weights_server *server);
// Serves fd (kept as a duplicate; a whole snapshot of lib/ipc/snapshot.h) from now on; beyond
// TD_WEIGHTS_KEPT the oldest goes. Serving the same (step, digest) again replaces it. Any thread.
enum td_rc td_weights_serve(struct td_weights_server *server, uint64_t step, uint64_t digest,
                            int fd, struct td_err *err) TD_MUST_CHECK;

struct td_weights_want {
    const char *const *sources; // addresses
    size_t count;
    uint64_t step, digest;
    int64_t deadline_ms; // td_clock_ms
};
// Gets a snapshot from the first source that has it, same machine first; blocks until the deadline.
// *fd: a sealed memfd, the caller's; its digest is still to be checked. TD_ENOENT: no source holds
// it; TD_ETIMEOUT; TD_ECLOSED: none could be reached. The message names each source.
enum td_rc td_weights_pull(const struct td_weights_want *want, int *fd,
                           struct td_err *err) TD_MUST_CHECK;

#endif
