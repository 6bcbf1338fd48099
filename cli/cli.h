// The commands of `tandem`: one file each, one row in the table of main.c each.
#ifndef TD_CLI_CLI_H
#define TD_CLI_CLI_H

#include <stdio.h>

enum td_cli_exit { // of every command
    TD_CLI_OK = 0,
    TD_CLI_FAILED = 1,        // the job, or the system under it
    TD_CLI_USAGE = 2,         // arguments or job file are wrong
    TD_CLI_INTERRUPTED = 130, // SIGINT
};

struct td_cli_command {
    const char *name;
    const char *arguments; // of the usage line
    const char *summary;
    // argv[0] is the command's name. Returns the exit status.
    int (*run)(int argc, char **argv);
};

// The table, ended by a row without a name.
const struct td_cli_command *td_cli_commands(void);
// One line of usage to stream.
void td_cli_print_usage(const struct td_cli_command *command, FILE *stream);

int td_cli_help(int argc, char **argv);
int td_cli_run(int argc, char **argv);
int td_cli_validate(int argc, char **argv);
int td_cli_version(int argc, char **argv);

// "-f FILE [--file FILE] [key=value ...]" as run and validate take it. Flags that the command knows
// itself are taken out before. overrides points into argv.
struct td_cli_job_args {
    const char *path;
    const char **overrides;
    int override_count;
};
// TD_CLI_OK, or TD_CLI_USAGE after a message on stderr. out->overrides must have room for argc.
int td_cli_job_args(int argc, char **argv, struct td_cli_job_args *out);

#endif
