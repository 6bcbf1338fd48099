// Metrics in Prometheus' text format: see prometheus.h. Source of the format:
// https://prometheus.io/docs/instrumenting/exposition_formats/ (version 0.0.4).
#include "lib/io/prometheus.h"

#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "lib/base/check.h"
#include "lib/base/file.h"
#include "lib/base/utf8.h"

enum { PROC_BYTES_MAX = 1 << 20 };

static bool is_name(const char *name, bool colons) {
    static const char first[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
    size_t n = strlen(name);
    if (n == 0 || (!strchr(first, *name) && !(colons && *name == ':'))) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        bool digit = name[i] >= '0' && name[i] <= '9';
        if (!strchr(first, name[i]) && !digit && !(colons && name[i] == ':')) {
            return false;
        }
    }
    return true;
}

// One byte that is not UTF-8 would make a server refuse all metrics.
static void print_escaped(struct td_buf *out, const char *text, bool quotes) {
    for (size_t left = strlen(text), n; left > 0; text += n, left -= n) {
        bool ok;
        n = td_utf8_step((const uint8_t *)text, left, &ok);
        if (!ok) {
            td_buf_puts(out, TD_UTF8_BAD);
        } else if (*text == '\n') {
            td_buf_puts(out, "\\n");
        } else if (*text == '\\' || (quotes && *text == '"')) {
            td_buf_printf(out, "\\%c", *text);
        } else {
            td_buf_put(out, text, n);
        }
    }
}

// Integers in full, everything else by the fewest digits that give the same double again.
static void print_number(struct td_buf *out, double value) {
    if (isnan(value)) {
        td_buf_puts(out, "NaN");
    } else if (isinf(value)) {
        td_buf_puts(out, value > 0 ? "+Inf" : "-Inf");
    } else if (value == trunc(value) && fabs(value) < 1e18) {
        td_buf_printf(out, "%.0f", value);
    } else {
        td_buf_double(out, value);
    }
}

void td_prometheus_family(struct td_buf *out, const char *name, enum td_prometheus_type type,
                          const char *help) {
    static const char *const types[] = {"counter", "gauge", "histogram"};
    td_assert(is_name(name, true));
    td_buf_printf(out, "# HELP %s ", name);
    print_escaped(out, help, false);
    td_buf_printf(out, "\n# TYPE %s %s\n", name, types[type]);
}

// le: the bound of a bucket; NULL: none.
static void print_series(struct td_buf *out, const char *name, const char *suffix,
                         const struct td_prometheus_label *labels, size_t count, const double *le) {
    td_assert(is_name(name, true));
    td_buf_printf(out, "%s%s", name, suffix);
    for (size_t i = 0; i < count; i++) {
        td_assert(is_name(labels[i].name, false));
        td_buf_printf(out, "%s%s=\"", i ? "," : "{", labels[i].name);
        print_escaped(out, labels[i].value, true);
        td_buf_puts(out, "\"");
    }
    if (le) {
        td_buf_puts(out, count ? ",le=\"" : "{le=\"");
        print_number(out, *le);
        td_buf_puts(out, "\"");
    }
    td_buf_puts(out, count || le ? "} " : " ");
}

void td_prometheus_sample(struct td_buf *out, const char *name,
                          const struct td_prometheus_label *labels, size_t count, double value) {
    print_series(out, name, "", labels, count, NULL);
    print_number(out, value);
    td_buf_puts(out, "\n");
}

void td_prometheus_histogram(struct td_buf *out, const char *name,
                             const struct td_prometheus_label *labels, size_t count,
                             const struct td_prometheus_histogram *h) {
    const double last = INFINITY;
    for (size_t i = 0; i < h->buckets; i++) {
        td_assert(isfinite(h->bounds[i]) && (i == 0 || h->bounds[i] > h->bounds[i - 1]));
        print_series(out, name, "_bucket", labels, count, &h->bounds[i]);
        td_buf_printf(out, "%" PRIu64 "\n", h->counts[i]);
    }
    print_series(out, name, "_bucket", labels, count, &last);
    td_buf_printf(out, "%" PRIu64 "\n", h->total);
    print_series(out, name, "_sum", labels, count, NULL);
    print_number(out, h->sum);
    td_buf_puts(out, "\n");
    print_series(out, name, "_count", labels, count, NULL);
    td_buf_printf(out, "%" PRIu64 "\n", h->total);
}

// ---- this process

static void print_one(struct td_buf *out, const char *name, enum td_prometheus_type type,
                      const char *help, double value) {
    td_prometheus_family(out, name, type, help);
    td_prometheus_sample(out, name, NULL, 0, value);
}

// The decimal behind the last byte of before in a file of /proc, skipping fields of one blank each.
static bool read_field(const char *path, const char *before, int skip, double *value) {
    struct td_buf text = {0};
    const char *at = NULL;
    if (td_file_read(path, PROC_BYTES_MAX, &text, NULL) == TD_OK) {
        at = strstr(td_buf_str(&text), before);
        // proc(5): the command's name may hold anything, a ")" too.
        for (const char *next = at; *before == ')' && next; next = strstr(next + 1, before)) {
            at = next;
        }
        at = at ? at + strlen(before) : NULL;
    }
    while (at && skip-- > 0) {
        at = strchr(at, ' ');
        at = at ? at + 1 : NULL;
    }
    if (at) {
        *value = strtod(at, NULL);
    }
    td_buf_fini(&text);
    return at != NULL;
}

static int count_fds(void) {
    DIR *dir = opendir("/proc/self/fd");
    int count = -1; // its own
    while (dir && readdir(dir)) {
        count++;
    }
    if (dir) {
        closedir(dir);
    }
    return count - 2; // . and ..
}

void td_prometheus_process(struct td_buf *out, const char *version, const char *build) {
    struct timespec cpu = {0};
    double pages, ticks, boot_s;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    print_one(out, "process_cpu_seconds_total", TD_PROMETHEUS_COUNTER,
              "CPU time of all threads, user and system.",
              (double)cpu.tv_sec + (double)cpu.tv_nsec * 1e-9);
    if (read_field("/proc/self/statm", "", 1, &pages)) {
        print_one(out, "process_resident_memory_bytes", TD_PROMETHEUS_GAUGE, "Resident memory.",
                  pages * (double)sysconf(_SC_PAGESIZE));
    }
    int fds = count_fds();
    if (fds > 0) {
        print_one(out, "process_open_fds", TD_PROMETHEUS_GAUGE, "Open descriptors.", fds);
    }
    // Field 22 of stat, the 20th behind the command's name.
    if (read_field("/proc/self/stat", ") ", 19, &ticks) &&
        read_field("/proc/stat", "\nbtime ", 0, &boot_s)) {
        print_one(out, "process_start_time_seconds", TD_PROMETHEUS_GAUGE,
                  "Start of the process, seconds since 1970.",
                  boot_s + ticks / (double)sysconf(_SC_CLK_TCK));
    }
    const struct td_prometheus_label labels[] = {{"version", version}, {"build", build}};
    td_prometheus_family(out, "tandem_build_info", TD_PROMETHEUS_GAUGE,
                         "Always 1; the labels tell what runs.");
    td_prometheus_sample(out, "tandem_build_info", labels, 2, 1);
}
