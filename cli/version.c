// `tandem version`.
#include "cli/cli.h"
#include "lib/spec/build_id.h"

int td_cli_version(int argc, char **argv) {
    if (argc > 1) {
        fprintf(stderr, "tandem %s: takes no arguments\n", argv[0]);
        return TD_CLI_USAGE;
    }
    printf("tandem %s build %s\n", td_version(), td_build_id());
    return TD_CLI_OK;
}
