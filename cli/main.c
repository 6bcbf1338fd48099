// `tandem`: picks the command.
#include "cli/cli.h"

#include <string.h>

const struct td_cli_command *td_cli_commands(void) {
    static const struct td_cli_command commands[] = {
        {"run", "-f JOB.yaml [--fresh] [--verbose] [key=value ...]",
         "run one job on this machine; run again, it goes on where it was", td_cli_run},
        {"validate", "-f JOB.yaml [key=value ...]", "check a job file and say what has no effect",
         td_cli_validate},
        {"help", "[COMMAND | KEY | keys | job-file]",
         "help on a command or on a key of the job file", td_cli_help},
        {"version", "", "version and build id", td_cli_version},
        {0},
    };
    return commands;
}

void td_cli_print_usage(const struct td_cli_command *command, FILE *stream) {
    fprintf(stream, "usage: tandem %s%s%s\n", command->name, *command->arguments ? " " : "",
            command->arguments);
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "help";
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        name = "help";
    } else if (strcmp(name, "--version") == 0) {
        name = "version";
    }
    for (const struct td_cli_command *c = td_cli_commands(); c->name; c++) {
        if (strcmp(c->name, name) == 0) {
            return c->run(argc > 1 ? argc - 1 : 1, argc > 1 ? argv + 1 : argv);
        }
    }
    fprintf(stderr, "tandem: there is no command %s; `tandem help` lists them\n", name);
    return TD_CLI_USAGE;
}
