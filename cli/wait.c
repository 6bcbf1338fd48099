// `tandem wait`: until a job has ended; its outcome is the exit status.
#include "cli/cli.h"
#include "cli/watch.h"

int td_cli_wait(int argc, char **argv) {
    struct td_client_opts opts = {.command = argv[0], .timeout_ms = TD_CLIENT_TIMEOUT_MS};
    struct td_watch_job watch = {.within_ms = -1, .silent = true};
    const struct td_cli_option options[] = {
        {"--wait-timeout", 0, TD_CLI_SECONDS, &watch.within_ms}, TD_CLIENT_OPTIONS(opts), {0}};
    struct td_client *client = NULL;
    int status = td_cli_options(&argc, argv, options);
    if (status == TD_CLI_OK) {
        status = td_cli_job_words(argc, argv, &watch.job);
    }
    if (status == TD_CLI_OK) {
        status = td_client_new(&opts, &client);
    }
    if (status == TD_CLI_OK) {
        watch.output = opts.output;
        status = td_watch_job(client, &watch);
    }
    td_client_free(client);
    return status;
}
