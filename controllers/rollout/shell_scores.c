// The rollout controller's shell: rewards, and the samples of a validation. Graders may take long
// on an answer, and disks on a file: both run on the work queue.
#include "controllers/rollout/shell_int.h"
#include "lib/base/mem.h"
#include "lib/base/trace.h"

struct job {
    struct td_rollout_shell *shell;
    uint64_t ticket;
    struct td_scoring *scoring; // owned; or
    struct td_val_dump *dump;   // owned
    enum td_rc rc;
    struct td_err err;
};

static void job_free(struct job *j) {
    td_scoring_free(j->scoring);
    td_val_dump_free(j->dump);
    td_free(j);
}

static void submit(struct td_rollout_shell *s, const struct job *job, td_loop_fn *run,
                   td_loop_fn *done) {
    struct job *j = td_memdup(job, sizeof *job);
    if (!td_shell_submit(&s->base, run, done, j)) {
        job_free(j);
    }
}

static void give_scored(struct td_rollout_shell *s, const struct td_episode *g) {
    double *scores = td_alloc_array(g->sample_count, sizeof *scores);
    for (uint32_t i = 0; i < g->sample_count; i++) {
        scores[i] = g->samples[i].score;
    }
    struct td_rolloutc_event e = {.kind = TD_RC_GROUP_SCORED,
                                  .ticket = g->ticket,
                                  .scores = scores,
                                  .score_count = g->sample_count};
    td_rollout_shell_step(s, &e);
    td_free(scores);
}

static void run_write(void *user) {
    struct job *j = user;
    j->rc = td_val_dump_write(j->dump, &j->err);
}

// A group of a validation counts once its samples are on the disk.
static void done_write(void *user) {
    struct job *j = user;
    struct td_rollout_shell *s = j->shell;
    struct td_episode *g = td_episodes_find(s->episodes, j->ticket);
    if (j->rc != TD_OK) {
        s->base.config.failed(s->base.config.user, j->err.msg);
    } else if (g) {
        give_scored(s, g);
    }
    job_free(j);
    td_shell_idle(&s->base);
}

static void run_score(void *user) {
    struct job *j = user;
    j->rc = td_scoring_run(j->scoring, &j->err);
}

static void take_scores(struct td_rollout_shell *s, struct td_episode *g, const struct job *j) {
    if (j->rc != TD_OK) {
        td_trace_warn("group not scored", "cause=\"%s\"", j->err.msg);
        td_rollout_shell_failed(s, g->ticket, j->err.msg);
        return;
    }
    td_scoring_give(j->scoring, g);
    if (g->eval && s->base.config.data->spec->trainer.validation_data_dir) {
        const struct job write = {.shell = s,
                                  .ticket = g->ticket,
                                  .dump =
                                      td_val_dump_new(s->base.config.run_dir, s->base.config.member,
                                                      s->base.config.data, g)};
        submit(s, &write, run_write, done_write);
    } else {
        give_scored(s, g);
    }
}

static void done_score(void *user) {
    struct job *j = user;
    struct td_rollout_shell *s = j->shell;
    struct td_episode *g = td_episodes_find(s->episodes, j->ticket);
    if (g && !s->base.stopping) { // else it was closed meanwhile
        take_scores(s, g, j);
    }
    job_free(j);
    td_shell_idle(&s->base);
}

void td_rollout_shell_score(struct td_rollout_shell *s, const struct td_episode *g) {
    const struct job score = {
        .shell = s, .ticket = g->ticket, .scoring = td_scoring_new(g, s->base.config.data)};
    submit(s, &score, run_score, done_score);
}
