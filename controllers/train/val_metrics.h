// Validation scores as verl's metrics.
#ifndef TD_CONTROLLERS_TRAIN_VAL_METRICS_H
#define TD_CONTROLLERS_TRAIN_VAL_METRICS_H

#include "controllers/common/job_data.h"
#include "lib/rl/loss.h"
#include "proto/sync.pb-c.h"

enum { TD_VAL_SOURCES_MAX = 16 };

// val-core/SOURCE/reward/mean@N for the first TD_VAL_SOURCES_MAX data sources, N samples a prompt;
// summed in the order of rows. orders NULL or without scores: nothing.
void td_val_metrics(const struct td_job_data *data, const Tandem__Sync__Orders *orders,
                    struct td_metrics *out);

#endif
