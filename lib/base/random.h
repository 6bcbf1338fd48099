// Names that nobody else has: owners, incarnations, logs, members.
#ifndef TD_BASE_RANDOM_H
#define TD_BASE_RANDOM_H

#include <stdint.h>

// Random bits of the system, never 0. Blocks only while the machine is booting. Any thread.
uint64_t td_random_id(void);

#endif
