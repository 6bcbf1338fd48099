// `tandem validate`: checks a job file without running anything.
#include <string.h>

#include "cli/cli.h"
#include "lib/base/mem.h"
#include "lib/reward/reward.h"
#include "lib/spec/job_spec.h"

int td_cli_job_args(int argc, char **argv, struct td_cli_job_args *out) {
    for (int i = 1; i < argc; i++) {
        bool file = strcmp(argv[i], "-f") == 0 || strcmp(argv[i], "--file") == 0;
        if (file && (i + 1 == argc || out->path)) {
            fprintf(stderr, "tandem %s: %s needs one file name, once\n", argv[0], argv[i]);
            return TD_CLI_USAGE;
        }
        if (file) {
            out->path = argv[++i];
        } else if (*argv[i] == '-') {
            fprintf(stderr, "tandem %s: there is no option %s\n", argv[0], argv[i]);
            return TD_CLI_USAGE;
        } else {
            out->overrides[out->override_count++] = argv[i];
        }
    }
    if (!out->path) {
        fprintf(stderr, "tandem %s: which job? give -f JOB.yaml\n", argv[0]);
        return TD_CLI_USAGE;
    }
    return TD_CLI_OK;
}

enum td_rc td_cli_check_rewards(const struct td_job_spec *spec, struct td_err *err) {
    size_t n = (size_t)spec->tandem.reward_count;
    struct td_reward_rule *rules = td_alloc_array(n + 1, sizeof *rules);
    struct td_rewards *rewards = NULL;
    for (size_t i = 0; i < n; i++) {
        const struct td_spec_reward *r = &spec->tandem.rewards[i];
        rules[i] = (struct td_reward_rule){r->data_source, r->grader, r->pattern};
    }
    enum td_rc rc = td_rewards_new(rules, n, &rewards, err);
    td_rewards_free(rewards);
    td_free(rules);
    return rc;
}

static int validate(const struct td_cli_job_args *args) {
    struct td_job_spec *spec = NULL;
    struct td_spec_notes notes = {0};
    struct td_err err = {0};
    enum td_rc rc = td_job_spec_load(args->path, args->overrides, (size_t)args->override_count,
                                     &spec, &notes, &err);
    fputs(td_buf_str(&notes.errors), stderr);
    if (rc == TD_OK && td_cli_check_rewards(spec, &err) != TD_OK) {
        rc = TD_EINVAL;
        fprintf(stderr, "%s: %s\n", args->path, err.msg);
    }
    if (notes.warning_count) {
        fprintf(stderr, "warnings:\n%s", td_buf_str(&notes.warnings));
    }
    if (rc == TD_OK && notes.no_effect_count) {
        printf("without effect here:\n%s", td_buf_str(&notes.no_effect));
    }
    if (rc == TD_OK) {
        printf("%s: OK\n", args->path);
    } else if (notes.error_count > 1) {
        fprintf(stderr, "%s: %d errors\n", args->path, notes.error_count);
    }
    td_job_spec_free(spec);
    td_spec_notes_fini(&notes);
    return rc == TD_OK ? TD_CLI_OK : TD_CLI_USAGE;
}

int td_cli_validate(int argc, char **argv) {
    struct td_cli_job_args args = {.overrides =
                                       td_alloc_array((size_t)argc, sizeof *args.overrides)};
    int status = td_cli_job_args(argc, argv, &args);
    if (status == TD_CLI_OK) {
        status = validate(&args);
    }
    td_free(args.overrides);
    return status;
}
