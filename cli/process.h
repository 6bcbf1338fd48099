// Processes by id and start time, so that an id that went to another process does no harm.
#ifndef TD_CLI_PROCESS_H
#define TD_CLI_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

// Start time in clock ticks since boot, field 22 of /proc/PID/stat; 0: no such process, or it is a
// zombie whose last thread has ended.
uint64_t td_process_start(pid_t pid);
bool td_process_alive(pid_t pid, uint64_t start);
// Sends a signal to that very process; false: it is gone.
bool td_process_signal(pid_t pid, uint64_t start, int signum);

#endif
