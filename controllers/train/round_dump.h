// The samples a round trains on as JSON lines: what trainer.rollout_data_dir asks for, in verl's
// keys (input, output, gts, score, step). Blocking; any thread.
#ifndef TD_CONTROLLERS_TRAIN_ROUND_DUMP_H
#define TD_CONTROLLERS_TRAIN_ROUND_DUMP_H

#include <stddef.h>
#include <stdint.h>

#include "controllers/common/job_data.h"

struct td_round_dump;

// dir and data are borrowed.
struct td_round_dump *td_round_dump_new(const char *dir, const struct td_job_data *data,
                                        uint64_t round);
void td_round_dump_free(struct td_round_dump *d); // accepts NULL

struct td_dump_row {
    const int32_t *ids;  // n: prompt, then answer
    const uint8_t *mask; // n: 1 on the answer
    uint32_t n;
    uint64_t data_epoch, index;
    double score;
};
void td_round_dump_add(struct td_round_dump *d, const struct td_dump_row *row);
// Writes DIR/ROUND.jsonl, whole or not at all.
enum td_rc td_round_dump_write(struct td_round_dump *d, struct td_err *err) TD_MUST_CHECK;

#endif
