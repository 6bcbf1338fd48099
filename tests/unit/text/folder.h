// Temporary folders with files in them, and seeds, for the tests of lib/text.
#ifndef TD_TESTS_TEXT_FOLDER_H
#define TD_TESTS_TEXT_FOLDER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "tests/unit/cmocka_all.h"

// A new folder; the caller frees the name and removes the folder by folder_fini.
static inline char *folder_new(void) {
    char *dir = td_asprintf("%s/td-text-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    assert_non_null(mkdtemp(dir));
    return dir;
}

static inline void folder_fini(char *dir) {
    struct td_err err = {0};
    assert_int_equal(td_remove_tree(dir, &err), TD_OK);
    td_free(dir);
}

static inline void folder_put(const char *dir, const char *name, const void *bytes, size_t n) {
    struct td_err err = {0};
    char *path = td_asprintf("%s/%s", dir, name);
    if (td_file_write(path, bytes, n, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
    td_free(path);
}

// A seed from the clock, or TD_SEED; printed, so that a failure can be repeated.
static inline uint64_t seed_for(const char *test) {
    const char *given = getenv("TD_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL) ^ (uint64_t)getpid();
    print_message("%s: TD_SEED=%llu\n", test, (unsigned long long)seed);
    return seed;
}

static inline void expect_says(const struct td_err *err, const char *part, size_t row) {
    if (strstr(err->msg, part) == NULL) {
        fail_msg("row %zu: '%s' lacks '%s'", row, err->msg, part);
    }
}

#endif
