// Prometheus text format 0.0.4: writing families and samples. Pure but for td_prometheus_process.
#ifndef TD_IO_PROMETHEUS_H
#define TD_IO_PROMETHEUS_H

#include "lib/base/buf.h"

#define TD_PROMETHEUS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

enum td_prometheus_type { TD_PROMETHEUS_COUNTER, TD_PROMETHEUS_GAUGE, TD_PROMETHEUS_HISTOGRAM };

struct td_prometheus_label {
    const char *name, *value;
};

// HELP and TYPE lines. Once per family, before its samples.
void td_prometheus_family(struct td_buf *out, const char *name, enum td_prometheus_type type,
                          const char *help);
void td_prometheus_sample(struct td_buf *out, const char *name,
                          const struct td_prometheus_label *labels, size_t count, double value);
// A histogram's samples (NAME_bucket, _sum, _count): counts[i] observations ≤ bounds[i]
// (cumulative), total all of them.
struct td_prometheus_histogram {
    const double *bounds;
    const uint64_t *counts;
    size_t buckets;
    double sum;
    uint64_t total;
};
void td_prometheus_histogram(struct td_buf *out, const char *name,
                             const struct td_prometheus_label *labels, size_t count,
                             const struct td_prometheus_histogram *h);
// process_cpu_seconds_total, _resident_memory_bytes, _open_fds, _start_time_seconds, and
// tandem_build_info{version, build}.
void td_prometheus_process(struct td_buf *out, const char *version, const char *build);

#endif
