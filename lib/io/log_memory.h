// The memory kind of the record log, for tests: same promises, no durability, and outcomes on
// demand.
#ifndef TD_IO_LOG_MEMORY_H
#define TD_IO_LOG_MEMORY_H

#include "lib/io/log.h"

struct td_log *td_log_memory_new(struct td_loop *loop, uint64_t id, uint32_t partitions);
// The next append that the log executes (all earlier ones must be answered) is answered by outcome;
// landed: it is in the log all the same (only with TD_LOG_UNKNOWN).
void td_log_memory_inject(struct td_log *log, enum td_log_outcome outcome, bool landed);
// While true the log is as one whose servers do not answer: appends are UNKNOWN and do not land,
// everything else fails with TD_ETIMEOUT, retriable; readers get nothing.
void td_log_memory_set_outage(struct td_log *log, bool outage);

#endif
