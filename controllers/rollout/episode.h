// Groups under way in a rollout controller: what has been generated of each. A single turn for now:
// one prompt, n samples of one sequence each. Owned by the loop.
#ifndef TD_CONTROLLERS_ROLLOUT_EPISODE_H
#define TD_CONTROLLERS_ROLLOUT_EPISODE_H

#include <stdbool.h>
#include <stdint.h>

#include "controllers/common/job_data.h"
#include "controllers/rollout/rolloutc.h"
#include "lib/base/buf.h"
#include "proto/worker.pb-c.h"

enum { TD_EPISODE_SAMPLES_MAX = 4096 };

struct td_sample {
    int32_t *ids; // owned: the response
    float *logp;  // owned
    int32_t n;
    bool done, clipped; // clipped: ended by its length
    double score;
};

struct td_episode { // a group
    uint64_t ticket, job;
    int worker;
    struct td_attempt attempt;
    bool eval;
    struct td_group group;
    struct td_version version;
    struct td_row row;         // borrowed from the job's data
    struct td_sample *samples; // owned
    uint32_t sample_count, done;
    struct td_buf record; // packed, once published
};

struct td_episodes;

struct td_episodes *td_episodes_new(void);
void td_episodes_free(struct td_episodes *e);
struct td_episode *td_episodes_add(struct td_episodes *e, const struct td_rolloutc_effect *start,
                                   const struct td_job_data *data);
struct td_episode *td_episodes_find(struct td_episodes *e, uint64_t ticket); // NULL: closed
void td_episodes_remove(struct td_episodes *e, uint64_t ticket);

// The id of a sample's sequence, and back.
uint64_t td_episode_sequence(const struct td_episode *g, uint32_t sample);
uint64_t td_sequence_ticket(uint64_t sequence);
uint32_t td_sequence_sample(uint64_t sequence);

// Takes what a worker generated. False: not a sample of this group, one that was done, one without
// a log-prob for each token, cut off, or made by other weights than the group's.
bool td_episode_take(struct td_episode *g, const Tandem__Worker__Generated *m);
// The answers of a group on their way to its grader: the texts are copies, without special tokens,
// so that a work queue may grade them whatever becomes of the group. data is borrowed.
struct td_scoring;
struct td_scoring *td_scoring_new(const struct td_episode *g, const struct td_job_data *data);
// Grades them, once; any thread. An answer on which the pattern needs too much backtracking scores
// 0: generated again it would be the same text.
enum td_rc td_scoring_run(struct td_scoring *x, struct td_err *err) TD_MUST_CHECK;
// Puts the scores into the samples of the group that it was made of.
void td_scoring_give(const struct td_scoring *x, struct td_episode *g);
void td_scoring_free(struct td_scoring *x); // accepts NULL

#endif
