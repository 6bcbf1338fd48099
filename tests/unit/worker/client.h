// A controller's end of a real tandem-worker process, one request at a time. Whatever goes wrong
// fails the test.
#ifndef TD_TESTS_WORKER_CLIENT_H
#define TD_TESTS_WORKER_CLIENT_H

#include <sys/types.h>

#include "lib/ipc/conn.h"
#include "tests/unit/cmocka_all.h"
#include "tests/unit/job/tiny_job.h"

enum { CLIENT_WAIT_MS = 60000, CLIENT_IDS_MAX = 64, CLIENT_RESULTS_MAX = 64 };

struct result { // of one sequence
    uint64_t sequence;
    int n, finish;
    int32_t ids[CLIENT_IDS_MAX];
    float logp[CLIENT_IDS_MAX];
    uint64_t lineage, step;
};

struct client {
    const struct tiny_job *job;
    char *socket; // owned
    pid_t pid;    // 0: has ended
    struct td_ipc_conn *conn;
    uint64_t seq;
    td_frame *reply; // owned, the last one
    int reply_fd;    // that came with it, −1: none
    int beats;
    char doing[32]; // of the last heartbeat
    uint64_t open_sequences;
    struct result results[CLIENT_RESULTS_MAX];
    int result_count;
};

// Starts the process at DIR/name (of the job) and waits for its socket.
void client_start_at(struct client *c, const struct tiny_job *job, const char *name, int grace_s);
void client_start(struct client *c, const struct tiny_job *job, int grace_s);
void client_connect(struct client *c);
void client_disconnect(struct client *c);
// The process has ended by itself with status; its sockets are gone.
void client_expect_exit(struct client *c, int status);
// Stop, or SIGKILL when there is no connection; frees everything.
void client_end(struct client *c);

void client_send(struct client *c, td_frame *frame, int fd);
// Waits for the reply to the last request; borrowed until the next one.
const td_frame *client_reply(struct client *c);
// Waits for a frame that is no reply.
void client_wait_beats(struct client *c, int more);
void client_wait_results(struct client *c, int count);

// Sends a request and returns the reply, or fails unless it is an Error of this code whose message
// has this part.
const td_frame *client_ask(struct client *c, td_frame *frame, int fd);
void client_refused(struct client *c, td_frame *frame, int fd, enum td_rc code, const char *part);
// As client_ask, and the reply must have this body.
const td_frame *client_get(struct client *c, td_frame *frame, int fd,
                           Tandem__Worker__Frame__BodyCase body);
const Tandem__Worker__Status *client_attach(struct client *c);
void client_setup(struct client *c, const char *role, uint32_t size);

// Frames. The message is borrowed.
#define FRAME(field, CASE, message)                                                                \
    (&(td_frame){PROTOBUF_C_MESSAGE_INIT(&tandem__worker__frame__descriptor),                      \
                 .body_case = TANDEM__WORKER__FRAME__BODY_##CASE, .field = (message)})

#endif
