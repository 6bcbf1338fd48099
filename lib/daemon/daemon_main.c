// Arguments of the daemons: see daemon_main.h.
#include "lib/daemon/daemon_main.h"

#include <stdio.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/trace.h"
#include "lib/spec/build_id.h"

enum { EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_CONFIG = 78 };

struct arguments {
    const char *path;
    bool check;
    const char **overrides;
    size_t count;
};

static const char *base_name(const char *program) {
    const char *slash = strrchr(program, '/');
    return slash ? slash + 1 : program;
}

static void print(FILE *stream, const char *text) {
    fputs(text, stream);
}

static void usage(FILE *stream, const char *program) {
    print(stream, "usage: ");
    print(stream, program);
    print(stream, " -f FILE [--check-config] [key=value ...]\n"
                  "       --example-config prints a file with every key explained\n");
}

// −1: go on.
static int parse(enum td_daemon_role role, int argc, char **argv, struct arguments *out) {
    const char *program = base_name(argv[0]);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            usage(stdout, program);
            return 0;
        }
        if (strcmp(argv[i], "--version") == 0) {
            print(stdout, td_version());
            print(stdout, " ");
            print(stdout, td_build_id());
            print(stdout, "\n");
            return 0;
        }
        if (strcmp(argv[i], "--example-config") == 0) {
            struct td_buf text = {0};
            td_daemon_settings_print_example(role, &text);
            print(stdout, td_buf_str(&text));
            td_buf_fini(&text);
            return 0;
        }
        if (strcmp(argv[i], "--check-config") == 0) {
            out->check = true;
        } else if (strcmp(argv[i], "-f") == 0 && i + 1 < argc && !out->path) {
            out->path = argv[++i];
        } else if (argv[i][0] != '-' && strchr(argv[i], '=')) {
            out->overrides[out->count++] = argv[i];
        } else {
            usage(stderr, program);
            return EXIT_USAGE;
        }
    }
    if (!out->path) {
        usage(stderr, program);
        return EXIT_USAGE;
    }
    return -1;
}

int td_daemon_main(enum td_daemon_role role, int argc, char **argv, td_daemon_run_fn *run) {
    struct arguments args = {.overrides = td_alloc_array((size_t)argc, sizeof *args.overrides)};
    int status = parse(role, argc, argv, &args);
    struct td_daemon_settings *settings = NULL;
    struct td_spec_notes notes = {0};
    struct td_err err = {0};
    if (status < 0) {
        struct td_spec_text text = {
            .name = args.path, .overrides = args.overrides, .override_count = args.count};
        enum td_rc rc = td_daemon_settings_load(role, &text, &settings, &notes, &err);
        print(stderr, td_buf_str(&notes.errors));
        status = rc == TD_OK ? 0 : EXIT_CONFIG;
        if (rc == TD_OK && !args.check) {
            td_trace_set_level(settings->verbose ? TD_TRACE_DEBUG : TD_TRACE_INFO);
            rc = run(settings, &err);
            status = rc == TD_OK ? 0 : EXIT_FAILED;
        }
        if (rc != TD_OK && !notes.error_count) {
            print(stderr, base_name(argv[0]));
            print(stderr, ": ");
            print(stderr, err.msg);
            print(stderr, "\n");
        }
    }
    td_daemon_settings_free(settings);
    td_spec_notes_fini(&notes);
    td_free(args.overrides);
    return status;
}
