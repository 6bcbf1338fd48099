// Planted bugs: switches that remove one rule each, so that tests/sim can show that it would
// notice. They exist only in the libraries built with TD_PLANT; everywhere else TD_PLANTED is false
// at compile time and no symbol is left. tests/sim/README.md says what each one breaks.
#ifndef TD_BASE_PLANT_H
#define TD_BASE_PLANT_H

#include <stdbool.h>

// The first block are rules of docs/journal.md §5, the second the list of docs/architecture.md §6.
#define TD_PLANTS(X)                                                                               \
    X(PREV_LINK)             /* apply: any prev of the current leader will do */                   \
    X(LOWER_TERMS)           /* apply: records of lower terms and other owners are taken */        \
    X(DRAW_FROM)             /* apply: DRAW need not start at the cursor */                        \
    X(ACT_ON_ACK)            /* coordinator: takes an acknowledged append as accepted */           \
    X(SEAL_ROUND_OPEN)       /* apply: SEAL while a round is open */                               \
    X(COMMIT_STEP)           /* apply: COMMIT of any step */                                       \
    X(SEAL_GROUPS_OPEN)      /* apply: SEAL of groups that are not open */                         \
    X(DROP_OPEN)             /* apply: DROP of groups that are not open */                         \
    X(COMMIT_REF)            /* apply: COMMIT naming another SEAL */                               \
    X(COMMIT_GENERATION)     /* apply: COMMIT by a retired gang */                                 \
    X(COMMIT_LINEAGE)        /* apply: COMMIT of another lineage */                                \
    X(CHECKPOINT_DIGEST)     /* apply: CHECKPOINT of a state that was not committed */             \
    X(CHECKPOINT_GENERATION) /* apply: CHECKPOINT by a retired gang */                             \
    X(RESTORE_KEPT)          /* apply and coordinator: RESTORE of what is not kept */              \
    X(FORK_PRUNES)           /* apply: FORK keeps the checkpoints it disproves */                  \
    X(FOLDER_DELETION)       /* train controller, A6: deletes what its own state does not keep */  \
    X(TRIM_ACCEPTED)         /* coordinator, A9: trims at a STATE it only sent */                  \
    X(REBASE_GAP)            /* reader: goes on behind a gap with the old state */                 \
    X(RESEAL_VOIDS)          /* train controller, A4: work under the old ref goes on */            \
    X(WORKER_GENERATION)     /* worker, A4: a lower generation is obeyed */                        \
    X(CATCH_UP)              /* A2: acts before the log's end was read */                          \
    X(LOAD_ONCE)             /* train controller, A3: a rank's lost state is loaded again */       \
    X(RESCAN)                /* train controller, A8: a restart scans from the tail */             \
    X(FORK_LINEAGE)          /* coordinator, A5: FORK names the current lineage */                 \
    X(LOW_WATER)             /* train controller, A7: CHECKPOINT positions = the tail */           \
    X(TAKEOVER_EXPIRES)      /* coordinator: a new leader expires units at once */                 \
    X(ARRIVED_LOST)          /* train controller: reports each arrival once only */                \
    X(RECORD_TWICE)          /* train controller: a record stored twice counts twice */            \
    X(LEADS_WITHOUT_LOG)     /* coordinator: takes its own unanswered appends for granted */       \
    X(REDO_CAPACITY)         /* coordinator: the trainer in redo takes part in capacity */         \
    X(NEWEST_TRUSTED)        /* coordinator: restores the newest checkpoint, corrupt or not */     \
    X(HALF_APPLIED)          /* train controller: ranks that differ count as the highest */        \
    X(FLIP_UNVERIFIED)       /* rollout controller: flips to weights whose digest is wrong */      \
    X(LATE_ATTEMPT)          /* late records of dropped groups are sealed */                       \
    X(PARTS_JOINED)          /* train controller, A12: parts of two attempts make one group */     \
    X(SERVE_KEEPS_OLD)       /* controller: the old job's machine goes on after a change */        \
    X(INDEX_TWICE)           /* coordinator: an answer to an old attempt counts for a new one */   \
    X(SERVE_TAKEOVER)        /* coordinator: a new leader forgets which jobs are served where */   \
    X(LINE_UNKNOWN)          /* coordinator: validates before it knows that the line is absent */  \
    X(TRIES_FOREVER)         /* coordinator: what fails again and again is tried without end */

enum td_plant {
#define X(name) TD_PLANT_##name,
    TD_PLANTS(X)
#undef X
        TD_PLANT_COUNT
};

#ifdef TD_PLANT
bool td_planted(enum td_plant which); // defined by tests/sim
#define TD_PLANTED(name) td_planted(TD_PLANT_##name)
#else
#define TD_PLANTED(name) ((void)TD_PLANT_##name, false)
#endif

#endif
