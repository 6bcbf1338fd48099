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

// What the server holds, and whom it serves at once; more wait until one has gone. One that does
// not say what it wants, or takes nothing for so long, has its connection closed.
enum {
    TD_WEIGHTS_KEPT = 2,
    TD_WEIGHTS_CLIENTS_MAX = 64,
    TD_WEIGHTS_REQUEST_MS = 2000,
    TD_WEIGHTS_STALL_MS = 5000,
    TD_WEIGHTS_SILENT_MS = 3000, // a pull goes on to the next source when one says nothing
};

// socket_path: of the UNIX socket, absolute (replaced if a dead one is there); host: the name or
// address under which other machines reach this one, on which TCP is listened; NULL: 127.0.0.1.
// Port: any.
enum td_rc td_weights_server_new(const char *socket_path, const char *host,
                                 struct td_weights_server **out, struct td_err *err) TD_MUST_CHECK;
// Accepts NULL; joins its thread, removes its socket. Readers that have the memfd keep it.
void td_weights_server_free(struct td_weights_server *server);
const char *td_weights_server_address(const struct td_weights_server *server);
// Serves fd (kept as a duplicate; a whole snapshot of lib/ipc/snapshot.h) from now on; beyond
// TD_WEIGHTS_KEPT the oldest goes, once those who are at it have it. Serving the same (step,
// digest) again replaces it and makes it the newest. Any thread.
enum td_rc td_weights_serve(struct td_weights_server *server, uint64_t step, uint64_t digest,
                            int fd, struct td_err *err) TD_MUST_CHECK;

struct td_weights_want {
    const char *const *sources; // addresses
    size_t count;
    uint64_t step, digest;
    uint64_t bytes; // of the whole snapshot; a source that says another size is refused. 0: any
    int64_t deadline_ms; // td_clock_ms
};
// Gets a snapshot from the first source that has it, same machine first; blocks until the deadline.
// Asks each once, and again only while bytes come. *fd: a sealed memfd, the caller's; its digest is
// still to be checked. TD_ENOENT: no source holds it; TD_ETIMEOUT: the deadline passed, or a source
// did not answer; TD_ECLOSED: none could be reached. The message names each source.
enum td_rc td_weights_pull(const struct td_weights_want *want, int *fd,
                           struct td_err *err) TD_MUST_CHECK;

#endif
