// From a job's settings to those of the engines.
#ifndef TD_WORKERS_SETTINGS_H
#define TD_WORKERS_SETTINGS_H

#include "lib/spec/job_spec.h"
#include "workers/engine/generate.h"
#include "workers/engine/train.h"

// Of the train engine. updates: optimizer updates of the whole job and of its warm-up, from the
// controller.
void td_train_settings(const struct td_job_spec *spec, int64_t total_steps, int64_t warmup_steps,
                       struct td_train_config *out);
// Of the generation engine; out->allowed is left NULL.
void td_generate_settings(const struct td_job_spec *spec, struct td_generate_config *out);

#endif
