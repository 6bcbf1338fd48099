// What every daemon has: its run directory, locked; a loop that hears SIGTERM and SIGINT; where the
// cluster's logs lie; certificates; gRPC's runtime; status pages. Embedded in the daemon's own
// struct. Loop thread. Knows nothing of jobs.
#ifndef TD_DAEMON_DAEMON_H
#define TD_DAEMON_DAEMON_H

#include <limits.h>

#include "lib/io/http.h"
#include "lib/io/logs.h"
#include "lib/io/rpc.h"
#include "lib/spec/daemon_settings.h"

struct json_t;

// All answer at once, from memory. /livez says ok as long as the loop turns, / is /status, and
// anything else says which pages there are.
struct td_daemon_pages {
    bool (*ready)(void *user, struct td_buf *out);   // /readyz: a line a condition; false: 503
    void (*metrics)(void *user, struct td_buf *out); // /metrics; those of the process follow
    void (*status)(void *user, struct td_buf *out);  // /status: HTML, from <h1> on
    // /api/v1/PATH: a new reference; NULL: 404.
    struct json_t *(*json)(void *user, const char *path);
    const char *paths; // "jobs, members": what json knows
};

struct td_daemon {
    const struct td_daemon_settings *settings;
    struct td_logs logs;
    const struct td_rpc_tls *tls; // NULL: plain
    struct td_loop *loop;
    struct td_rpc *rpc;
    struct td_http *http;   // NULL: off
    char http_address[128]; // as others reach it; "": off
    bool stopping;

    // ---- of daemon.c and pages.c ----
    td_loop_fn *end;
    void *user;
    char *cause; // owned
    int lock;
    struct td_watch *signals[2];
    struct td_rpc_tls certificates;
    const struct td_daemon_pages *pages;
    const char *title;
};

// end(user) is called once, on a signal or td_daemon_stop: it winds the daemon up, then stops the
// loop. settings are borrowed. Errors as of td_run_lock and kin; td_daemon_fini then, too.
enum td_rc td_daemon_init(struct td_daemon *d, const struct td_daemon_settings *settings,
                          td_loop_fn *end, void *user, struct td_err *err) TD_MUST_CHECK;
// Opens settings->http, if it is set, and answers there. title and pages are borrowed; user as in
// init.
enum td_rc td_daemon_serve(struct td_daemon *d, const char *title,
                           const struct td_daemon_pages *pages, struct td_err *err) TD_MUST_CHECK;
// No page is asked for any more: before what pages look at is freed while the loop runs.
void td_daemon_unserve(struct td_daemon *d);
// cause NULL: it was told to stop; else why it cannot go on. Only the first call counts.
void td_daemon_stop(struct td_daemon *d, const char *cause);
// Runs the loop. TD_EIO: the cause of td_daemon_stop.
enum td_rc td_daemon_run(struct td_daemon *d, struct td_err *err) TD_MUST_CHECK;
// After all that hangs on the loop or on gRPC was freed.
void td_daemon_fini(struct td_daemon *d);

// ---- parts of it, for other programs ----

struct td_logs td_daemon_logs(const struct td_daemon_settings *settings); // strings are borrowed
// SIGINT and SIGTERM. After an error some may be watched.
enum td_rc td_daemon_watch_signals(struct td_loop *loop, td_signal_fn *fn, void *user,
                                   struct td_watch *watches[2], struct td_err *err) TD_MUST_CHECK;
// DIR/tandem-worker, DIR being this program's folder.
enum td_rc td_daemon_worker_program(char out[PATH_MAX], struct td_err *err) TD_MUST_CHECK;
// DIR/NAME keeps an id as 16 digits. TD_ENOENT; TD_ECORRUPT: something else is in it.
enum td_rc td_daemon_read_id(const char *dir, const char *name, uint64_t *id,
                             struct td_err *err) TD_MUST_CHECK;
enum td_rc td_daemon_write_id(const char *dir, const char *name, uint64_t id,
                              struct td_err *err) TD_MUST_CHECK;

#endif
