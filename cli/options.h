// Options of commands: "--name VALUE", "--name=VALUE", "-x VALUE", "-xVALUE", in any place; "--"
// ends them. What is left are the words of the command.
#ifndef TD_CLI_OPTIONS_H
#define TD_CLI_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

enum td_cli_option_kind {
    TD_CLI_FLAG,    // bool, becomes true
    TD_CLI_TEXT,    // const char *, points into argv
    TD_CLI_COUNT,   // int64_t, 0 … 10000
    TD_CLI_SECONDS, // int64_t of milliseconds; written in seconds, "1.5"
    TD_CLI_OUTPUT,  // enum td_cli_output
};

enum td_cli_output { TD_CLI_TABLE, TD_CLI_JSON };

struct td_cli_option {
    const char *name; // with its dashes
    char letter;      // 0: none
    enum td_cli_option_kind kind;
    void *to;
};

// Takes options out of argv[1…]; *argc becomes what is left, argv[0] included. options ends with a
// row without a name. TD_CLI_OK, or TD_CLI_USAGE after a message on stderr.
int td_cli_options(int *argc, char **argv, const struct td_cli_option *options);

// "3" or "job/3" → 3; TD_CLI_USAGE after a message.
int td_cli_job_id(const char *command, const char *word, uint64_t *id);
// "[job] N" as the whole rest of the words; TD_CLI_USAGE after a message.
int td_cli_job_words(int argc, char **argv, uint64_t *id);

#endif
