// `tandem down`: stops a cluster of this machine; nothing of it keeps running.
#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/client.h"
#include "cli/cluster_stop.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/io/runlock.h"

enum { GRACE_MS = 20000 };

struct down {
    const char *dir_name;
    bool purge;
    int64_t grace_ms;
    char *dir;
};

// Whether `up` makes such a name: of a daemon, "train-0", or its settings, "train-0.yaml".
static bool is_ours(const char *name) {
    static const char *const kinds[] = {"coordinator-", "rollout-", "train-"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        size_t n = strlen(kinds[i]), digits = strspn(name + strnlen(name, n), "0123456789");
        if (strncmp(name, kinds[i], n) == 0 && digits > 0) {
            const char *end = name + n + digits;
            return *end == 0 || strcmp(end, ".yaml") == 0;
        }
    }
    return false;
}

static enum td_rc remove_in(const char *dir, const char *name, struct td_err *err) {
    char *path = td_asprintf("%s/%s", dir, name);
    enum td_rc rc = td_remove_tree(path, err);
    td_free(path);
    return rc;
}

// Only what `up` makes; cluster.json late, so that a purge that was cut short can be done again.
static enum td_rc purge(const char *dir, struct td_err *err) {
    static const char *const names[] = {"log",   "records",      "shared", "redis",
                                        "kafka", "cluster.json", "lock"};
    enum td_rc rc = TD_OK;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && rc == TD_OK && (e = readdir(d));) {
        rc = is_ours(e->d_name) ? remove_in(dir, e->d_name, err) : TD_OK;
    }
    if (d) {
        closedir(d);
    }
    for (size_t i = 0; rc == TD_OK && i < sizeof names / sizeof *names; i++) {
        rc = remove_in(dir, names[i], err);
    }
    if (rc == TD_OK && rmdir(dir) != 0 && errno != ENOTEMPTY) {
        rc = td_fail_errno(err, errno, "%s", dir);
    }
    return rc;
}

static int stop_all(const struct down *d) {
    struct td_cluster cluster;
    struct td_err err = {0};
    enum td_rc rc = td_cluster_read(d->dir, &cluster, &err);
    if (rc != TD_OK) {
        fprintf(stderr, "tandem down: %s\n", err.msg);
        return rc == TD_ENOENT ? TD_CLI_NOT_FOUND : TD_CLI_FAILED;
    }
    size_t alive = 0;
    for (size_t i = 0; i < cluster.count; i++) {
        alive += td_cluster_alive(&cluster.processes[i]);
    }
    size_t killed = td_cluster_stop(d->dir, &cluster, NULL, d->grace_ms);
    rc = td_cluster_write(d->dir, &cluster, &err);
    if (rc == TD_OK && d->purge) {
        rc = purge(d->dir, &err);
    }
    td_cluster_fini(&cluster);
    if (rc != TD_OK) {
        fprintf(stderr, "tandem down: %s\n", err.msg);
        return TD_CLI_FAILED;
    }
    printf("cluster in %s: %s%s\n", d->dir_name, alive ? "down" : "was down already",
           d->purge ? ", and its files removed" : "");
    if (killed) {
        fprintf(stderr, "tandem down: %zu processes did not end within %.0f s and were killed\n",
                killed, (double)d->grace_ms * 1e-3);
    }
    return TD_CLI_OK;
}

static int down(struct down *d) {
    struct td_cluster before;
    struct td_err err = {0};
    int lock = -1, status = TD_CLI_FAILED;
    enum td_rc rc =
        td_cluster_read(d->dir_name, &before, &err); // or a stranger's folder gets a lock
    if (rc == TD_OK) {
        td_cluster_fini(&before);
        rc = td_cluster_dir(d->dir_name, false, &d->dir, &err);
    }
    if (rc == TD_OK) {
        rc = td_run_lock(d->dir, &lock, &err);
    }
    if (rc == TD_OK) {
        status = stop_all(d);
        close(lock);
    } else {
        fprintf(stderr, "tandem down: %s\n", err.msg);
        status = rc == TD_ENOENT ? TD_CLI_NOT_FOUND : TD_CLI_FAILED;
    }
    td_free(d->dir);
    return status;
}

int td_cli_down(int argc, char **argv) {
    struct down d = {.grace_ms = GRACE_MS};
    const struct td_cli_option options[] = {{"--dir", 0, TD_CLI_TEXT, &d.dir_name},
                                            {"--purge", 0, TD_CLI_FLAG, &d.purge},
                                            {"--grace", 0, TD_CLI_SECONDS, &d.grace_ms},
                                            {0}};
    int status = td_cli_options(&argc, argv, options);
    if (status == TD_CLI_OK && argc > 1) {
        fprintf(stderr, "tandem down: takes options only, not %s\n", argv[1]);
        status = TD_CLI_USAGE;
    }
    d.dir_name = td_client_dir(d.dir_name);
    return status == TD_CLI_OK ? down(&d) : status;
}
