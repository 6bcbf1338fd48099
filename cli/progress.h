// What `tandem run` prints while a job runs: a line that is rewritten on a terminal, lines else.
#ifndef TD_CLI_PROGRESS_H
#define TD_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct td_progress;

// total_steps: of the job. first_step: committed when this process started.
struct td_progress *td_progress_new(uint64_t total_steps, uint64_t first_step, int64_t now_ms);
void td_progress_free(struct td_progress *p); // accepts NULL
// A step was closed: json is its line of metrics.jsonl.
void td_progress_step(struct td_progress *p, uint64_t step, const char *json, int64_t now_ms);
// Nothing has been closed for a while: what the job waits for, and since when.
void td_progress_waits(struct td_progress *p, const char *what, int64_t since_ms, int64_t now_ms);
// Ends the line that is rewritten, so that other output may follow.
void td_progress_end(struct td_progress *p);

#endif
