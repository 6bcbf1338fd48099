// The logs of a cluster by name: see logs.h.
#include "lib/io/logs.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/base/check.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/io/log_file.h"
#include "lib/io/log_kafka.h"

enum { NAME_BYTES_MAX = 64 };

// It becomes part of a path and of a topic's name, so it holds nothing that is special in either.
static enum td_rc check_name(const char *name, struct td_err *err) {
    size_t n = strlen(name);
    if (n == 0 || n > NAME_BYTES_MAX || name[0] == '-' ||
        strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != n) {
        return td_fail(err, TD_EINVAL,
                       "\"%.100s\" is no name of a log: 1 to %d small letters, digits and dashes",
                       name, NAME_BYTES_MAX);
    }
    return TD_OK;
}

static char *path_of(const struct td_logs *logs, const char *name, const char *suffix) {
    return td_asprintf("%s/%s%s", logs->folder, name, suffix);
}

static char *topic_of(const struct td_logs *logs, const char *name) {
    return td_asprintf("%s.%s", logs->prefix, name);
}

static struct td_log_kafka_opts on_kafka(const struct td_logs *logs, const char *topic) {
    return (struct td_log_kafka_opts){.brokers = logs->brokers,
                                      .topic = topic,
                                      .properties = logs->properties,
                                      .timeout_ms = logs->timeout_ms,
                                      .fsync = logs->fsync};
}

// Moved aside first: a delete that was cut short leaves nothing that could be opened or stand in
// the way of a new log of this name, and the next delete finishes it.
static enum td_rc delete_folder(const struct td_logs *logs, const char *name, struct td_err *err) {
    char *path = path_of(logs, name, ""), *gone = path_of(logs, name, ".deleted");
    struct stat st;
    enum td_rc rc = td_remove_tree(gone, err);
    if (rc == TD_OK && lstat(path, &st) == 0) {
        if (!S_ISDIR(st.st_mode)) {
            rc = td_fail(err, TD_EINVAL, "%s is no folder of a log; nothing was deleted", path);
        } else if (rename(path, gone) != 0) {
            rc = td_fail_errno(err, errno, "%s: cannot be moved aside", path);
        } else {
            rc = td_sync_dir(logs->folder, err);
            rc = rc == TD_OK ? td_remove_tree(gone, err) : rc;
        }
    } else if (rc == TD_OK && errno != ENOENT) {
        rc = td_fail_errno(err, errno, "%s", path);
    }
    td_free(gone);
    td_free(path);
    return rc;
}

void td_logs_rollout_name(uint64_t id, char out[TD_ROLLOUT_LOG_NAME]) {
    snprintf(out, TD_ROLLOUT_LOG_NAME, "rollout-%016" PRIx64, id);
}

enum td_rc td_logs_create(const struct td_logs *logs, const char *name, uint64_t id,
                          uint32_t partitions, struct td_err *err) {
    td_assert(partitions >= 1 && partitions <= TD_LOG_PARTITIONS_MAX);
    enum td_rc rc = check_name(name, err);
    if (rc == TD_OK && logs->kind == TD_LOGS_FILE) {
        char *path = path_of(logs, name, "");
        struct td_log_file_opts opts = {.folder = path, .id = id, .partitions = partitions};
        rc = td_log_file_create(&opts, err);
        td_free(path);
    } else if (rc == TD_OK) {
        char *topic = topic_of(logs, name);
        struct td_log_kafka_opts opts = on_kafka(logs, topic);
        opts.id = id;
        opts.partitions = partitions;
        rc = td_log_kafka_create(&opts, err);
        td_free(topic);
    }
    return rc;
}

enum td_rc td_logs_open(struct td_loop *loop, const struct td_logs *logs, const char *name,
                        uint64_t id, struct td_log **out, struct td_err *err) {
    enum td_rc rc = check_name(name, err);
    if (rc == TD_OK && logs->kind == TD_LOGS_FILE) {
        char *path = path_of(logs, name, "");
        struct td_log_file_opts opts = {.folder = path, .id = id, .no_fsync = !logs->fsync};
        rc = td_log_file_open(loop, &opts, out, err);
        td_free(path);
    } else if (rc == TD_OK) {
        char *topic = topic_of(logs, name);
        struct td_log_kafka_opts opts = on_kafka(logs, topic);
        opts.id = id;
        rc = td_log_kafka_open(loop, &opts, out, err);
        td_free(topic);
    }
    return rc;
}

enum td_rc td_logs_ask(const struct td_logs *logs, const char *name, struct td_logs_known *known,
                       struct td_err *err) {
    enum td_rc rc = check_name(name, err);
    if (rc == TD_OK && logs->kind == TD_LOGS_FILE) {
        char *path = path_of(logs, name, "");
        struct td_log_file_opts opts = {.folder = path, .id = known->id};
        rc = td_log_file_ask(&opts, err);
        *known = rc == TD_OK ? (struct td_logs_known){opts.id, opts.partitions} : *known;
        td_free(path);
    } else if (rc == TD_OK) {
        char *topic = topic_of(logs, name);
        struct td_log_kafka_opts opts = on_kafka(logs, topic);
        opts.id = known->id;
        rc = td_log_kafka_ask(&opts, err);
        *known = rc == TD_OK ? (struct td_logs_known){opts.id, opts.partitions} : *known;
        td_free(topic);
    }
    return rc;
}

enum td_rc td_logs_attach(struct td_loop *loop, const struct td_logs *logs, const char *name,
                          const struct td_logs_known *known, struct td_log **out,
                          struct td_err *err) {
    if (logs->kind == TD_LOGS_FILE) {
        return td_logs_open(loop, logs, name, known->id, out, err);
    }
    enum td_rc rc = check_name(name, err);
    if (rc == TD_OK) {
        char *topic = topic_of(logs, name);
        struct td_log_kafka_opts opts = on_kafka(logs, topic);
        opts.id = known->id;
        opts.partitions = known->partitions;
        rc = td_log_kafka_attach(loop, &opts, out, err);
        td_free(topic);
    }
    return rc;
}

enum td_rc td_logs_delete(const struct td_logs *logs, const char *name, struct td_err *err) {
    enum td_rc rc = check_name(name, err);
    if (rc == TD_OK && logs->kind == TD_LOGS_FILE) {
        rc = delete_folder(logs, name, err);
    } else if (rc == TD_OK) {
        char *topic = topic_of(logs, name);
        struct td_log_kafka_opts opts = on_kafka(logs, topic);
        rc = td_log_kafka_delete(&opts, err);
        td_free(topic);
    }
    return rc;
}
