// What the files of a worker share. Owned by the command thread.
#ifndef TD_WORKERS_WORKER_INT_H
#define TD_WORKERS_WORKER_INT_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "lib/ipc/conn.h"
#include "lib/ipc/snapshot.h"
#include "lib/spec/job_spec.h"
#include "workers/comm/comm.h"
#include "workers/engine/generate.h"
#include "workers/engine/train.h"
#include "workers/heartbeat.h"
#include "workers/model/model.h"
#include "workers/weights.h"
#include "workers/worker.h"

enum { TD_WORKER_ROLE_MAX = 16 };

struct td_train_seat {
    struct td_trainer *trainer;
    struct td_comm_listener *listener;
    char *address; // of listener
    struct td_comm *comm;
    struct td_weights_server *server; // of the last versions reached
    bool finished;                    // a version was reached, or a base loaded; digests of it:
    uint64_t weight_digest, state_digest;
    int64_t finished_ref_offset; // of the round that led to it; −1: none
    uint32_t finished_ref_crc;
    struct td_metrics prep, steps; // of the open round
    struct td_metrics round;       // of the round that led to the version
};

struct td_rollout_weights {
    struct td_snapshot map;
    struct td_weights weights; // flat is the mapping
};

struct td_rollout_seat {
    struct td_generator *generator;
    struct td_rollout_weights *current, *next; // owned; next: prepared, not flipped
    uint8_t *allowed;                          // vocabulary bytes, or NULL
    int32_t *stop_ids;
    int32_t stop_count;
};

struct td_worker {
    uint64_t id; // random per process
    const struct td_worker_config *config;
    int listener;
    struct td_ipc_conn *conn; // NULL: nobody is connected
    bool attached;            // conn is that of this worker's controller
    uint64_t attached_job;    // as it said
    struct td_heartbeat *heartbeat;
    bool stopping;
    // after Setup
    bool set_up;
    uint64_t job;
    char role[TD_WORKER_ROLE_MAX]; // actor | rollout
    struct td_job_spec *spec;
    char *model_dir;
    struct td_backend *backend;
    struct td_model *model;
    struct td_train_seat train;
    struct td_rollout_seat rollout;
};

// A frame handler: fills reply (its body lives until the next frame) or fails; then Error is sent.
// reply_fd: a descriptor to send with the reply (then closed by the caller of the handler), or −1.
struct td_reply {
    td_frame frame;
    int fd;
    bool close_fd;
    union {
        Tandem__Worker__Done done;
        Tandem__Worker__Stepped stepped;
        Tandem__Worker__Digested digested;
        Tandem__Worker__Saved saved;
        Tandem__Worker__Scored scored;
        Tandem__Worker__Attached attached;
    };
    // room that the bodies above point into
    Tandem__Worker__Status status;
    Tandem__Worker__Version version;
    Tandem__Worker__Metric metric[TD_METRICS_MAX], *metric_ptr[TD_METRICS_MAX];
    Tandem__Worker__SavedFile file[TD_SAVED_FILES_MAX], *file_ptr[TD_SAVED_FILES_MAX];
    struct td_metrics metrics;
    struct td_saved_file saved_files[TD_SAVED_FILES_MAX];
    double *scores; // owned
};

void td_reply_done(struct td_reply *r);

// Engine of a seat (frees what was built when it fails): built once from the job's settings.
enum td_rc td_seat_setup(struct td_worker *w, const Tandem__Worker__Setup *m,
                         struct td_err *err) TD_MUST_CHECK;
void td_seat_fini(struct td_worker *w);

enum td_rc td_train_seat_new(struct td_worker *w, const Tandem__Worker__Setup *m,
                             struct td_err *err) TD_MUST_CHECK;
void td_train_seat_init(struct td_train_seat *s);
void td_train_seat_fini(struct td_train_seat *s);
// All that changes train state is refused unless it is for the right generation, round and version.
// Ring, Load, Prep, Step, Finish, Save, Digest. fds[0]: the batch of Prep.
enum td_rc td_train_seat_handle(struct td_worker *w, const td_frame *frame, const int *fds,
                                struct td_reply *reply, struct td_err *err) TD_MUST_CHECK;
void td_train_seat_status(struct td_worker *w, struct td_reply *reply);

enum td_rc td_rollout_seat_new(struct td_worker *w, const Tandem__Worker__Setup *m,
                               struct td_err *err) TD_MUST_CHECK;
void td_rollout_seat_fini(struct td_worker *w);
// Prepare, Flip, Open, Extend, Fork, Generate, Close, Score.
enum td_rc td_rollout_seat_handle(struct td_worker *w, const td_frame *frame,
                                  struct td_reply *reply, struct td_err *err) TD_MUST_CHECK;
void td_rollout_seat_status(struct td_worker *w, struct td_reply *reply);
// One engine step and the Generated frames it gave. *busy: there is more to do.
enum td_rc td_rollout_seat_turn(struct td_worker *w, bool *busy, struct td_err *err) TD_MUST_CHECK;

#endif
