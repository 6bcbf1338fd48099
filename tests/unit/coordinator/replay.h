// One coordinator whose events a test delivers in its own order (bench.h: several that are answered
// at once): it may read the journal again, be restarted, be suspended.
#ifndef TD_TESTS_UNIT_COORDINATOR_REPLAY_H
#define TD_TESTS_UNIT_COORDINATOR_REPLAY_H

#include "coordinator/coordinator.h"
#include "lib/base/buf.h"

enum {
    REPLAY_RECORDS_MAX = 512,
    REPLAY_MEMBERS_MAX = 8,
    REPLAY_OWNER = 0xC0,
    REPLAY_LOG = 0x106,
    REPLAY_TAKEOVER_MS = 1000,
    REPLAY_LEASE_MS = 1200,
    REPLAY_MEMBER_TIMEOUT_MS = 1500,
};

struct replay {
    struct td_coordinator *machine;
    struct td_coordinator_config config;
    struct td_job_plan plan; // what every spec means
    uint64_t rows, rollout_log;
    int64_t now_ms;

    struct td_buf log[REPLAY_RECORDS_MAX];
    struct td_pos pos[REPLAY_RECORDS_MAX];
    size_t count, read; // read: next record to be delivered
    // effects that wait for their events
    bool reset;
    uint32_t ends, appended;
    // what came out
    Tandem__Sync__Orders *orders[REPLAY_MEMBERS_MAX]; // owned; the last, by member id
    size_t orders_count;
    char refused[256], stopped[256];
    uint64_t accepted_job;
    bool ended;
    enum _Tandem__Journal__Outcome outcome;
    char cause[512];
};

// What a train member says of the job its gang serves; zero: nothing is done yet.
struct replay_train {
    uint64_t job;               // 0: 1
    bool lost, unscanned, idle; // idle: workers, but no gang known
    bool finished;              // the version after the head
    bool closed;                // metrics line and save of the head are there
    size_t arrived;             // so many of the open groups lie in the log
    bool backwards;             // told in the wrong order, each twice
    size_t missing;             // so many entries of the open round cannot be read
};

void replay_init(struct replay *b); // 16 rows, batch 4, 2 groups a unit, 3 steps
void replay_fini(struct replay *b);
// Drops the machine and starts another one on the same journal.
void replay_restart(struct replay *b);
// One event, its effects queued; deliver: carries on until nothing is left to be delivered.
void replay_event(struct replay *b, const struct td_coordinator_event *event);
void replay_deliver(struct replay *b);
void replay_tick(struct replay *b, int64_t ms);
void replay_submit(struct replay *b, const char *request_id, size_t spec_bytes);
void replay_report_train(struct replay *b, uint64_t member, const struct replay_train *say);
// A rollout member that holds the head, with room for so many groups.
void replay_report_rollout(struct replay *b, uint64_t member, uint32_t capacity);
// Another coordinator's LEAD, or any other record, is put behind the last one.
void replay_put_foreign(struct replay *b, td_record *record, uint64_t owner);
const struct td_job_state *replay_job(const struct replay *b, uint64_t job);
struct td_job_view replay_view(const struct replay *b, uint64_t job);
// Leads, job 1 is accepted, its gang on member 1 is based and step 0 committed and closed.
void replay_start(struct replay *b);

#endif
