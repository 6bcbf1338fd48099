// What benchmarks share: see settings.h.
#include "bench/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void usage(const char *places, const struct setting *set, size_t count, char **argv) {
    fprintf(stderr, "usage: %s %s", argv[0], places);
    for (size_t i = 0; i < count; i++) {
        fprintf(stderr, " [%s=%ld]", set[i].name, set[i].value);
    }
    fprintf(stderr, "\n");
    exit(2);
}

static struct setting *find(struct setting *set, size_t count, const char *name, size_t n) {
    for (size_t i = 0; i < count; i++) {
        if (strlen(set[i].name) == n && memcmp(set[i].name, name, n) == 0) {
            return &set[i];
        }
    }
    return NULL;
}

void settings_parse(const char *places, struct setting *set, size_t count, int argc, char **argv) {
    int first = 2;
    for (const char *at = places; (at = strchr(at, ' ')); at++) {
        first++;
    }
    if (argc < first) {
        usage(places, set, count, argv);
    }
    for (int i = first; i < argc; i++) {
        size_t n = strcspn(argv[i], "=");
        struct setting *s = argv[i][n] ? find(set, count, argv[i], n) : NULL;
        char *end = NULL;
        long value = s ? strtol(argv[i] + n + 1, &end, 10) : 0;
        if (!s || *end || value < s->min || value > s->max) {
            fprintf(stderr, "%s: argument '%s'\n", argv[0], argv[i]);
            usage(places, set, count, argv);
            return;
        }
        s->value = value;
    }
}

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static double percentile_ms(const int64_t *ns, size_t count, double p) {
    size_t at = (size_t)(p / 100 * (double)count);
    return count ? (double)ns[at < count ? at : count - 1] / 1e6 : 0;
}

void print_percentiles(int64_t *ns, size_t count) {
    if (count > 0) {
        qsort(ns, count, sizeof *ns, by_value);
    }
    printf("\"p50\":%.2f,\"p95\":%.2f,\"p99\":%.2f", percentile_ms(ns, count, 50),
           percentile_ms(ns, count, 95), percentile_ms(ns, count, 99));
}
