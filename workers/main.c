// tandem-worker: started by a controller, never by hand.
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/err.h"
#include "lib/base/trace.h"
#include "workers/worker.h"

static int usage(void) {
    static const char text[] =
        "usage: tandem-worker --socket PATH [--host NAME] [--grace-s N] [--verbose]\n";
    fputs(text, stderr);
    return 2;
}

int main(int argc, char **argv) {
    static const struct option options[] = {{"socket", required_argument, NULL, 's'},
                                            {"host", required_argument, NULL, 'h'},
                                            {"grace-s", required_argument, NULL, 'g'},
                                            {"verbose", no_argument, NULL, 'v'},
                                            {0}};
    struct td_worker_config config = {.grace_ms = 60000};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case 's':
            config.socket_path = optarg;
            break;
        case 'h':
            config.host = optarg;
            break;
        case 'g':
            config.grace_ms = strtol(optarg, NULL, 10) * 1000;
            break;
        case 'v':
            td_trace_set_level(TD_TRACE_DEBUG);
            break;
        default:
            return usage();
        }
    }
    if (!config.socket_path || config.grace_ms <= 0 || optind != argc) {
        return usage();
    }
    struct td_err err = {0};
    if (td_worker_run(&config, &err) != TD_OK) {
        td_trace_error("worker cannot start", "cause=\"%s\"", err.msg);
        return 1;
    }
    return 0;
}
