// `tandem`: picks the command.
#include "cli/cli.h"

#include <string.h>

#define CONNECTION                                                                                 \
    "  --address A:PORT,B:PORT  the coordinators (or TANDEM_ADDRESS); without it those of --dir\n" \
    "  --dir D                  run directory of `tandem up` (or TANDEM_DIR; ./tandem-cluster)\n"  \
    "  --timeout SECONDS        how long to ask while no coordinator leads, during a failover "    \
    "(30)\n"                                                                                       \
    "  --tls-ca FILE            speak TLS; PEM of who signed the coordinators' certificates\n"     \
    "  --tls-cert FILE, --tls-key FILE  our own certificate, where they ask for one\n"
#define OUTPUT "  -o table|json            json: the fields of the API (proto/jobs.proto)\n"
#define OUTCOME "Exit status: 0 succeeded, 1 failed, 6 cancelled, 3 no such job.\n"

const struct td_cli_command *td_cli_commands(void) {
    static const struct td_cli_command commands[] = {
        {"run", "-f JOB.yaml [--fresh] [--verbose] [key=value ...]",
         "run one job on this machine; run again, it goes on where it was",
         "  --fresh                  start over, without what an earlier run left\n"
         "  --verbose                log more\n",
         td_cli_run},
        {"up", "[--dir D] [--kafka] [options]",
         "start a cluster on this machine, or what is missing of it",
         "  --dir D                  run directory (or TANDEM_DIR; ./tandem-cluster)\n"
         "  --kafka                  logs in Apache Kafka, not in files; needs a Java runtime\n"
         "  --coordinators N         one leads, the others stand by (2)\n"
         "  --rollout N, --train N   controllers (2, 1)\n"
         "  --rollout-workers N, --train-workers N  workers of each controller (1, 2)\n"
         "  --threads N              of each worker; 0: cores / workers (0)\n"
         "  --fast                   faults are noticed sooner; for machines that are not crowded\n"
         "  --timeout SECONDS        how long to wait until all have registered (60)\n"
         "What is not said is as it was the last time in that directory.\n",
         td_cli_up},
        {"down", "[--dir D] [--purge]", "stop the cluster on this machine",
         "  --dir D                  run directory (or TANDEM_DIR; ./tandem-cluster)\n"
         "  --grace SECONDS          what has not ended by then is killed (20)\n"
         "  --purge                  remove logs, jobs and checkpoints, too\n"
         "Without --purge `tandem up` goes on with all jobs.\n",
         td_cli_down},
        {"journal", "adopt -f COORDINATOR.yaml [key=value ...]",
         "a new journal for the jobs of one that is lost",
         "Each job goes on from its newest sound checkpoint in shared_dir, as another lineage. Run "
         "it\n"
         "while no daemon of the cluster runs.\n",
         td_cli_journal},
        {"submit", "-f JOB.yaml [--wait | --watch] [key=value ...]", "give a job to the cluster",
         "  -f FILE                  job file; - is standard input\n"
         "  --request-id ID          the same id again is the same job; random otherwise\n"
         "  --wait                   until it has ended\n"
         "  -w, --watch              the same, and show how it goes on\n"
         "  --wait-timeout SECONDS   stop waiting then (status 124); the job goes on\n" OUTPUT
             CONNECTION
         "Paths in the file count from here and are sent as absolute ones.\n" OUTCOME,
         td_cli_submit},
        {"get", "jobs [N] | rounds [JOB] | controllers | workers", "list what the cluster has",
         OUTPUT CONNECTION "Rounds are those of the newest job, unless one is named.\n",
         td_cli_get},
        {"describe", "job N", "all there is to know of one job", OUTPUT CONNECTION,
         td_cli_describe},
        {"watch", "[[job] N]", "follow one job to its end, or all jobs",
         OUTPUT CONNECTION
         "On a terminal it shows jobs and members every second, elsewhere a line for each change;\n"
         "with -o json one object a line.\n" OUTCOME,
         td_cli_watch},
        {"wait", "N", "wait until a job has ended",
         "  --wait-timeout SECONDS   give up then (status 124)\n" OUTPUT CONNECTION OUTCOME,
         td_cli_wait},
        {"cancel", "N", "cancel a job and wait until it has ended", OUTPUT CONNECTION,
         td_cli_cancel},
        {"logs", "[NAME] [-f] [--tail N]", "what the processes of a cluster on this machine wrote",
         "  -f, --follow             go on as they write more\n"
         "  --tail N                 only the last lines; 20 where no NAME is given\n"
         "  --dir D                  run directory (or TANDEM_DIR; ./tandem-cluster)\n"
         "Names are those that `tandem up` prints, such as coordinator-0.\n",
         td_cli_logs},
        {"validate", "-f JOB.yaml [key=value ...]", "check a job file and say what has no effect",
         NULL, td_cli_validate},
        {"help", "[COMMAND | KEY | keys | job-file | coordinator.yaml | rollout.yaml | train.yaml]",
         "help on a command or on a key of the job file", NULL, td_cli_help},
        {"version", "", "version and build id", NULL, td_cli_version},
        {0},
    };
    return commands;
}

void td_cli_print_usage(const struct td_cli_command *command, FILE *stream) {
    fprintf(stream, "usage: tandem %s%s%s\n", command->name, *command->arguments ? " " : "",
            command->arguments);
}

void td_cli_print_help(const struct td_cli_command *c) {
    td_cli_print_usage(c, stdout);
    printf("  %s\n%s%s", c->summary, c->details ? "\n" : "", c->details ? c->details : "");
}

static bool asks_for_help(int argc, char **argv) {
    for (int i = 2; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            return true;
        }
    }
    return false;
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "help";
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        name = "help";
    } else if (strcmp(name, "--version") == 0) {
        name = "version";
    }
    for (const struct td_cli_command *c = td_cli_commands(); c->name; c++) {
        if (strcmp(c->name, name) == 0 && asks_for_help(argc, argv)) {
            td_cli_print_help(c);
            return TD_CLI_OK;
        }
        if (strcmp(c->name, name) == 0) {
            return c->run(argc > 1 ? argc - 1 : 1, argc > 1 ? argv + 1 : argv);
        }
    }
    fprintf(stderr, "tandem: there is no command %s; `tandem help` lists them\n", name);
    return TD_CLI_USAGE;
}
