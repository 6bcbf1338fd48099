// The few numbers of a line of metrics.jsonl that people look at while a job runs.
#ifndef TD_CLI_METRICS_H
#define TD_CLI_METRICS_H

#include <stdbool.h>

#include "lib/base/buf.h"

struct td_metrics {
    double loss, reward, accuracy, kl, tokens;
    bool has_loss, has_reward, has_accuracy, has_kl, has_tokens;
};

// Takes them out of a line. The accuracy of an earlier one stays where this one has none: not every
// step validates.
void td_metrics_read(const char *json, struct td_metrics *m);
// Appends "  loss 0.1234  reward 0.500  accuracy 0.250  KL 0.0012", those that are there.
void td_metrics_print(const struct td_metrics *m, struct td_buf *out);

#endif
