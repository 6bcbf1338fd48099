// Inside of the rollout controller machine; nothing outside this folder includes it.
// rolloutc.c: events, workers and versions, the report · units.c: orders, and the life of groups.
#ifndef TD_CONTROLLERS_ROLLOUT_ROLLOUTC_INT_H
#define TD_CONTROLLERS_ROLLOUT_ROLLOUTC_INT_H

#include "controllers/rollout/rolloutc.h"

enum { TD_UNITS_MAX = 1024, TD_UNIT_GROUPS_MAX = 4096, TD_ROLLOUT_TEXT_MAX = 160 };

struct td_held {
    bool has;
    struct td_version version;
    uint64_t digest;
};

struct td_seat {
    bool up;
    struct td_held weights;   // sampled with
    struct td_held prepared;  // verified, to be flipped to
    struct td_held preparing; // PREPARE under way
    bool flipping;
    int64_t retry_ms;  // no PREPARE or FLIP before
    uint32_t failures; // of PREPARE, in a row
    uint32_t open;     // sequences under way
    bool alone;        // they are of a group that nothing runs beside
};

enum td_group_state {
    TD_GROUP_WAITING,
    TD_GROUP_RUNNING,    // on a worker
    TD_GROUP_SCORING,    // all samples are there
    TD_GROUP_PUBLISHING, // PUBLISH under way
    TD_GROUP_UNSURE,     // its outcome is unknown: again
    TD_GROUP_DONE,
};

struct td_leased {
    struct td_group group;
    enum td_group_state state;
    uint64_t ticket; // 0: none
    uint32_t worker, samples, done;
    struct td_version version; // that it runs under
    int64_t retry_ms;
    uint32_t failures; // of workers that it ran on, and of its grader
    double *scores;    // owned; EVAL, when done
    size_t score_count;
};

struct td_unit {
    uint64_t job;
    struct td_attempt attempt;
    bool eval;
    struct td_version version;
    struct td_leased *groups;
    size_t group_count;
    int64_t since_ms;
};

struct td_rolloutc {
    struct td_rolloutc_config config; // its pointers: owned copies
    uint64_t journal_id, term;        // highest seen
    uint64_t ordered_report;          // the report that the last orders of this term answered
    uint64_t job;                     // known to the shell; 0: none
    uint32_t samples, eval_samples;
    struct td_held target;
    char **sources; // owned; workers that may serve the target
    size_t source_count;
    struct td_seat seats[TD_ROLLOUT_WORKERS_MAX];
    struct td_unit *units; // in the order of the orders
    size_t unit_count;
    uint64_t next_ticket;
    uint64_t report_count, report_digest;
    int64_t reported_ms;
    char trouble[96]; // why the last group that failed did; "" once one was scored
    char waits_for[TD_ROLLOUT_TEXT_MAX];
    int64_t since_ms;
};

// ---- rolloutc.c ----
struct td_rolloutc_effect *td_rolloutc_push(struct td_rolloutc_effects *out,
                                            enum td_rolloutc_effect_kind kind);
bool td_held_equal(const struct td_held *a, const struct td_held *b);

// ---- units.c ----
void td_units_free(struct td_rolloutc *x);
void td_units_orders(struct td_rolloutc *x, const Tandem__Sync__Orders *orders, int64_t now_ms,
                     struct td_rolloutc_effects *out);
// The worker has no sequences any more; failed: because it ended.
void td_units_worker_empty(struct td_rolloutc *x, uint32_t worker, bool failed,
                           struct td_rolloutc_effects *out);
// SAMPLE_DONE, GROUP_SCORED, GROUP_FAILED, PUBLISHED.
void td_units_event(struct td_rolloutc *x, const struct td_rolloutc_event *event, int64_t now_ms,
                    struct td_rolloutc_effects *out);
// Starts what can be started, publishes again what is unsure.
void td_units_drive(struct td_rolloutc *x, int64_t now_ms, struct td_rolloutc_effects *out);
// Whether a group that failed waits for its next try.
bool td_units_retry(const struct td_rolloutc *x, int64_t now_ms);
size_t td_units_count(const struct td_rolloutc *x, enum td_group_state state);
void td_units_report(const struct td_rolloutc *x, Tandem__Sync__RolloutReport *report);
uint32_t td_units_samples(const struct td_rolloutc *x, const struct td_unit *unit);

#endif
