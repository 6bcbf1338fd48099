// What users are told of jobs, rounds and members: messages of proto/jobs.proto made from what the
// machine knows. Pure; everything that a message points to lives in the arena or in the machine
// until its next step.
#ifndef TD_COORDINATOR_JOBS_VIEW_H
#define TD_COORDINATOR_JOBS_VIEW_H

#include "coordinator/coordinator.h"
#include "lib/base/mem.h"
#include "proto/jobs.pb-c.h"

struct td_jobs_view {
    const struct td_coordinator *machine;
    const char *shared_dir;
    int64_t now_ms;
    struct td_arena *arena;
};

// A copy in the arena that is UTF-8, as JSON and protobuf have it: what members report need not be,
// and was cut somewhere. text NULL: "".
char *td_jobs_view_text(const struct td_jobs_view *v, const char *text);
// false: no such job.
bool td_jobs_view_job(const struct td_jobs_view *v, uint64_t job, Tandem__V1__Job *out);
// A journal's rounds that are still known: since the oldest kept checkpoint.
void td_jobs_view_rounds(const struct td_jobs_view *v, uint64_t job,
                         Tandem__V1__ListRoundsResponse *out);
void td_jobs_view_members(const struct td_jobs_view *v, Tandem__V1__ListMembersResponse *out);

#endif
