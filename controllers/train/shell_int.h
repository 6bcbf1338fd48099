// Inside of the train controller's shell.
#ifndef TD_CONTROLLERS_TRAIN_SHELL_INT_H
#define TD_CONTROLLERS_TRAIN_SHELL_INT_H

#include "controllers/train/round.h"
#include "controllers/train/trainc.h"
#include "controllers/train/shell.h"

enum { TD_SHELL_PARTITIONS_MAX = 64, TD_RING_ADDRESS_MAX = 64 };

struct td_rollout_tail { // a reader of one partition of the rollout log
    struct td_train_shell *shell;
    uint32_t partition;
    struct td_log_reader *reader;
    uint64_t scan;      // seq of its READ_ROLLOUT
    int64_t scan_until; // −1: the end is not known yet
    int64_t start;      // of the partition when the end was known
    bool end_owed;      // asked for again in a moment
};

struct td_train_shell {
    struct td_shell base;
    struct td_log *journal;
    char *save_dir, *checkpoint_dir; // owned
    void (*line)(void *user, uint64_t step, const char *json);
    struct td_trainc *machine;
    struct td_timer *timer;
    struct td_timer *again; // asks anew for bounds that could not be had
    struct td_log_reader *journal_reader;
    bool journal_start_owed, journal_end_owed;
    struct td_rollout_tail tails[TD_SHELL_PARTITIONS_MAX];
    uint64_t scan_seq;      // of the READ_ROLLOUT in force
    uint32_t scans_open;    // partitions whose end at READ_ROLLOUT is not reached
    struct td_round *round; // batches of READ_ROUND, NULL: none
    uint64_t round_wanted;  // counts READ_ROUND and DROP_ROUND: a late answer to an older one is
                            // passed over
    char ring_addresses[TD_TRAIN_RANKS_MAX][TD_RING_ADDRESS_MAX];
    int64_t round_started_ns, step_seconds_ns;
    uint64_t last_tokens;
    struct td_metrics_on_disk on_disk;
};

void td_train_shell_step(struct td_train_shell *s, const struct td_trainc_event *event);

// shell_commands.c: commands to workers
void td_train_shell_command(struct td_train_shell *s, const struct td_trainc_effect *x);
void td_train_shell_pool_fns(struct td_pool_fns *fns);

// shell_disk.c: checkpoints, folders, metrics, rounds (work queue)
void td_train_shell_save(struct td_train_shell *s, const struct td_trainc_effect *x);
void td_train_shell_verify(struct td_train_shell *s, const struct td_trainc_effect *x);
void td_train_shell_list_folders(struct td_train_shell *s);
void td_train_shell_delete_folder(struct td_train_shell *s, const char *name);
void td_train_shell_metrics(struct td_train_shell *s,
                            const struct td_trainc_effect *x); // x NULL: open
void td_train_shell_read_round(struct td_train_shell *s, const struct td_trainc_effect *x);
void td_train_shell_drop_round(struct td_train_shell *s);

// shell_logs.c: journal and rollout log
void td_train_shell_ask_again(void *user); // callback of `again`
void td_train_shell_read_journal(struct td_train_shell *s);
void td_train_shell_fetch_end(struct td_train_shell *s);
void td_train_shell_read_rollout(struct td_train_shell *s, const struct td_trainc_effect *x);
void td_train_shell_close_logs(struct td_train_shell *s);

#endif
