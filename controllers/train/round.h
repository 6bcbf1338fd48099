// A round's batches: the sealed records (or rows) of the journal's entries, read and checked, laid
// out as one memfd per rank. Blocking; meant for a work queue.
#ifndef TD_CONTROLLERS_TRAIN_ROUND_H
#define TD_CONTROLLERS_TRAIN_ROUND_H

#include "controllers/common/job_data.h"
#include "controllers/train/trainc.h"
#include "lib/io/log.h"

struct td_round_request {
    const struct td_job_data *data;
    struct td_log *rollouts; // NULL: rows
    uint64_t journal_id, job, round;
    struct td_pos ref;
    uint32_t ranks;
    td_entry **entries; // owned copies
    size_t entry_count;
};

struct td_round {
    uint64_t job, round;
    struct td_pos ref;
    uint32_t ranks, updates;
    int fds[TD_TRAIN_RANKS_MAX]; // owned batches
    struct td_metrics metrics;   // critic/score/mean, response_length/mean ...
    uint64_t tokens;
    // entries that cannot be read, and why the first; count 0: all is well
    uint32_t *missing; // owned
    size_t missing_count;
    char *cause; // owned
};

// Reads and lays out. A record that is gone or damaged is no error: it stands in missing. An error
// is one of the machine (memory, descriptors), or retriable: the log does not answer.
enum td_rc td_round_build(const struct td_round_request *request, struct td_round **out,
                          struct td_err *err) TD_MUST_CHECK;
void td_round_free(struct td_round *r); // accepts NULL
void td_round_request_fini(struct td_round_request *request);

#endif
