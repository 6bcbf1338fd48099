// `tandem help`: commands, and keys of the job file out of the schema table.
#include <string.h>

#include "cli/cli.h"
#include "lib/spec/daemon_settings.h"
#include "lib/spec/schema.h"

static int print_commands(void) {
    printf("Tandem trains language models by reinforcement learning.\n\n");
    for (const struct td_cli_command *c = td_cli_commands(); c->name; c++) {
        printf("  tandem %-9s %s\n", c->name, c->summary);
    }
    printf("\n`tandem help COMMAND` shows its arguments, `tandem help KEY` a key of the job file.\n"
           "`tandem help coordinator.yaml`, rollout.yaml and train.yaml show the settings of "
           "daemons.\n"
           "Exit status: 0 fine, 1 failed, 2 wrong usage or job file, 3 not found,\n"
           "4 no coordinator in time, 5 not authorised, 6 the job was cancelled,\n"
           "124 waited long enough, 130 interrupted.\n");
    return TD_CLI_OK;
}

static int print_keys(void) {
    static const char *const classes[] = {"", "  (no effect)", "  (refused)"};
    unsigned kinds;
    for (size_t i = 0; i < td_spec_key_count(); i++) {
        const struct td_spec_key *key = td_spec_key(i, &kinds);
        printf("%-5s%s%s\n",
               kinds == TD_KINDS_GRPO  ? "grpo"
               : kinds == TD_KINDS_SFT ? "sft"
                                       : "both",
               key->name, classes[key->cls]);
    }
    return TD_CLI_OK;
}

static int print_key(const char *name) {
    struct td_buf out = {0};
    static const unsigned each[] = {TD_KINDS_GRPO, TD_KINDS_SFT};
    const struct td_spec_key *last = NULL;
    for (int i = 0; i < 2; i++) {
        const struct td_spec_key *key = td_spec_find(name, each[i], NULL);
        if (key && key != last) {
            bool both = key == td_spec_find(name, each[1 - i], NULL);
            td_spec_print_help(key, both ? each[0] | each[1] : each[i], &out);
        }
        last = key;
    }
    if (out.len == 0) {
        bool near = td_spec_nearest(name, each[0] | each[1], &out);
        fprintf(stderr, "tandem: no command and no key is named %s%s%s%s\n", name,
                near ? "; did you mean " : "", td_buf_str(&out), near ? "?" : "");
        td_buf_fini(&out);
        return TD_CLI_USAGE;
    }
    fputs(td_buf_str(&out), stdout);
    td_buf_fini(&out);
    return TD_CLI_OK;
}

// "coordinator.yaml" and so on: the settings of a daemon.
static bool print_daemon_file(const char *name) {
    struct td_buf out = {0};
    for (int role = 0; role < TD_DAEMON_ROLES && out.len == 0; role++) {
        size_t n = strlen(td_daemon_role_name(role));
        if (strncmp(name, td_daemon_role_name(role), n) == 0 && strcmp(name + n, ".yaml") == 0) {
            td_daemon_settings_print_example(role, &out);
        }
    }
    bool found = out.len > 0;
    fputs(td_buf_str(&out), stdout);
    td_buf_fini(&out);
    return found;
}

int td_cli_help(int argc, char **argv) {
    if (argc == 1) {
        return print_commands();
    }
    if (argc > 2) {
        fprintf(stderr, "tandem help: one word at most\n");
        return TD_CLI_USAGE;
    }
    for (const struct td_cli_command *c = td_cli_commands(); c->name; c++) {
        if (strcmp(c->name, argv[1]) == 0) {
            td_cli_print_help(c);
            return TD_CLI_OK;
        }
    }
    if (strcmp(argv[1], "keys") == 0) {
        return print_keys();
    }
    if (strcmp(argv[1], "job-file") == 0) {
        struct td_buf out = {0};
        td_spec_print_docs(&out);
        fputs(td_buf_str(&out), stdout);
        td_buf_fini(&out);
        return TD_CLI_OK;
    }
    if (print_daemon_file(argv[1])) {
        return TD_CLI_OK;
    }
    return print_key(argv[1]);
}
