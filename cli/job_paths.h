// Which settings of a job name files, and what they are from anywhere.
#ifndef TD_CLI_JOB_PATHS_H
#define TD_CLI_JOB_PATHS_H

#include "lib/base/err.h"
#include "lib/spec/job_spec.h"

struct td_job_paths { // zeroed at first
    char **overrides; // "key=value", owned
    size_t count, cap;
};

// An override for every setting that names a file or folder by a relative path, with the absolute
// one: daemons work elsewhere. TD_EIO: the current folder is not known; TD_EINVAL: not UTF-8.
enum td_rc td_job_paths_find(const struct td_job_spec *spec, struct td_job_paths *out,
                             struct td_err *err) TD_MUST_CHECK;
void td_job_paths_fini(struct td_job_paths *paths);

#endif
