// A job's plan from its record: what the coordinator has to know of a spec.
#ifndef TD_COORDINATOR_PLAN_H
#define TD_COORDINATOR_PLAN_H

#include "coordinator/coordinator.h"

// false: the spec is not understood by this build, or its steps cannot be counted. Without an index
// the numbers that depend on rows are 0. Pure; a plan_of of struct td_coordinator_config, with no
// use for user.
bool td_job_plan_of(void *user, const Tandem__Journal__Job *job, struct td_job_plan *out);

#endif
