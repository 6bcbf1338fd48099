// The commands of `tandem`: one file each, one row in the table of main.c each.
#ifndef TD_CLI_CLI_H
#define TD_CLI_CLI_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "lib/base/err.h"

enum td_cli_exit { // of every command
    TD_CLI_OK = 0,
    TD_CLI_FAILED = 1,         // the job, or the system under it
    TD_CLI_USAGE = 2,          // arguments or job file are wrong
    TD_CLI_NOT_FOUND = 3,      // no such job, daemon, file
    TD_CLI_UNAVAILABLE = 4,    // no coordinator answered in time
    TD_CLI_UNAUTHORISED = 5,   // it refuses us
    TD_CLI_CANCELLED = 6,      // the job was cancelled
    TD_CLI_WAIT_TIMEOUT = 124, // --wait-timeout passed first
    TD_CLI_INTERRUPTED = 130,  // SIGINT
};

struct td_cli_command {
    const char *name;
    const char *arguments; // of the usage line
    const char *summary;
    const char *details; // options, for help; may be NULL
    // argv[0] is the command's name. Returns the exit status.
    int (*run)(int argc, char **argv);
};

// The table, ended by a row without a name.
const struct td_cli_command *td_cli_commands(void);
// One line of usage to stream.
void td_cli_print_usage(const struct td_cli_command *command, FILE *stream);
// Usage, summary and options to stdout.
void td_cli_print_help(const struct td_cli_command *command);

int td_cli_cancel(int argc, char **argv);
int td_cli_describe(int argc, char **argv);
int td_cli_down(int argc, char **argv);
int td_cli_get(int argc, char **argv);
int td_cli_help(int argc, char **argv);
int td_cli_journal(int argc, char **argv);
int td_cli_logs(int argc, char **argv);
int td_cli_run(int argc, char **argv);
int td_cli_submit(int argc, char **argv);
int td_cli_up(int argc, char **argv);
int td_cli_validate(int argc, char **argv);
int td_cli_version(int argc, char **argv);
int td_cli_wait(int argc, char **argv);
int td_cli_watch(int argc, char **argv);

// "-f FILE [--file FILE] [key=value ...]" as run and validate take it. Flags that the command knows
// itself are taken out before. overrides points into argv.
struct td_cli_job_args {
    const char *path;
    const char **overrides;
    int override_count;
};
// TD_CLI_OK, or TD_CLI_USAGE after a message on stderr. out->overrides must have room for argc.
int td_cli_job_args(int argc, char **argv, struct td_cli_job_args *out);

struct td_job_spec;
// Patterns of rewards are compiled by those who use them; here to tell that one is wrong.
// TD_EINVAL.
enum td_rc td_cli_check_rewards(const struct td_job_spec *spec, struct td_err *err) TD_MUST_CHECK;

#endif
