// The user's checkpoints, global_step_N: what the controller adds to a worker's export, and whether
// one is whole. Blocking; any thread.
#ifndef TD_CONTROLLERS_TRAIN_USER_SAVE_H
#define TD_CONTROLLERS_TRAIN_USER_SAVE_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "lib/journal/record.h"

struct td_user_save {
    const char *folder, *save_dir; // SAVE_DIR/global_step_N, SAVE_DIR
    const char *run_dir;           // of the job: which version was announced last stands there
    const Tandem__Journal__Checkpoint *checkpoint;
    struct td_group cursor; // of the data
    uint64_t seed;
};

// Writes FOLDER/state.json, then FOLDER/manifest.json with every file's size and digest, then
// announces it.
enum td_rc td_user_save_finish(const struct td_user_save *save, struct td_err *err) TD_MUST_CHECK;
// Writes SAVE_DIR/latest_checkpointed_iteration.txt: of a folder that is whole, by a process that
// ended before it could say so. Nothing is done when a newer version was announced: by another
// member, while this one was stopped.
enum td_rc td_user_save_announce(const struct td_user_save *save, struct td_err *err) TD_MUST_CHECK;
// Whether folder has a manifest of this state, and every file that it names in its size.
bool td_user_save_is_whole(const char *folder, uint64_t state_digest);

#endif
