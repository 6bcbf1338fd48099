// Frames over a UNIX stream socket between a controller and one worker: proto/worker.proto, 8 bytes
// of length and CRC-32C in front of each, file descriptors beside them. Knows no event loop: a
// controller's loop watches td_ipc_fd, a worker polls it. One thread receives; any thread may send.
#ifndef TD_IPC_CONN_H
#define TD_IPC_CONN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "proto/worker.pb-c.h"

typedef Tandem__Worker__Frame td_frame;

enum {
    TD_FRAME_BYTES_MAX = 64 << 20,
    TD_FRAME_FDS_MAX = 4,
    TD_IPC_QUEUE_BYTES_MAX = 256 << 20, // unsent bytes; more is TD_ELIMIT
    TD_IPC_PROTOCOL = 2,
};

struct td_ipc_conn;

// Behind the path of a worker's socket: where it serves its snapshots (workers/weights.h).
#define TD_IPC_WEIGHTS_SUFFIX ".weights"

// TD_ELIMIT with both lengths: no socket can have that path.
enum td_rc td_ipc_check_path(const char *path, struct td_err *err) TD_MUST_CHECK;
// Listens at path (an old socket there is removed, a file of another kind is not). A path longer
// than the system's limit is TD_ELIMIT with both lengths. *fd is the caller's, non-blocking,
// close-on-exec.
enum td_rc td_ipc_listen(const char *path, int *fd, struct td_err *err) TD_MUST_CHECK;
// Removes the socket files of a worker that has ended or ends: that at path, and before it the one
// beside it with TD_IPC_WEIGHTS_SUFFIX, so that a second is never left without the first.
// With ours only if what is at path is that; NULL: whatever is there.
struct td_ipc_place { // of a socket file; all 0: there is none
    uint64_t device, inode;
};
void td_ipc_unlink(const char *path, const struct td_ipc_place *ours);
// What is at path now: two workers that were started for one place replace each other's sockets.
struct td_ipc_place td_ipc_place(const char *path);
bool td_ipc_is_at(const char *path, struct td_ipc_place place);
// The next waiting connection; TD_ETIMEOUT: none waits.
enum td_rc td_ipc_accept(int listener, struct td_ipc_conn **out, struct td_err *err) TD_MUST_CHECK;
// Never waits. TD_ENOENT, TD_ECLOSED: nobody listens there; TD_ETIMEOUT: somebody does, but does
// not accept.
enum td_rc td_ipc_connect(const char *path, struct td_ipc_conn **out,
                          struct td_err *err) TD_MUST_CHECK;
// As td_ipc_connect, for other bytes than frames: *fd is the caller's, non-blocking, close-on-exec.
enum td_rc td_ipc_connect_fd(const char *path, int *fd, struct td_err *err) TD_MUST_CHECK;
// Takes a connected stream socket.
struct td_ipc_conn *td_ipc_conn_new(int fd_take);
void td_ipc_conn_free(struct td_ipc_conn *c);
int td_ipc_fd(const struct td_ipc_conn *c);

// Queues a frame with nfds descriptors (duplicated) and writes what the socket takes at once.
// frame->fds is set here. TD_ECLOSED: the peer is gone; TD_ELIMIT: too much unsent, which ends the
// connection, or too large a frame, which does not. Once it is over, td_ipc_recv says so too, after
// the frames that came before. Any thread.
enum td_rc td_ipc_send(struct td_ipc_conn *c, td_frame *frame, const int *fds, int nfds,
                       struct td_err *err) TD_MUST_CHECK;
// Writes more; *pending tells whether bytes are left (then wait until the socket is writable).
enum td_rc td_ipc_flush(struct td_ipc_conn *c, bool *pending, struct td_err *err) TD_MUST_CHECK;

// The next whole frame, or *out = NULL when there is none yet. fds receives frame->fds descriptors,
// the caller's to close. TD_ECLOSED at the peer's end, TD_ECORRUPT for bytes that are no frame.
// Free with td_frame_free.
enum td_rc td_ipc_recv(struct td_ipc_conn *c, td_frame **out, int fds[TD_FRAME_FDS_MAX],
                       struct td_err *err) TD_MUST_CHECK;
void td_frame_free(td_frame *frame); // accepts NULL

#endif
