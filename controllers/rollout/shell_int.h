// Inside of the rollout controller's shell.
#ifndef TD_CONTROLLERS_ROLLOUT_SHELL_INT_H
#define TD_CONTROLLERS_ROLLOUT_SHELL_INT_H

#include "controllers/common/record.h"
#include "controllers/rollout/episode.h"
#include "controllers/rollout/rolloutc.h"
#include "controllers/rollout/shell.h"
#include "controllers/rollout/val_dump.h"

struct td_rollout_shell {
    struct td_shell base;
    struct td_rolloutc *machine;
    struct td_timer *timer;
    struct td_episodes *episodes;
};

void td_rollout_shell_step(struct td_rollout_shell *s, const struct td_rolloutc_event *event);

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
