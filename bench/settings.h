// What benchmarks share: settings on the command line, and percentiles.
#ifndef TD_BENCH_SETTINGS_H
#define TD_BENCH_SETTINGS_H

#include <stddef.h>
#include <stdint.h>

struct setting {
    const char *name;
    long value, min, max;
};

// argv: the program, as many arguments as places names ("FOLDER", "ADDRESS PID"), then name=value.
// Ends the program with its usage and status 2 when anything else is there.
void settings_parse(const char *places, struct setting *set, size_t count, int argc, char **argv);
// Sorts durations and prints their percentiles in ms: "p50":1.00,"p95":2.00,"p99":3.00
void print_percentiles(int64_t *ns, size_t count);

#endif
