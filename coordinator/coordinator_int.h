// Inside of the coordinator machine: shared by the files of this folder only.
// coordinator.c events and effects · leading.c the journal: append, lead, beat, STATE · members.c
// who is there · serve.c which job each of them serves · submit.c new jobs ·
// jobs.c the order of decisions of a job · gangs.c GANG, RESTORE, FORK · rounds.c
// DRAW, DROP, SEAL, RESEAL, COMMIT, CHECKPOINT · units.c leases and validation · orders.c what
// members are told · view.c what a job waits for.
#ifndef TD_COORDINATOR_COORDINATOR_INT_H
#define TD_COORDINATOR_COORDINATOR_INT_H

#include "coordinator/coordinator.h"
#include "lib/journal/follow.h"

struct td_member {
    uint64_t id;
    int64_t heard_ms;
    Tandem__Sync__Report *report; // owned; the last one of this term
    uint64_t report_count;        // in this term
    uint64_t orders_digest;       // of what was sent last; 0: nothing yet
    uint64_t serves;              // the job that it is to serve; 0: none
    uint64_t unfit;   // a job whose files are others there, or that it cannot serve: 0: none
    int64_t unfit_ms; // since when
    bool due;         // its orders may have changed
    uint64_t room;    // while units are placed: groups that it would take
    size_t units;     // likewise: leased to it
};

struct td_unit {
    uint64_t term, n; // attempt
    bool eval;
    struct td_version version;
    uint64_t member;
    size_t member_at;        // where it probably stands in the table
    struct td_group *groups; // owned
    size_t group_count;
    int64_t leased_ms; // since when this leader knows it
    int64_t done_ms;   // since when the member says that all of it is done; −1: it is not
    bool seen;         // was in a report of the member: its capacity takes account of it
};

struct td_eval_score {
    double *score; // owned; NULL: not yet
    size_t count;
};

struct td_wait_state {
    enum td_wait wait;
    uint64_t member;
    int64_t since_ms;
    char text[400];
};

struct td_job { // what the leader knows of a job beyond the journal; rebuilt from reports
    uint64_t id;
    bool planned, plan_known; // planned: plan_of was asked
    const char *plan_wrong;   // why it is not known; a literal
    struct td_job_plan plan;
    bool cancel, announced;
    struct td_group cursor_at_lead; // draws before it may be leased by the leader before
    struct td_unit *units;
    size_t unit_count, unit_cap;
    struct td_group *left; // owned; wanted, but nobody had room for them when units were placed
    size_t left_count, left_at, left_cap; // left_at: the next one
    bool left_eval;
    struct td_version left_version; // under which they are wanted
    size_t rollers; // while members are assigned: live rollout members that serve it
    struct td_version eval_version; // of eval
    bool eval_started;
    struct td_eval_score *eval; // one per validation row
    size_t eval_count, eval_done;
    uint64_t trimmed_for; // checkpoint whose positions TRIM_ROLLOUT gave out
    struct {              // by the train gang, of its state, since the head is that
        struct td_version head;
        uint64_t generation; // counted last
        uint64_t times;
    } lost;
    struct td_wait_state wait, wait_next;
};

struct td_submission {
    char *request_id;
    Tandem__Journal__Job *job; // owned; id is given when it is appended
    uint64_t asked;            // the member that is to read its files; 0: none
    uint64_t term, n;          // attempt that the answer has to name; n 0: nobody was asked yet
};

struct td_coordinator {
    struct td_coordinator_config config;
    struct td_follower follow;
    int64_t now_ms;
    bool stopped, dirty; // dirty: orders may have changed
    bool due_all;        // likewise, and of any member
    int64_t passed_ms;   // when all was decided and placed last
    bool caught_up;      // the log's end was reached since the last start: until then the state is
                         // an old one, from which nothing is done (rule A2)

    bool appending;      // an APPEND is not answered yet
    bool end_for_lead;   // the end that is being fetched is the one that permits a LEAD
    bool leading;        // the append under way is a LEAD
    int64_t lead_offset; // of the last LEAD of this process; −1: none, or one was heard of since
    int64_t quiet_ms;    // the last time the leader was heard of in the journal
    int64_t end_ms;      // the last time that the log's end became known
    int64_t ready_ms;    // the same of the last end that was reached: what is known is as old
    int64_t out_ms;      // the last record of this process
    uint64_t led_term;   // term won by this process last; 0: none
    int64_t led_ms;      // since when it leads
    int64_t reached_ms;  // the last report of any member
    int64_t silent_ms;   // since when it is silent; −1: it is not
    struct td_buf state; // content of the STATE under way
    uint32_t state_part, state_parts;
    int64_t state_base;     // journal offset at the last STATE
    int64_t trimmed;        // TRIM_JOURNAL was given out up to here
    struct td_pos sent_pos; // planted bugs only: where the record under way would lie
    struct td_buf sent;

    struct td_member *members;
    size_t member_count, member_cap;
    struct td_job **jobs;
    size_t job_count, job_cap, next_job;
    struct td_submission *submits;
    size_t submit_count, submit_cap;
    uint64_t attempt; // n of the last unit of this term

    struct td_coordinator_effects *out; // of the step under way
};

// ---- coordinator.c ----
struct td_coordinator_effect *td_co_push(struct td_coordinator *c,
                                         enum td_coordinator_effect_kind kind);
void td_co_want(struct td_coordinator *c, enum td_follow_want want);

// ---- leading.c ----
bool td_co_leads(const struct td_coordinator *c);
// Leads, knows the whole log, has nothing under way.
bool td_co_may_append(const struct td_coordinator *c);
// Gives the body its header and appends it if the judge allows it. false: it does not.
bool td_co_propose(struct td_coordinator *c, td_record *record);
void td_co_appended(struct td_coordinator *c, const struct td_coordinator_event *event);
void td_co_record(struct td_coordinator *c, const struct td_coordinator_event *event);
void td_co_end(struct td_coordinator *c, int64_t end);
// INIT, LEAD, STATE, BEAT: whatever is due. Before and after the jobs had their turn.
// How long a leader may be unheard of before this process tries to lead.
int64_t td_co_patience_ms(const struct td_coordinator *c);
void td_co_lead_first(struct td_coordinator *c);
void td_co_lead_last(struct td_coordinator *c);
bool td_co_cut_off(const struct td_coordinator *c);

// ---- members.c ----
// The member, if the report can change only what it is told itself and the leases of what is left
// for want of room; else NULL.
struct td_member *td_co_report(struct td_coordinator *c, const Tandem__Sync__Report *report);
struct td_member *td_co_member(const struct td_coordinator *c, uint64_t id); // NULL: unknown
bool td_co_alive(const struct td_coordinator *c, const struct td_member *m);
// Same files: may serve the job.
bool td_co_fits(const struct td_member *m, const struct td_job_state *j);
void td_co_forget_reports(struct td_coordinator *c);
// Nothing was heard because nobody listened for so long (a suspended machine): that is no silence.
void td_co_paused(struct td_coordinator *c, int64_t gap_ms);
void td_member_fini(struct td_member *m);

// ---- serve.c ----
// Decides for every live member which job it serves (config.assign).
void td_co_assign(struct td_coordinator *c);
// Whether that is the job that the member is to serve, as far as members are told.
bool td_co_serves(const struct td_coordinator *c, const struct td_member *m, uint64_t job);
// What a report says of the job that its member serves.
void td_co_served(struct td_coordinator *c, struct td_member *m);
// It said lately that it cannot serve that job.
bool td_co_unfit(const struct td_coordinator *c, const struct td_member *m, uint64_t job);
// Its steps need samples: groups to train on, or validation.
bool td_job_needs_rollout(const struct td_job *job);
// The live job whose train gang the journal puts on the member; NULL: none.
const struct td_job_state *td_co_gang_job(const struct td_coordinator *c, uint64_t member);

// ---- jobs.c ----
struct td_job *td_co_job(const struct td_coordinator *c, uint64_t id); // NULL: unknown
void td_co_sync_jobs(struct td_coordinator *c);                        // with the journal's state
void td_co_decide(struct td_coordinator *c);
// Why no step can be made under such a plan; NULL: it can. Also of jobs that the journal holds: one
// that was never submitted here must not end in a DRAW and DROP without end.
const char *td_job_plan_wrong(const struct td_job_plan *plan, uint64_t rows, uint64_t open_max);
void td_co_wait(struct td_coordinator *c, struct td_job *job, enum td_wait wait, uint64_t member,
                const char *fmt, ...) TD_PRINTF(5, 6);
void td_job_free_soft(struct td_job *job);
bool td_co_end_job(struct td_coordinator *c, const struct td_job_state *j,
                   enum _Tandem__Journal__Outcome outcome, const char *cause);

// ---- submit.c ----
void td_co_submit(struct td_coordinator *c, const struct td_submit *submit);
// Answers what the journal has by now; appends the first of the rest.
void td_co_submissions(struct td_coordinator *c);
// Another leads: whoever submits asks it, and what it refuses shall not become a job here later.
void td_co_drop_submissions(struct td_coordinator *c);
// What a report says of the files of jobs that are being submitted.
void td_co_indexed(struct td_coordinator *c, const Tandem__Sync__Report *report);

// ---- gangs.c: true: a record was appended ----
const struct td_gang_state *td_co_gang(const struct td_job_state *j);
// The live member that leads the job's train gang; NULL: none.
const struct td_member *td_co_trainer(const struct td_coordinator *c, const struct td_job_state *j);
// Its report, if it speaks of the job's current generation; NULL: none.
const Tandem__Sync__TrainReport *td_co_train_report(const struct td_coordinator *c,
                                                    const struct td_job_state *j);
bool td_co_decide_gang(struct td_coordinator *c, struct td_job *job, const struct td_job_state *j);
bool td_co_decide_trouble(struct td_coordinator *c, struct td_job *job,
                          const struct td_job_state *j);

// ---- rounds.c: true: a record was appended ----
bool td_co_decide_results(struct td_coordinator *c, const struct td_job_state *j);
bool td_co_decide_round(struct td_coordinator *c, struct td_job *job, const struct td_job_state *j);
bool td_co_reseal(struct td_coordinator *c, struct td_job *job, const struct td_job_state *j,
                  const Tandem__Sync__TrainReport *t);
// The first train_batch_size open groups: the entry under which each lies whole in the log for a
// round that starts at the head; NULL: not yet. Returns how many there are.
size_t td_co_find_open(const struct td_coordinator *c, const struct td_job *job,
                       const struct td_job_state *j, const td_entry **entries);
// A newer copy of an entry of r that cannot be read.
bool td_co_find_missing(const struct td_coordinator *c, const struct td_job_state *j,
                        const struct td_round_state *r, size_t entry, const td_entry **found);
// The round without COMMIT of which t misses records, in its present seal; NULL: none.
const struct td_round_state *td_co_missing_round(const struct td_job_state *j,
                                                 const Tandem__Sync__TrainReport *t);
void td_co_trim_rollout(struct td_coordinator *c, struct td_job *job, const struct td_job_state *j);

// ---- units.c ----
void td_co_place(struct td_coordinator *c);
// What was left by the last of these for want of room, if the member has some now.
void td_co_place_left(struct td_coordinator *c, const struct td_member *m);
bool td_co_adopt(struct td_coordinator *c, const struct td_member *m);  // true: some
bool td_co_scores(struct td_coordinator *c, const struct td_member *m); // true: new ones
void td_co_drop_units(struct td_job *job);
// Ends the job when a group failed too often. true: a record was appended.
bool td_co_decide_failures(struct td_coordinator *c, struct td_job *job,
                           const struct td_job_state *j);
bool td_co_any_failed(const Tandem__Sync__RolloutReport *report);
// Says why not all wanted groups of the next round have arrived, or rows of validation are scored:
// found of them are.
void td_co_wait_for_units(struct td_coordinator *c, struct td_job *job,
                          const struct td_job_state *j, size_t found, size_t wanted);
// What the unit's member says that it waits for.
const char *td_co_unit_waits_for(const struct td_coordinator *c, const struct td_unit *u);
// Whether the head step's line of metrics is written, as far as the gang's train member says: then
// the step is closed, whatever this leader knows of its validation.
enum td_line { TD_LINE_UNKNOWN, TD_LINE_ABSENT, TD_LINE_THERE };
enum td_line td_co_line_of_head(const struct td_coordinator *c, const struct td_job_state *j);
// Is the validation of the head due, and not done? Also begins it, once its line is known to be
// absent.
bool td_co_eval_pending(struct td_coordinator *c, struct td_job *job, const struct td_job_state *j);
bool td_co_eval_done(const struct td_job *job, const struct td_job_state *j); // under this leader
// Nothing more comes to the head step: no validation is due or it is done.
bool td_co_step_closed(const struct td_job *job, const struct td_job_state *j);
bool td_job_eval_due(const struct td_job *job, const struct td_job_state *j);
// The job that a rollout member works for; NULL: none.
const struct td_job_state *td_co_job_of_member(const struct td_coordinator *c,
                                               const struct td_member *m);
// The target version and its digest; false: there is none yet.
bool td_co_target(const struct td_coordinator *c, const struct td_job_state *j,
                  struct td_version *version, uint64_t *digest);

// ---- view.c ----
// As it says itself; trainer: what td_co_trainer found, NULL too.
const char *td_co_trainer_waits_for(const struct td_member *trainer);

// ---- orders.c ----
void td_co_send_changed_orders(struct td_coordinator *c);

#endif
