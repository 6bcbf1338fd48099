// The file kind of the record log: one machine, local file system, several processes at once.
// lib/io/README.md describes the files.
#ifndef TD_IO_LOG_FILE_H
#define TD_IO_LOG_FILE_H

#include "lib/io/log.h"

enum { TD_LOG_SEGMENT_BYTES = 64 << 20 };

// For tests: called before every step that changes the disk, with its name, on the log's thread.
// A value other than 0 is an errno: the step is not made and counts as failed with it.
struct td_log_hooks {
    int (*step)(void *user, const char *name);
    void *user;
};

struct td_log_file_opts {
    const char *folder;
    uint64_t id;         // create: the new log's id; open: must match unless 0
    uint32_t partitions; // create: 1 … TD_LOG_PARTITIONS_MAX
    uint32_t
        segment_bytes_max; // a segment is rolled before it grows beyond; 0: TD_LOG_SEGMENT_BYTES
    bool no_fsync;         // records survive the death of processes, but not a loss of power
    // An fsync failed: nothing is known about the disk any more. Called on the log's thread; when
    // it returns (or is NULL) the process prints the error and aborts.
    void (*fatal)(void *user, const struct td_err *err);
    void *user;
    const struct td_log_hooks *hooks; // NULL in products
};

// Makes the folder and an empty log. TD_ECONFLICT: there is a log already (the message has its id).
enum td_rc td_log_file_create(const struct td_log_file_opts *opts,
                              struct td_err *err) TD_MUST_CHECK;
// Any thread: reads what the log in opts->folder is into opts->id (which must match unless 0) and
// opts->partitions. Errors as of open.
enum td_rc td_log_file_ask(struct td_log_file_opts *opts, struct td_err *err) TD_MUST_CHECK;
// Opens a log; blocks on the disk. TD_ENOENT: no log there; TD_ECONFLICT: another id, both are
// named; TD_ECORRUPT: damaged.
enum td_rc td_log_file_open(struct td_loop *loop, const struct td_log_file_opts *opts,
                            struct td_log **out, struct td_err *err) TD_MUST_CHECK;

#endif
