// The settings of a daemon, typed: a YAML file and overrides "key=value". The table behind them is
// lib/spec/schema_daemon.c; deploy/*.yaml show every key with its meaning.
// Pure but for reading one file. Any thread; settings are not changed once made.
#ifndef TD_SPEC_DAEMON_SETTINGS_H
#define TD_SPEC_DAEMON_SETTINGS_H

#include "lib/spec/job_spec.h"

enum td_daemon_role { TD_DAEMON_COORDINATOR, TD_DAEMON_ROLLOUT, TD_DAEMON_TRAIN };
enum { TD_DAEMON_ROLES = 3 };

enum td_daemon_log { TD_DAEMON_LOG_FILE, TD_DAEMON_LOG_KAFKA };

// A field whose key the role does not have is zero. Addresses were checked for their form:
// HOST:PORT or, for gRPC and Redis, unix:PATH.
struct td_daemon_settings {
    const char *cluster, *dir, *host, *shared_dir;
    const char *listen;                  // coordinator: gRPC
    const char *http;                    // NULL: off
    struct td_spec_strings coordinators; // controllers: gRPC, at least one
    int64_t workers, threads;            // controllers; threads 0: cores / workers
    struct {
        enum td_daemon_log kind;
        const char *folder;     // FILE: never NULL
        bool fsync;             // FILE
        const char *brokers;    // KAFKA: never NULL, "host:port,..."
        const char *prefix;     // KAFKA
        const char *properties; // KAFKA: file, or NULL
        int64_t timeout_s;      // KAFKA
        int64_t partitions;     // of a new rollout log
    } log;
    struct {
        const char *address;       // NULL: no Redis
        const char *password_file; // or NULL
        int64_t timeout_ms;
    } redis;
    struct {
        const char *ca_file, *cert_file, *key_file; // NULL: none; cert and key go together
    } tls;
    struct {
        int64_t takeover_ms, beat_ms, member_timeout_ms;
        int64_t state_every; // journal records; 0: never
    } timers;
    bool verbose;
    struct td_arena *arena; // owns every string and list above
};

// "coordinator", "rollout", "train".
const char *td_daemon_role_name(enum td_daemon_role role);

// text->bytes NULL: the file text->name is read (the codes of td_file_read; TD_ELIMIT when it is
// longer than TD_SPEC_FILE_MAX). Errors as in td_job_spec_parse: all of them in notes (zeroed by
// the caller, td_spec_notes_fini), "file:line: key: what is wrong", their number and the first in
// *err.
enum td_rc td_daemon_settings_load(enum td_daemon_role role, const struct td_spec_text *text,
                                   struct td_daemon_settings **out, struct td_spec_notes *notes,
                                   struct td_err *err) TD_MUST_CHECK;
void td_daemon_settings_free(struct td_daemon_settings *settings); // accepts NULL

// Appends a file with every key of the role explained, at its default or an example. It loads.
void td_daemon_settings_print_example(enum td_daemon_role role, struct td_buf *out);

#endif
