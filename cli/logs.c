// `tandem logs`: what the processes of a local cluster wrote.
#include <signal.h>
#include <string.h>
#include <time.h>

#include "cli/cli.h"
#include "cli/client.h"
#include "cli/cluster.h"
#include "cli/tail.h"
#include "lib/base/mem.h"

enum { LOOK_MS = 200, LINES_OF_ALL = 20, UNSET = -1 };

struct logs {
    struct td_cluster cluster;
    const char *only; // a name; NULL: all
    int64_t lines;    // UNSET: all of one, LINES_OF_ALL of each
    bool follow;
    uint64_t at[TD_CLUSTER_PROCESSES_MAX];
    size_t last; // whose lines were printed last; count: nobody's
};

static bool wanted(const struct logs *l, size_t i) {
    return !l->only || strcmp(l->cluster.processes[i].name, l->only) == 0;
}

// What is new of one; of several each piece says whose it is, as tail(1) does.
static void print_new(struct logs *l, size_t i) {
    const struct td_cluster_process *p = &l->cluster.processes[i];
    struct td_buf text = {0};
    struct td_err err;
    // One that is not there yet, or not any more, has nothing new.
    if (td_tail_read(p->log, &l->at[i], &text, &err) == TD_OK && text.len > 0) {
        if (!l->only && l->last != i) {
            printf("%s==> %s <==\n", l->last == l->cluster.count ? "" : "\n", p->name);
            l->last = i;
        }
        fwrite(text.data, 1, text.len, stdout);
        fflush(stdout);
    }
    td_buf_fini(&text);
}

static void print_all(struct logs *l) {
    for (size_t i = 0; i < l->cluster.count; i++) {
        if (wanted(l, i)) {
            print_new(l, i);
        }
    }
}

// Lets time pass; whether SIGINT came.
static bool is_interrupted(const sigset_t *interrupt) {
    const struct timespec pause = {.tv_nsec = LOOK_MS * 1000000L};
    return sigtimedwait(interrupt, NULL, &pause) == SIGINT;
}

static int follow(struct logs *l) {
    sigset_t interrupt;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    sigprocmask(SIG_BLOCK, &interrupt, NULL);
    while (!ferror(stdout)) {
        if (is_interrupted(&interrupt)) {
            return TD_CLI_INTERRUPTED;
        }
        print_all(l);
    }
    return TD_CLI_FAILED; // nobody reads on
}

static int print_logs(struct logs *l) {
    size_t found = 0;
    int64_t lines = l->lines == UNSET && !l->only ? LINES_OF_ALL : l->lines;
    struct td_err err;
    l->last = l->cluster.count;
    for (size_t i = 0; i < l->cluster.count; i++) {
        if (wanted(l, i)) {
            found++;
            if (td_tail_start(l->cluster.processes[i].log, lines, &l->at[i], &err) != TD_OK) {
                l->at[i] = 0;
            }
        }
    }
    if (found == 0) {
        fprintf(stderr, "tandem logs: there is no %s here; there are", l->only);
        for (size_t i = 0; i < l->cluster.count; i++) {
            fprintf(stderr, " %s", l->cluster.processes[i].name);
        }
        fprintf(stderr, "\n");
        return TD_CLI_NOT_FOUND;
    }
    print_all(l);
    return l->follow ? follow(l) : TD_CLI_OK;
}

int td_cli_logs(int argc, char **argv) {
    struct logs l = {.lines = UNSET};
    const char *dir = NULL;
    const struct td_cli_option options[] = {{"--dir", 0, TD_CLI_TEXT, &dir},
                                            {"--follow", 'f', TD_CLI_FLAG, &l.follow},
                                            {"--tail", 0, TD_CLI_COUNT, &l.lines},
                                            {0}};
    struct td_err err = {0};
    int status = td_cli_options(&argc, argv, options);
    if (status != TD_CLI_OK) {
        return status;
    }
    if (argc > 2) {
        fprintf(stderr, "tandem logs: one name, or none for all\n");
        return TD_CLI_USAGE;
    }
    l.only = argc == 2 ? argv[1] : NULL;
    enum td_rc rc = td_cluster_read(td_client_dir(dir), &l.cluster, &err);
    if (rc != TD_OK) {
        fprintf(stderr, "tandem logs: %s\n", err.msg);
        return rc == TD_ENOENT ? TD_CLI_NOT_FOUND : TD_CLI_FAILED;
    }
    status = print_logs(&l);
    td_cluster_fini(&l.cluster);
    return status;
}
