// Options of commands: see options.h.
#include "cli/options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

enum { COUNT_MAX = 10000 };
#define SECONDS_MAX 31536000.0

static int wrong(const char *command, const char *option, const char *what) {
    fprintf(stderr, "tandem %s: %s %s; `tandem help %s` shows its options\n", command, option, what,
            command);
    return TD_CLI_USAGE;
}

static int store_number(const char *command, const struct td_cli_option *o, const char *text) {
    char *end = NULL;
    double v = strtod(text, &end);
    bool whole = end != text && *end == 0 && isfinite(v) && v >= 0;
    if (o->kind == TD_CLI_COUNT && (!whole || v > COUNT_MAX || v != floor(v))) {
        return wrong(command, o->name, "needs a whole number, at most 10000");
    }
    if (o->kind == TD_CLI_SECONDS && (!whole || v > SECONDS_MAX)) {
        return wrong(command, o->name, "needs a number of seconds");
    }
    *(int64_t *)o->to = o->kind == TD_CLI_COUNT ? (int64_t)v : (int64_t)(v * 1e3);
    return TD_CLI_OK;
}

static int store(const char *command, const struct td_cli_option *o, const char *text) {
    switch (o->kind) {
    case TD_CLI_FLAG:
        *(bool *)o->to = true;
        return TD_CLI_OK;
    case TD_CLI_TEXT:
        if (!*text) {
            return wrong(command, o->name, "needs a value");
        }
        *(const char **)o->to = text;
        return TD_CLI_OK;
    case TD_CLI_OUTPUT:
        if (strcmp(text, "table") != 0 && strcmp(text, "json") != 0) {
            return wrong(command, o->name, "is table or json");
        }
        *(enum td_cli_output *)o->to = *text == 'j' ? TD_CLI_JSON : TD_CLI_TABLE;
        return TD_CLI_OK;
    default:
        return store_number(command, o, text);
    }
}

// The option that word begins with; *value is what is written in the same word, or NULL.
static const struct td_cli_option *find(const struct td_cli_option *options, const char *word,
                                        const char **value) {
    *value = NULL;
    for (const struct td_cli_option *o = options; o->name; o++) {
        size_t n = strlen(o->name);
        if (strncmp(word, o->name, n) == 0 && (word[n] == 0 || word[n] == '=')) {
            *value = word[n] ? word + n + 1 : NULL;
            return o;
        }
        if (o->letter && word[1] == o->letter && (word[2] == 0 || o->kind != TD_CLI_FLAG)) {
            *value = word[2] ? word + 2 + (word[2] == '=') : NULL;
            return o;
        }
    }
    return NULL;
}

int td_cli_options(int *argc, char **argv, const struct td_cli_option *options) {
    int kept = 1, i = 1;
    for (; i < *argc && strcmp(argv[i], "--") != 0; i++) {
        if (argv[i][0] != '-' || argv[i][1] == 0) {
            argv[kept++] = argv[i];
            continue;
        }
        const char *value;
        const struct td_cli_option *o = find(options, argv[i], &value);
        if (!o) {
            fprintf(stderr,
                    "tandem %s: there is no option %s; `tandem help %s` shows its options\n",
                    argv[0], argv[i], argv[0]);
            return TD_CLI_USAGE;
        }
        if (o->kind == TD_CLI_FLAG && value) {
            return wrong(argv[0], o->name, "takes no value");
        }
        if (o->kind != TD_CLI_FLAG && !value && i + 1 == *argc) {
            return wrong(argv[0], o->name, "needs a value");
        }
        if (o->kind != TD_CLI_FLAG && !value) {
            value = argv[++i];
        }
        int status = store(argv[0], o, value);
        if (status != TD_CLI_OK) {
            return status;
        }
    }
    for (i++; i < *argc; i++) {
        argv[kept++] = argv[i];
    }
    *argc = kept;
    return TD_CLI_OK;
}

int td_cli_job_id(const char *command, const char *word, uint64_t *id) {
    const char *digits = strncmp(word, "job/", 4) == 0 ? word + 4 : word;
    size_t n = strspn(digits, "0123456789");
    errno = 0;
    unsigned long long v = strtoull(digits, NULL, 10);
    if (n == 0 || digits[n] || errno || v == 0) {
        fprintf(stderr, "tandem %s: '%s' is no job: give its number, as `tandem get jobs` shows\n",
                command, word);
        return TD_CLI_USAGE;
    }
    *id = v;
    return TD_CLI_OK;
}

int td_cli_job_words(int argc, char **argv, uint64_t *id) {
    bool named = argc == 3 && (strcmp(argv[1], "job") == 0 || strcmp(argv[1], "jobs") == 0);
    if (argc != 2 && !named) {
        fprintf(stderr, "tandem %s: which job? give one number\n", argv[0]);
        return TD_CLI_USAGE;
    }
    return td_cli_job_id(argv[0], argv[argc - 1], id);
}
