// Tables of what the API lists. Each appends to out; an empty list is its header alone.
#ifndef TD_CLI_LISTS_H
#define TD_CLI_LISTS_H

#include "lib/base/buf.h"
#include "proto/jobs.pb-c.h"

void td_list_jobs(Tandem__V1__Job *const *jobs, size_t n, struct td_buf *out);
void td_list_rounds(Tandem__V1__Round *const *rounds, size_t n, struct td_buf *out);
void td_list_controllers(Tandem__V1__Member *const *members, size_t n, struct td_buf *out);
void td_list_workers(Tandem__V1__Member *const *members, size_t n, struct td_buf *out);

#endif
