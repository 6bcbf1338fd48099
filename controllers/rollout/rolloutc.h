// The rollout controller as a pure machine: turns the units of the leader's orders into groups on
// workers, brings new versions to the workers (PREPARE, FLIP by `drain`), publishes what is scored
// and reports all that it holds. No I/O, clock, threads or globals: events and the time come in
// through td_rolloutc_step, all that is to be done comes out as effects.
//
// A group under way has a ticket, used once. Its life: START_GROUP → SAMPLE_DONE per sample →
// GROUP_SCORED → (TRAIN) PUBLISH → PUBLISHED ok → CLOSE_GROUP; (EVAL) CLOSE_GROUP at once. A ticket
// may be closed at any point of it, exactly once; events of closed tickets are passed over.
#ifndef TD_CONTROLLERS_ROLLOUT_ROLLOUTC_H
#define TD_CONTROLLERS_ROLLOUT_ROLLOUTC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/journal/record.h"
#include "proto/sync.pb-c.h"
#include "proto/worker.pb-c.h"

struct td_rolloutc;

enum { TD_ROLLOUT_WORKERS_MAX = 64, TD_PREPARE_RETRIES_MAX = 8, TD_GROUP_RETRIES_MAX = 256 };

struct td_rolloutc_config {
    uint64_t member; // of this controller, never 0
    uint32_t workers;
    uint32_t seqs_max;     // sequences under way on one worker; a group that is larger goes alone
    uint32_t groups_ahead; // groups it would hold beyond what its workers can take, 0 is fine
    const char *build, *device;              // copied
    const Tandem__Journal__DataIndex *index; // what this member's files are; copied; NULL: unknown
    uint64_t expect_journal_id;              // orders of another are passed over; 0: the first seen
    int64_t report_ms;                       // a REPORT at least so often
    int64_t retry_ms; // after a failure (publish, prepare, score) the next try; prepare: longer
                      // each time, up to TD_PREPARE_RETRIES_MAX of it, at once with another target;
                      // score: longer each time, up to TD_GROUP_RETRIES_MAX of it
};

// ---- events. All pointers are borrowed for the call. ----
enum td_rolloutc_event_kind {
    TD_RC_ORDERS,       // orders
    TD_RC_JOB,          // job, samples, eval_samples: the shell knows this job's spec
    TD_RC_WORKER_UP,    // worker, status: attached (again) and set up; its sequences are closed
    TD_RC_WORKER_DOWN,  // worker
    TD_RC_PREPARED,     // worker, version, ok: reply to PREPARE; ok: verified by its digest
    TD_RC_FLIPPED,      // worker, version, ok: reply to FLIP
    TD_RC_SAMPLE_DONE,  // ticket: one more sample of it ended
    TD_RC_GROUP_SCORED, // ticket, scores: one per sample; all rewards are final
    TD_RC_GROUP_FAILED, // ticket, text: a worker or a grader refused; it is tried again
    TD_RC_PUBLISHED,    // ticket, ok: reply to PUBLISH; false: unknown whether it is in the log
    TD_RC_TICK,         // every few hundred ms
};

struct td_rolloutc_event {
    enum td_rolloutc_event_kind kind;
    const Tandem__Sync__Orders *orders;
    uint64_t job;
    uint32_t samples, eval_samples; // per group, ≥ 1
    uint32_t worker;
    const Tandem__Worker__Status *status;
    struct td_version version;
    bool ok;
    uint64_t ticket;
    const double *scores;
    size_t score_count;
    const char *text;
};

// ---- effects, in the order in which they are to be executed. ----
enum td_rolloutc_effect_kind {
    TD_RC_PREPARE,     // worker, version, digest, sources: it pulls the snapshot from one of them;
                       // verified before PREPARED ok
    TD_RC_FLIP,        // worker, version: no sequence is open there
    TD_RC_START_GROUP, // worker, ticket, job, unit (attempt), eval, group, version, samples
    TD_RC_PUBLISH,     // ticket: append its record; again after an unknown outcome
    TD_RC_CLOSE_GROUP, // ticket: close its sequences, forget it
    TD_RC_REPORT,      // report
};

struct td_attempt {
    uint64_t term, n;
};

struct td_rolloutc_effect { // owns sources, report
    enum td_rolloutc_effect_kind kind;
    uint32_t worker, samples;
    uint64_t ticket, job, digest;
    struct td_attempt attempt;
    bool eval;
    struct td_group group; // as ordered; EVAL: index is the row
    struct td_version version;
    char **sources; // addresses of workers/weights.h, the first to be asked first
    size_t source_count;
    Tandem__Sync__Report *report;
};

struct td_rolloutc_effects {
    struct td_rolloutc_effect *items;
    size_t count, cap;
};

// Any thread, but one at a time. config is copied.
struct td_rolloutc *td_rolloutc_new(const struct td_rolloutc_config *config);
void td_rolloutc_free(struct td_rolloutc *x);

// One event. Effects are appended to *out (zeroed by the caller at first).
void td_rolloutc_step(struct td_rolloutc *x, const struct td_rolloutc_event *event, int64_t now_ms,
                      struct td_rolloutc_effects *out);
// Releases the effects; *out may be used again.
void td_rolloutc_effects_fini(struct td_rolloutc_effects *out);

// What the controller does and waits for.
struct td_rollout_view {
    uint64_t job;
    uint32_t workers_ready;
    uint64_t groups_waiting, groups_running, groups_publishing;
    char waits_for[160]; // "" while nothing is waited for
    int64_t since_ms;
};
void td_rolloutc_view(const struct td_rolloutc *x, struct td_rollout_view *out);

#endif
