// Inside of bench_control: bench_control.c runs and measures · control_member.c what members share
// · control_roller.c rollout members: the machine of controllers/rollout, with workers that only
// let time pass · control_trainer.c the train member, which follows the journal and says at once
// that it did what is due. All on one loop, in one process; each member has a connection of its
// own.
#ifndef TD_BENCH_CONTROL_H
#define TD_BENCH_CONTROL_H

#include "controllers/rollout/rolloutc.h"
#include "lib/base/rng.h"
#include "lib/io/link_grpc.h"
#include "lib/io/logs.h"
#include "lib/journal/follow.h"

enum { SAMPLES = 8, SENT_MAX = 1024, REPORT_MS = 500 };

struct control;

struct member {
    struct control *control;
    uint64_t id;
    struct td_link_client *link;
    struct td_timer *timer;
    uint64_t idle_reports, journal_id, term;
    uint64_t serves;            // 0: nothing yet
    Tandem__Sync__Index *asked; // an Index order, owned; NULL: none
    int64_t sent_ns[SENT_MAX];  // of report number n at n % SENT_MAX
    uint64_t answered;          // highest report that was answered
    bool greeted;               // some orders came
};

struct roller {
    struct member member;
    struct td_rolloutc *machine; // NULL: serves nothing yet
    struct ticket *tickets;      // groups under way
    size_t ticket_count, ticket_cap;
    uint64_t attempt, target; // highest unit and target step seen in orders
};

struct trainer {
    struct member member;
    struct td_log *journal;
    struct td_log_reader *reader;
    struct td_follower follow;
    struct td_timer *training, *telling;
    bool tells;     // telling will fire
    uint64_t round; // that is trained, or was
    bool trained;
    Tandem__Sync__Arrived **arrived; // owned
    size_t arrived_count, arrived_cap;
    uint64_t reports, arrivals;
};

struct latencies { // ns
    int64_t *v;
    size_t count, cap;
};

struct control {
    struct td_loop *loop;
    struct td_rpc *rpc;
    struct trainer trainer;
    struct roller *rollers;
    size_t roller_count;
    uint32_t workers;
    int64_t group_ms, train_ms;
    struct td_rng rng;
    bool measuring;
    struct latencies answers, leases, steps;
    uint64_t reports, report_bytes, orders, finished; // finished: step that the trainer reported
    int64_t finished_ns;                              // when it did so first
};

extern const Tandem__Journal__DataIndex control_index; // of the files that nobody has
void control_fail(const char *what);                   // ends the process
void control_note(struct control *c, struct latencies *to, int64_t since_ns);

// ---- control_member.c ----
void member_start(struct member *m, const char *address, td_link_orders_fn *on_orders,
                  td_loop_fn *on_timer, void *user);
// Sends r with what every member says of itself.
void member_report(struct member *m, const Tandem__Sync__Report *r);
void member_idle_report(struct member *m, Tandem__Sync__MemberKind kind);
// Notes the orders of a leader. Of a serving member: how long the report waited for them; true:
// they are the first answer to it.
bool member_orders(struct member *m, const Tandem__Sync__Orders *o, bool serving);

void roller_start(struct roller *r, const char *address);
void trainer_start(struct trainer *t, const char *address, const char *log_folder);
void trainer_arrived(struct trainer *t, struct td_group group, uint64_t step);

#endif
