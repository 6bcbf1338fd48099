// The commands that run nothing: what they print, where, and their exit status.
#include "tests/unit/cli/command.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define JOB                                                                                        \
    "data: {train_files: t.jsonl, train_batch_size: 256}\n"                                        \
    "actor_rollout_ref: {model: {path: m}, rollout: {n: 4, name: vllm}}\n"

static char dir[] = "/tmp/tandem-test-XXXXXX";

static int enter_dir(void **state) {
    (void)state;
    return enter_folder(dir, JOB);
}

static int leave_dir(void **state) {
    (void)state;
    return td_remove_tree(dir, NULL) == TD_OK ? 0 : -1;
}

static void test_cli_commands(void **state) {
    static const struct {
        const char *args[ARGS_MAX];
        int status;
        const char *out, *err; // pieces that must be there; NULL: nothing is
    } rows[] = {
        {{NULL}, 0, "tandem validate", NULL},
        {{"--help", NULL}, 0, "tandem validate", NULL},
        {{"help", "validate", NULL},
         0,
         "usage: tandem validate -f JOB.yaml [key=value ...]\n",
         NULL},
        {{"help", "trainer.total_epochs", NULL},
         0,
         "trainer.total_epochs (kind grpo)\n  passes over the prompts\n",
         NULL},
        {{"help", "keys", NULL}, 0, "grpo actor_rollout_ref.rollout.n\n", NULL},
        {{"help", "job-file", NULL}, 0, "# The job file\n", NULL},
        {{"help", "train.yaml", NULL}, 0, "# Settings of a train controller: ", NULL},
        {{"help", "train.yamls", NULL}, 2, NULL, "no key is named train.yamls"},
        {{"help", "trainer.totl_epochs", NULL}, 2, NULL, "did you mean trainer.total_epochs?\n"},
        {{"help", "a", "b", NULL}, 2, NULL, "tandem help: one word at most\n"},
        {{"version", NULL}, 0, "tandem 0.", NULL},
        {{"--version", NULL}, 0, " build ", NULL},
        {{"version", "x", NULL}, 2, NULL, "takes no arguments"},
        {{"frobnicate", NULL}, 2, NULL, "tandem: there is no command frobnicate"},
        {{"validate", NULL}, 2, NULL, "tandem validate: which job? give -f JOB.yaml\n"},
        {{"validate", "-f", NULL}, 2, NULL, "-f needs one file name, once\n"},
        {{"validate", "-f", "a", "-f", "b", NULL}, 2, NULL, "-f needs one file name, once\n"},
        {{"validate", "--all", NULL}, 2, NULL, "there is no option --all\n"},
        {{"validate", "-f", "nope.yaml", NULL}, 2, NULL, "nope.yaml: No such file or directory\n"},
        {{"validate", "-f", "job.yaml", NULL},
         0,
         "without effect here:\nactor_rollout_ref.rollout.name: there is one rollout engine, our "
         "own\njob.yaml: OK\n",
         NULL},
        {{"validate", "data.seed=3", "-f", "job.yaml", NULL}, 0, "job.yaml: OK\n", NULL},
        {{"validate", "-f", "job.yaml", "trainer.save_freq=x", "trainer.test_freq=2", NULL},
         2,
         NULL,
         "job.yaml: 2 errors\n"},
        {{"validate", "-f", "job.yaml", "actor_rollout_ref.rollout.n=1", NULL},
         0,
         "job.yaml: OK\n",
         "warnings:\ncommand line: actor_rollout_ref.rollout.n=1: "},
        {{"validate", "-f", "job.yaml",
          "tandem.rewards=[{data_source: a, grader: regex, pattern: '(x'}]", NULL},
         2,
         NULL,
         "job.yaml: tandem.rewards[0]"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct run r = run(rows[i].args);
        const char *out = td_buf_str(&r.out), *err = td_buf_str(&r.err);
        if (r.status != rows[i].status || !strstr(out, rows[i].out ? rows[i].out : "") ||
            !strstr(err, rows[i].err ? rows[i].err : "") || (!rows[i].out && *out) ||
            (!rows[i].err && *err)) {
            fail_msg("row %zu: status %d\n%s\n%s", i, r.status, out, err);
        }
        run_fini(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cli_commands)};
    return cmocka_run_group_tests(tests, enter_dir, leave_dir);
}
