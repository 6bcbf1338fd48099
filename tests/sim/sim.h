// The simulator: a whole cluster of the real machines in one thread, under a seed, with a virtual
// clock. world.c time, processes, messages · journal.c and rollout.c the two logs · coordinators.c,
// trainers.c, rollers.c the shells · members.c controller daemons that are told which job to serve,
// links.c how they speak with coordinators, client.c who submits jobs to those · ranks.c train
// workers · disk.c checkpoints and metric lines · faults.c what goes wrong · check.c what must
// hold.
#ifndef TD_TESTS_SIM_SIM_H
#define TD_TESTS_SIM_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "controllers/rollout/rolloutc.h"
#include "controllers/train/trainc.h"
#include "coordinator/coordinator.h"
#include "lib/base/rng.h"

enum {
    NC = 3, // coordinators
    NT = 2, // train controllers
    NR = 2, // rollout controllers
    NM = NT + NR,
    NW = 2,   // ranks of each train controller
    NRW = NW, // workers of each rollout controller
    NJ = 2,   // jobs
    NP = 2,   // partitions of a rollout log
    NPROC = NC + NT + NR + NT * NW + NR * NRW,
    SAMPLES = 4,
    UPDATES = 2,
    SNAPSHOTS = 2, // as a worker keeps
    ROUNDS_MAX = 64,
    ATTEMPTS = 12, // with p.poison; failures by chance are fewer
};

enum proc_kind { COORDINATOR, TRAINER, ROLLER, RANK, ROLL_WORKER };

struct sim;
struct event;
typedef void (*sim_fn)(struct sim *s, struct event *e);

// A payload shared by all events that carry it.
struct msg {
    int refs;
    Tandem__Sync__Report *report; // owned
    Tandem__Sync__Orders *orders; // owned
    uint8_t *bytes;               // owned
    size_t n;
    void *more; // owned
};

struct event {
    int64_t at;
    uint64_t seq;
    sim_fn fn;
    int proc; // to which it happens; −1: to the world
    uint32_t inc;
    bool of_process; // inc is that of the process, which may have had several machines
    uint64_t a, b, c;
    struct msg *msg;
};

struct proc {
    enum proc_kind kind;
    int index, worker; // worker: within its controller
    bool alive, paused;
    uint32_t inc;           // counts up at each start and each end, of its machine, too
    uint32_t life;          // the same of the process alone
    struct event *deferred; // while paused
    size_t deferred_count, deferred_cap;
    int64_t reply_ms; // replies of the logs come in order
    // reader of the journal
    int64_t next;
    bool pumping, reset, slow, cut; // slow: reads late; cut: from the journal
    bool linked[NC];                // messages pass between it and that coordinator
};

// ---- logs ----
struct journal_record {
    uint8_t *bytes; // owned
    size_t n;
    struct td_pos pos;
    uint64_t digest; // of the state after it
    enum td_verdict verdict;
};

struct rollout_record {
    bool gone; // not readable any more
    uint32_t crc;
    struct td_group group;
    uint32_t part, parts;
    uint64_t term, attempt, producer;
    struct td_version version; // that it claims
    uint64_t weights;          // that it was really made with
    int64_t landed_ms;
};

struct partition {
    struct rollout_record *records;
    size_t count, cap;
    int64_t start; // trimmed below
};

// ---- train side ----
struct node { // a train state and where it came from
    uint64_t digest, before, batch;
    uint32_t k;
};

struct rank {
    bool set_up, prepped, finished;
    uint64_t job, generation;
    struct td_version version;
    struct td_pos ref, finished_ref;
    uint32_t applied, updates;
    uint64_t state, batch; // batch: prepared
    struct {
        uint64_t step, weights;
    } snapshots[SNAPSHOTS]; // served; oldest first
    size_t snapshot_count;
    uint32_t attached; // inc of the controller it serves
    // STEP that waits for the other ranks, or is being carried out
    bool pending, running;
    uint32_t pending_k;
    uint64_t pending_seq, next_state;
};

struct finished { // a version that a generation reached
    uint64_t generation, step, state;
};

struct folder {
    char *name; // owned
    uint64_t job, id, generation, step, state, manifest;
    bool whole, corrupt, gone;
};

struct lines { // metrics.jsonl of one train controller and job
    struct td_metrics_on_disk disk;
    uint64_t count; // lines ever closed and not cut
    // the last line: of which version, by which generation, since when
    struct td_version version;
    uint64_t generation;
    int64_t closed_ms;
};

struct trainer {
    struct sim *sim;
    struct td_trainc *machine;
    uint8_t spec[2]; // of the job that it serves, with p.assign
    struct rank ranks[NW];
    uint64_t scan, scan_job; // READ_ROLLOUT that is followed; 0: none
    int64_t next[NP], scan_end[NP];
    bool scanned, pumping;
    int64_t disturbed_ms; // the last time that anything kept it from its work
    struct lines lines;
    uint64_t batch_round; // READ_ROUND that lies ready
    struct td_pos batch_ref;
    uint64_t batch;
};

// ---- rollout side ----
struct ticket {
    uint64_t id, job, weights;
    bool eval;
    int worker;
    uint32_t worker_inc, left;
    struct td_attempt attempt;
    struct td_group group;
    struct td_version version;
};

struct roller {
    struct td_rolloutc *machine;
    uint64_t job; // told to the machine
    uint64_t producer;
    struct ticket *tickets;
    size_t ticket_count, ticket_cap;
    struct {
        bool has;
        struct td_version version, prepared_version;
        uint64_t weights, prepared;
        uint32_t attached; // inc of the worker that the controller knows of
    } workers[NRW];
};

// ---- daemons (p.assign) ----
enum call_kind { REPORT_CALL, WAIT_CALL, CALLS };

struct peer {              // a coordinator, as a member sees it
    uint64_t calls[CALLS]; // under way; 0: none
    int64_t since_ms[CALLS], pause_ms;
    bool paused, has_news;
};

struct server_member { // a member, as a coordinator sees it
    uint64_t calls[CALLS];
    struct msg *kept; // orders that wait for a call
};

enum service_state {
    SERVICE_NONE,
    SERVICE_LOADING,
    SERVICE_OPENING,
    SERVICE_RUNNING,
    SERVICE_STOPPING
};

struct reading { // files of a job that is being submitted
    bool asked, done, fails;
    Tandem__Sync__Attempt attempt;
    uint64_t number; // of the one under way
    uint8_t spec[2];
    Tandem__Journal__DataIndex index;
};

struct member {
    enum service_state state;
    uint64_t wanted, job; // 0: nothing
    Tandem__Journal__DataIndex index;
    uint64_t workers_job; // whose workers may be there; outlives the process
    uint64_t incarnation, journal_id, term, reports;
    bool swept, trouble;
    struct reading reading[NJ];
    struct msg *report; // the newest
    struct peer peers[NC];
};

struct client {
    uint64_t call, revision; // call 0: none under way
};

// ---- what a seed decides ----
struct profile {
    uint64_t rounds;
    int jobs;
    bool rows_job, nondeterministic, fork, careless, validation;
    bool poison; // a group of the first job ends every worker that generates it
    bool single; // one coordinator that leads at once, as in `tandem run`
    bool assign; // daemons: members are told what to serve, and speak as gRPC lets them
    bool same_spec;
    int trainers;                                  // that there are
    uint32_t trouble_percent, other_files_percent; // a job cannot be served, or is another one
    uint32_t index_percent;                        // files that cannot be read, or are too few
    uint32_t parts;
    uint64_t rows, batch, unit, checkpoint_every, save_freq, state_every, chunk;
    int64_t fault_ms; // faults stop then
    int64_t fault_gap_ms;
    // weights of faults: 0 switches one off
    uint32_t crash, pause, machine, tree, worker, lose_record, corrupt, outage, partition, slow,
        cancel;
    uint32_t append_percent;  // appends to the journal with another outcome than plain success
    uint32_t publish_percent; // the same for the rollout log
    uint32_t loss_percent, dup_percent; // of messages
    uint32_t stale_percent;             // reports that arrive very late
    uint32_t late_command_percent;      // commands of a dead controller that reach a worker
    uint32_t bad_snapshot_percent;
    uint32_t trigger_percent; // faults at the worst moment: see faults.c
    int64_t generate_ms;      // of one sample, at most
    const char *focus;        // directed: name of a planted bug
};

// What the checks know of a job by themselves, from accepted records alone: a second, simpler
// telling of the journal, that knows nothing of the first.
struct known_group {
    struct td_group group;
    uint64_t round; // sealed in; 0: none
    bool dropped;
};

struct job_facts {
    uint64_t id; // in the journal; 0: not accepted yet
    uint8_t spec[2];
    bool asked; // submitted since it was refused
    bool seen_end, cancelled_by_user, has_head, based;
    bool tampered; // a forged record was accepted: what is trained is not expected any more
    uint64_t sealed, lineage, generation;
    int64_t gang_ms; // since when there is that generation
    struct td_version head;
    struct known_group *groups;
    size_t group_count, group_cap;
    struct td_pos ref[ROUNDS_MAX];
    uint64_t batch[ROUNDS_MAX];    // content of the round's seal in force
    uint64_t state[ROUNDS_MAX];    // of the COMMIT in force
    uint64_t ever[ROUNDS_MAX][32]; // by (step, lineage): the state committed; 0: none
    uint64_t expected[ROUNDS_MAX]; // state of an undisturbed run; 0: not worked out yet
    struct {
        uint64_t id, step;
    } kept[2];
    size_t kept_count;
    uint32_t members; // bits of trainers that led its gang
};

struct sim {
    struct td_rng rng;
    struct profile p;
    uint64_t seed;
    bool trace, faults_on, lost_record, forging;
    int64_t now, healed_ms, ended_ms, ended_count; // ended_count: records when all jobs had ended
    uint64_t events, next_seq;
    struct event *heap;
    size_t heap_count, heap_cap;
    struct proc procs[NPROC];

    struct journal_record *journal;
    size_t journal_count, journal_cap;
    int64_t journal_start;
    bool journal_out, rollout_out;
    struct td_journal_state truth;
    int64_t lead_ms; // the last LEAD was accepted
    uint64_t checked_term, checked_owner;
    // attempts of this term that orders of that coordinator have shown
    uint64_t leased[NC], leased_eval[NC];
    int64_t *state_starts; // accepted STATEs
    size_t state_start_count, state_start_cap;

    struct partition rollout[NJ][NP];
    struct td_coordinator *coordinators[NC];
    struct trainer trainers[NT];
    struct roller rollers[NR];
    struct member members[NM];
    struct server_member servers[NC][NM];
    struct client clients[NJ];
    uint64_t waiters[NC][NJ]; // calls of clients that an API holds
    uint64_t owners[NC];
    uint64_t next_call;
    struct lines lines[NJ]; // with p.assign; else each train controller has its own
    struct folder *folders;
    size_t folder_count, folder_cap;
    struct node *nodes;
    size_t node_count, node_cap;
    struct finished *finished;
    size_t finished_count, finished_cap;
    struct job_facts jobs[NJ];
    struct msg **forgeries; // bodies that a stale leader could append
    size_t forgery_count, forgery_cap;
    uint64_t accepted_by_kind[16];

    bool violated;
    char violation[512];
};

// ---- world.c ----
uint32_t sim_below(struct sim *s, uint32_t n);
bool sim_percent(struct sim *s, uint32_t percent);
int64_t sim_between(struct sim *s, int64_t low, int64_t high);
// Schedules an event; msg (may be NULL): one reference is taken over. Returns it, valid until the
// next call.
struct event *sim_after(struct sim *s, int64_t delay, int proc, sim_fn fn, struct msg *msg);
// To the process, whatever machine it has by then.
struct event *sim_after_process(struct sim *s, int64_t delay, int proc, sim_fn fn, struct msg *msg);
// The machine of a controller ends, its process does not.
void sim_machine_ends(struct sim *s, int proc);
struct msg *sim_msg(void);
struct msg *sim_msg_ref(struct msg *m);
void sim_msg_unref(struct msg *m);
void sim_trace(struct sim *s, const char *fmt, ...) TD_PRINTF(2, 3);
void sim_violation(struct sim *s, const char *fmt, ...) TD_PRINTF(2, 3);
void sim_start(struct sim *s, int proc);
void sim_kill(struct sim *s, int proc);
void sim_pause(struct sim *s, int proc, int64_t ms);
void sim_resume(struct sim *s, int proc);
int proc_of(enum proc_kind kind, int index, int worker);
const char *proc_name(int proc);
bool sim_run(struct sim *s, uint64_t seed, const struct profile *p); // false: violated
void sim_fini(struct sim *s);

// ---- profile.c ----
// focus: name of a planted bug whose conditions shall be frequent; "each": one of them by the seed;
// NULL or unknown: none.
struct profile profile_of(uint64_t seed, uint64_t rounds, const char *focus);
bool sim_plan_coordinator(void *user, const Tandem__Journal__Job *job, struct td_job_plan *out);
bool sim_poisoned(const struct sim *s, uint64_t job, bool eval, struct td_group group);
bool sim_plan_train(void *user, const void *spec, size_t n, struct td_train_plan *out);
void sim_index(const struct sim *s, int job, Tandem__Journal__DataIndex *out);
void spec_index(const struct sim *s, const uint8_t spec[2], Tandem__Journal__DataIndex *out);
int sim_job_of_member(const struct sim *s, int index); // jobs of the members with that index
uint64_t sim_log_id(const struct sim *s, int job);     // 0: a job over rows

// ---- journal.c ----
void journal_append(struct sim *s, int proc, struct msg *bytes);
void journal_land(struct sim *s, const uint8_t *bytes, size_t n);
void journal_fetch_end(struct sim *s, int proc);
void journal_reset(struct sim *s, int proc);
void journal_open(struct sim *s, int proc);
void journal_trim(struct sim *s, int64_t offset);
void journal_pump_all(struct sim *s);

// ---- rollout.c ----
void rollout_publish(struct sim *s, int proc, const struct ticket *t);
void rollout_follow(struct sim *s, int trainer, const struct td_trainc_effect *e);
void rollout_trim(struct sim *s, const struct td_coordinator_effect *e);
const struct rollout_record *rollout_at(const struct sim *s, int job,
                                        const Tandem__Journal__LogPosition *p);
uint32_t rollout_crc(struct td_group group, uint32_t part, uint64_t weights);

// ---- shells ----
void coordinator_event(struct sim *s, int proc, struct td_coordinator_event *e);
void trainer_event(struct sim *s, int proc, struct td_trainc_event *e);
void roller_event(struct sim *s, int proc, struct td_rolloutc_event *e);
void coordinator_start(struct sim *s, int proc);
void trainer_start(struct sim *s, int proc);
void roller_start(struct sim *s, int proc);
void send_report(struct sim *s, int proc, struct msg *report);
int job_index(const struct sim *s, uint64_t job); // of a job id of the journal; −1: unknown

// ---- members.c ----
struct member *member_of(struct sim *s, int proc);
void member_start(struct sim *s, int proc);
bool member_runs(const struct sim *s, int proc);
void member_orders(struct sim *s, int proc, const Tandem__Sync__Orders *o);
void member_report(struct sim *s, int proc, struct msg *report);
void check_works_for(struct sim *s, int proc, uint64_t job);

// ---- links.c: messages are taken over ----
void link_report(struct sim *s, int member, struct msg *report);
void link_orders(struct sim *s, int coordinator, int member, struct msg *orders);
void link_member_starts(struct sim *s, int member);
void link_member_tick(struct sim *s, int member);
void link_member_dead(struct sim *s, int member);
void link_coordinator_dead(struct sim *s, int coordinator);

// ---- client.c ----
void clients_begin(struct sim *s);
void clients_tick(struct sim *s, int coordinator);
void client_answered(struct sim *s, int coordinator, const char *request_id, bool accepted);

// ---- ranks.c ----
void rank_command(struct sim *s, int trainer, const struct td_trainc_effect *e);
void rank_start(struct sim *s, int proc);
void rank_attach(struct sim *s, int trainer, int worker);
void roll_attach(struct sim *s, int roller, int worker);
void worker_lost(struct sim *s, int proc);
uint64_t weights_of(uint64_t state);
// Whether the rank at that address serves these weights: it runs and holds a snapshot of them.
bool rank_serves(const struct sim *s, const char *address, uint64_t step, uint64_t weights);
uint64_t state_after(uint64_t state, uint64_t batch, uint32_t k);
uint64_t initial_state(int job);

// ---- disk.c ----
void disk_effect(struct sim *s, int trainer, const struct td_trainc_effect *e);
struct folder *find_folder(struct sim *s, int job, const char *name);
struct folder *find_checkpoint(struct sim *s, uint64_t id);
struct lines *lines_of(struct sim *s, int trainer);
void disk_save_begin(struct sim *s, int trainer, const struct td_trainc_effect *e);

// ---- faults.c ----
void faults_begin(struct sim *s);
void faults_heal(struct sim *s);
// Moments at which a fault hurts most.
void fault_at_seal(struct sim *s, const Tandem__Journal__Seal *b);
void fault_at_commit(struct sim *s, uint64_t job);
void fault_at_finish(struct sim *s, int trainer);
void fault_at_save(struct sim *s, int trainer);
void fault_at_close(struct sim *s);
void fault_at_landing(struct sim *s, int job);
bool fault_half_applied(struct sim *s, int trainer);
void forge_remember(struct sim *s, const Tandem__Sync__Report *report);
void forge_record(struct sim *s);

// ---- check.c ----
void check_accepted(struct sim *s, const td_record *r);
void check_reader(struct sim *s, int proc, const struct td_journal_state *state, int64_t offset);
void check_orders(struct sim *s, int coordinator, const Tandem__Sync__Orders *orders,
                  uint64_t member);
void check_end(struct sim *s);
void check_folder_deletion(struct sim *s, const struct folder *f);
void check_trim(struct sim *s, int64_t offset);
void add_node(struct sim *s, uint64_t digest, uint64_t before, uint64_t batch, uint32_t k);
uint64_t batch_of(const struct sim *s, int job, td_entry *const *entries, size_t n);
uint64_t expected_state(struct sim *s, int job, uint64_t step);

#endif
