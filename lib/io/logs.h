// Where the logs of a cluster lie, and making, opening and deleting them by name. Kinds: file (a
// folder of one machine, shared by its processes), kafka (a topic per log). Names: "journal",
// "rollout-<16 hex digits>".
#ifndef TD_IO_LOGS_H
#define TD_IO_LOGS_H

#include "lib/io/log.h"

enum td_logs_kind { TD_LOGS_FILE, TD_LOGS_KAFKA };

struct td_logs { // strings are borrowed
    enum td_logs_kind kind;
    const char *folder; // file: the log lies in FOLDER/NAME
    // false survives kill -9, but not a loss of power. kafka: true makes topics that brokers sync
    // before they acknowledge, which replicas on several machines make needless.
    bool fsync;
    const char *brokers;    // kafka: "host:port,..."
    const char *prefix;     // kafka: the topic is PREFIX.NAME
    const char *properties; // kafka: file of settings, see deploy/kafka-node; NULL: none
    int64_t timeout_ms;     // kafka: for one operation; 0: 10 s
};

enum { TD_ROLLOUT_LOG_NAME = 32 };
// "rollout-0123456789abcdef"
void td_logs_rollout_name(uint64_t id, char out[TD_ROLLOUT_LOG_NAME]);

struct td_logs_known { // about a log
    uint64_t id;
    uint32_t partitions;
};

// id: a random one, that the log carries with every record. Blocks; any thread (not the loop of a
// daemon that runs). TD_ECONFLICT: there is one already; TD_ETIMEOUT: no broker answers, it may
// exist or come to exist; TD_EINVAL: no such name, or the brokers refuse the settings.
enum td_rc td_logs_create(const struct td_logs *logs, const char *name, uint64_t id,
                          uint32_t partitions, struct td_err *err) TD_MUST_CHECK;
// Opens. id: must match, unless 0: TD_ECONFLICT. TD_ENOENT: no such log. file: blocks on the disk.
// kafka: blocks until the brokers have told what the topic is, at most timeout_ms: TD_ETIMEOUT.
enum td_rc td_logs_open(struct td_loop *loop, const struct td_logs *logs, const char *name,
                        uint64_t id, struct td_log **out, struct td_err *err) TD_MUST_CHECK;
// The two halves of opening, for a loop that must not wait for brokers. Asking blocks, on any
// thread, and sets *known, whose id must match, unless 0; errors as of open. Attaching blocks on
// the disk only; what is known must be right.
enum td_rc td_logs_ask(const struct td_logs *logs, const char *name, struct td_logs_known *known,
                       struct td_err *err) TD_MUST_CHECK;
enum td_rc td_logs_attach(struct td_loop *loop, const struct td_logs *logs, const char *name,
                          const struct td_logs_known *known, struct td_log **out,
                          struct td_err *err) TD_MUST_CHECK;
// Blocks; any thread; nobody may have it open. One that is not there is no error.
enum td_rc td_logs_delete(const struct td_logs *logs, const char *name,
                          struct td_err *err) TD_MUST_CHECK;

#endif
