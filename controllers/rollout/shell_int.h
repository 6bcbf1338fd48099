// Inside of the rollout controller's shell.
#ifndef TD_CONTROLLERS_ROLLOUT_SHELL_INT_H
#define TD_CONTROLLERS_ROLLOUT_SHELL_INT_H

#include "controllers/common/pool.h"
#include "controllers/common/record.h"
#include "controllers/rollout/episode.h"
#include "controllers/rollout/shell.h"
#include "controllers/rollout/val_dump.h"

struct td_rollout_shell {
    struct td_rollout_shell_config config;
    struct td_rolloutc *machine;
    struct td_link *link;
    struct td_pool *pool;
    struct td_timer *timer;
    struct td_episodes *episodes;
    Tandem__Worker__Setup setup;
    char *socket_dir;
    bool stopping;
    bool stepping; // an event within the effects of another one would mix their order
    int busy;
    td_loop_fn *stopped;
    void *stopped_user;
    uint64_t tokens;
};

void td_rollout_shell_step(struct td_rollout_shell *s, const struct td_rolloutc_event *event);
void td_rollout_shell_idle(struct td_rollout_shell *s);

// shell_groups.c: groups under way
void td_rollout_shell_start_group(struct td_rollout_shell *s, const struct td_rolloutc_effect *x);
void td_rollout_shell_publish(struct td_rollout_shell *s, const struct td_rolloutc_effect *x);
void td_rollout_shell_close_group(struct td_rollout_shell *s, const struct td_rolloutc_effect *x);
void td_rollout_shell_generated(struct td_rollout_shell *s, const Tandem__Worker__Generated *m);

void td_rollout_shell_failed(struct td_rollout_shell *s, uint64_t ticket, const char *text);

// shell_scores.c: all samples of g are there
void td_rollout_shell_score(struct td_rollout_shell *s, const struct td_episode *g);

// shell_weights.c
void td_rollout_shell_prepare(struct td_rollout_shell *s, const struct td_rolloutc_effect *x);
void td_rollout_shell_flip(struct td_rollout_shell *s, const struct td_rolloutc_effect *x);

#endif
