// A job of a journal that is lost, as a new journal's INIT adopts it: from the state that one of
// its checkpoints embeds (docs/journal.md). Pure.
#ifndef TD_JOURNAL_ADOPT_H
#define TD_JOURNAL_ADOPT_H

#include "lib/base/mem.h"
#include "lib/journal/record.h"

// The job at the checkpoint's step: its lineage is the next one, nothing is sealed beyond, groups
// of later rounds are open again, only this checkpoint is kept. rollout_log: the new one, 0 for
// jobs over rows. *out points into from, checkpoint and arena. TD_ECORRUPT: the state does not know
// the checkpoint's version with its digest.
enum td_rc td_journal_adopt(const Tandem__Journal__JobState *from,
                            const Tandem__Journal__Checkpoint *checkpoint, uint64_t rollout_log,
                            struct td_arena *arena, Tandem__Journal__JobState *out,
                            struct td_err *err) TD_MUST_CHECK;

#endif
