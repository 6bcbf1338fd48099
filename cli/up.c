// `tandem up`: a cluster on this machine in a run directory. Run again it starts what is missing.
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/client.h"
#include "cli/cluster_plan.h"
#include "cli/cluster_start.h"
#include "cli/cluster_stop.h"
#include "cli/tail.h"
#include "lib/base/clock.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/io/runlock.h"

enum { READY_MS = 60000, LOOK_MS = 100, LINES_SHOWN = 15, UNSET = -1, GRACE_MS = 5000 };

struct up {
    const char *dir_name;
    int64_t timeout_ms;
    struct td_cluster_shape wanted; // UNSET where nothing was said
    char *dir, *kafka;
    char bin[PATH_MAX];
    int lock;
    struct td_cluster cluster;
    struct td_cluster_start start;
    struct td_watch *signal;
    size_t missing; // were not alive when we began
    int64_t began_ms;
};

// ---- what there is and what there shall be ----

static enum td_rc find_programs(struct up *u, struct td_err *err) {
    ssize_t n = readlink("/proc/self/exe", u->bin, sizeof u->bin - 1);
    if (n <= 0) {
        return td_fail(err, TD_EIO, "/proc/self/exe does not say where this program is");
    }
    u->bin[n] = 0;
    *strrchr(u->bin, '/') = 0;
    // The script lies in the source tree above a build, or beside bin in an installation.
    char at[PATH_MAX];
    snprintf(at, sizeof at, "%s", u->bin);
    for (char *slash; !u->kafka && (slash = strrchr(at, '/'));) {
        char *script = td_asprintf("%s/deploy/kafka", at);
        if (access(script, X_OK) == 0) {
            u->kafka = script;
        } else {
            td_free(script);
        }
        *slash = 0;
    }
    return TD_OK;
}

static void take(int64_t *shape, int64_t wanted) {
    *shape = wanted == UNSET ? *shape : wanted;
}

// What was said now, else what was said when the cluster was made, else the default.
static int settle_shape(struct up *u, bool known, size_t alive) {
    struct td_cluster_shape *s = &u->cluster.shape;
    const struct td_cluster_shape before = *s, *w = &u->wanted;
    if (!known) {
        *s = (struct td_cluster_shape){.coordinators = 2,
                                       .rollout = 2,
                                       .train = 1,
                                       .rollout_workers = 1,
                                       .train_workers = 2,
                                       .kafka = w->kafka,
                                       .fast = w->fast};
    }
    take(&s->coordinators, w->coordinators);
    take(&s->rollout, w->rollout);
    take(&s->train, w->train);
    take(&s->rollout_workers, w->rollout_workers);
    take(&s->train_workers, w->train_workers);
    take(&s->threads, w->threads);
    if (s->coordinators == 0 || (s->rollout > 0 && s->rollout_workers == 0) ||
        (s->train > 0 && s->train_workers == 0)) {
        fprintf(stderr, "tandem up: a cluster has at least one coordinator, and a controller at "
                        "least one worker\n");
        return TD_CLI_USAGE;
    }
    if (known && w->kafka && !before.kafka) {
        fprintf(stderr,
                "tandem up: the cluster in %s keeps its logs in files, and jobs do not move; "
                "name another --dir, or begin anew after `tandem down --purge`\n",
                u->dir);
        return TD_CLI_USAGE;
    }
    bool changed = s->coordinators != before.coordinators || s->rollout < before.rollout ||
                   s->train < before.train || s->rollout_workers != before.rollout_workers ||
                   s->train_workers != before.train_workers || s->threads != before.threads ||
                   (w->fast && !before.fast);
    if (alive && changed) {
        fprintf(stderr,
                "tandem up: the cluster in %s runs, so only --rollout and --train may "
                "grow; the rest changes after `tandem down`\n",
                u->dir);
        return TD_CLI_USAGE;
    }
    s->fast = s->fast || w->fast;
    return TD_CLI_OK;
}

static size_t count_alive(const struct td_cluster *c) {
    size_t n = 0;
    for (size_t i = 0; i < c->count; i++) {
        n += td_cluster_alive(&c->processes[i]);
    }
    return n;
}

// Names and shape stay, ports and settings are made anew.
static void forget_processes(struct td_cluster *c) {
    struct td_cluster kept = {.name = td_strdup(c->name), .shape = c->shape};
    td_cluster_fini(c);
    *c = kept;
}

static int plan(struct up *u) {
    struct td_err err = {0};
    enum td_rc rc = td_cluster_read(u->dir, &u->cluster, &err);
    bool known = rc == TD_OK;
    if (rc == TD_ENOENT) {
        u->cluster.name = td_strdup("tandem");
        rc = TD_OK;
    }
    size_t alive = count_alive(&u->cluster);
    if (rc == TD_OK) {
        int status = settle_shape(u, known, alive);
        if (status != TD_CLI_OK) {
            return status;
        }
        rc = find_programs(u, &err);
    }
    if (rc == TD_OK) {
        if (alive == 0) {
            forget_processes(&u->cluster);
        }
        const struct td_cluster_plan p = {u->dir, u->bin, u->kafka};
        rc = td_cluster_plan(&p, &u->cluster, &err);
    }
    if (rc != TD_OK) {
        fprintf(stderr, "tandem up: %s\n", err.msg);
        return rc == TD_EINVAL || rc == TD_ELIMIT ? TD_CLI_USAGE : TD_CLI_FAILED;
    }
    u->missing = u->cluster.count - alive;
    return TD_CLI_OK;
}

// ---- starting ----

static void print_end_of_log(const char *path) {
    uint64_t at = 0;
    struct td_buf text = {0};
    struct td_err err;
    if (td_tail_start(path, LINES_SHOWN, &at, &err) == TD_OK &&
        td_tail_read(path, &at, &text, &err) == TD_OK) {
        fprintf(stderr, "the end of %s:\n%s", path, td_buf_str(&text));
    }
    td_buf_fini(&text);
}

// Whether a daemon ended that should run; it is told.
static bool tell_death(const struct up *u) {
    for (size_t i = 0; i < u->cluster.count; i++) {
        const struct td_cluster_process *p = &u->cluster.processes[i];
        // Of what is started here the end is told by the loop; of the rest /proc tells.
        bool ours = u->start.started[i] && !td_cluster_is(p, "kafka");
        if (ours ? !u->start.died[i] : td_cluster_alive(p)) {
            continue;
        }
        int status = u->start.status[i];
        if (u->start.died[i] && WIFEXITED(status)) {
            fprintf(stderr, "tandem up: %s ended with exit status %d\n", p->name,
                    WEXITSTATUS(status));
        } else {
            fprintf(stderr, "tandem up: %s ended\n", p->name);
        }
        print_end_of_log(p->log);
        return true;
    }
    return false;
}

static void on_signal(void *user, int signum) {
    struct up *u = user;
    (void)signum;
    u->start.interrupted = true;
    td_loop_stop(u->start.loop);
}

// Members of a kind that were heard since we began.
static int64_t count_members(const struct up *u, const Tandem__V1__ListMembersResponse *list,
                             const char *kind) {
    int64_t n = 0, since_ms = td_clock_ms() - u->began_ms;
    for (size_t i = 0; i < list->n_members; i++) {
        n += strcmp(list->members[i]->kind, kind) == 0 && list->members[i]->heard_ms <= since_ms;
    }
    return n;
}

// Whether all are there; *says becomes what is missing.
static bool is_ready(const struct up *u, struct td_client *client, struct td_buf *says) {
    Tandem__V1__ListMembersResponse *list = NULL;
    td_buf_clear(says);
    if (td_client_list_members(client, &list) != TD_CLI_OK) {
        td_buf_puts(says, td_client_error(client));
        return false;
    }
    int64_t rollout = count_members(u, list, "rollout"), train = count_members(u, list, "train");
    tandem__v1__list_members_response__free_unpacked(list, NULL);
    const struct td_cluster_shape *s = &u->cluster.shape;
    td_buf_printf(says,
                  "of %" PRId64 " rollout controllers %" PRId64 " have registered, of %" PRId64
                  " train controllers %" PRId64,
                  s->rollout, rollout, s->train, train);
    return rollout >= s->rollout && train >= s->train;
}

static int wait_ready(struct up *u, struct td_client *client) {
    struct td_buf says = {0};
    int status = TD_CLI_OK;
    while (status == TD_CLI_OK) {
        bool ready = is_ready(u, client, &says);
        if (u->start.interrupted) {
            status = TD_CLI_INTERRUPTED;
        } else if (tell_death(u)) {
            status = TD_CLI_FAILED;
        } else if (ready) {
            break;
        } else if (td_clock_ms() - u->began_ms > u->timeout_ms) {
            fprintf(stderr,
                    "tandem up: not ready after %.0f s: %s; the processes go on, `tandem logs` "
                    "shows what they say, `tandem down` stops them\n",
                    (double)u->timeout_ms * 1e-3, td_buf_str(&says));
            status = TD_CLI_UNAVAILABLE;
        } else {
            status = td_client_pause(client, LOOK_MS);
        }
    }
    td_buf_fini(&says);
    return status;
}

static void tell_up(struct up *u, const char *leader) {
    const struct td_cluster *c = &u->cluster;
    printf("cluster in %s: %s\n", u->dir_name, u->missing ? "up" : "was up already");
    for (size_t i = 0; i < c->count; i++) {
        const struct td_cluster_process *p = &c->processes[i];
        bool leads = p->address && strcmp(p->address, leader) == 0;
        printf("  %-15s pid %-8d%s%s%s%s%s\n", p->name, (int)p->pid, p->address ? p->address : "",
               leads ? " leads" : "", p->http ? (p->address ? "  " : "") : "",
               p->http ? "http://" : "", p->http ? p->http : "");
    }
}

static int start_and_wait(struct up *u) {
    struct td_err err = {0};
    enum td_rc rc = td_cluster_start_missing(&u->start, &err);
    if (rc != TD_OK) {
        fprintf(stderr, "tandem up: %s\n", err.msg);
        return rc == TD_ESTOPPED ? TD_CLI_INTERRUPTED : TD_CLI_FAILED;
    }
    char *addresses = td_cluster_addresses(&u->cluster);
    struct td_client_opts opts = {
        .command = "up", .address = addresses, .quiet = true, .loop = u->start.loop};
    struct td_client *client = NULL;
    int status = td_client_new(&opts, &client);
    if (status == TD_CLI_OK) {
        status = wait_ready(u, client);
    }
    if (status == TD_CLI_OK) {
        tell_up(u, td_client_address(client));
    }
    td_client_free(client);
    td_free(addresses);
    return status;
}

static int up_with_loop(struct up *u) {
    struct td_err err = {0};
    struct td_cluster_start *s = &u->start;
    *s = (struct td_cluster_start){.dir = u->dir, .cluster = &u->cluster};
    u->began_ms = td_clock_ms();
    enum td_rc rc = td_loop_new(&s->loop, &err);
    if (rc == TD_OK) {
        rc = td_children_new(s->loop, TD_CLUSTER_PROCESSES_MAX + 1, &s->children, &err);
    }
    if (rc == TD_OK) {
        rc = td_watch_signal(s->loop, SIGINT, on_signal, u, &u->signal);
    }
    int status = TD_CLI_FAILED;
    if (rc == TD_OK) {
        status = start_and_wait(u);
    } else {
        fprintf(stderr, "tandem up: %s\n", err.msg);
    }
    td_watch_close(u->signal);
    td_children_free(s->children);
    td_loop_free(s->loop);
    // Nothing half begun is left, but what is only slow goes on.
    if (status != TD_CLI_OK && status != TD_CLI_UNAVAILABLE) {
        td_cluster_stop(u->dir, &u->cluster, s->started, GRACE_MS);
        if (td_cluster_write(u->dir, &u->cluster, &err) != TD_OK) {
            fprintf(stderr, "tandem up: %s\n", err.msg);
        }
    }
    return status;
}

static int up(struct up *u) {
    struct td_err err = {0};
    u->lock = -1;
    enum td_rc rc = td_cluster_dir(td_client_dir(u->dir_name), true, &u->dir, &err);
    if (rc == TD_OK) {
        rc = td_run_lock(u->dir, &u->lock, &err);
    }
    int status = TD_CLI_FAILED;
    if (rc == TD_OK) {
        status = plan(u);
    } else {
        fprintf(stderr, "tandem up: %s\n", err.msg);
    }
    if (status == TD_CLI_OK) {
        status = up_with_loop(u);
    }
    if (u->lock >= 0) {
        close(u->lock);
    }
    td_cluster_fini(&u->cluster);
    td_free(u->kafka);
    td_free(u->dir);
    return status;
}

int td_cli_up(int argc, char **argv) {
    struct up u = {.timeout_ms = READY_MS,
                   .wanted = {UNSET, UNSET, UNSET, UNSET, UNSET, UNSET, false, false}};
    const struct td_cli_option options[] = {
        {"--dir", 0, TD_CLI_TEXT, &u.dir_name},
        {"--kafka", 0, TD_CLI_FLAG, &u.wanted.kafka},
        {"--fast", 0, TD_CLI_FLAG, &u.wanted.fast},
        {"--coordinators", 0, TD_CLI_COUNT, &u.wanted.coordinators},
        {"--rollout", 0, TD_CLI_COUNT, &u.wanted.rollout},
        {"--train", 0, TD_CLI_COUNT, &u.wanted.train},
        {"--rollout-workers", 0, TD_CLI_COUNT, &u.wanted.rollout_workers},
        {"--train-workers", 0, TD_CLI_COUNT, &u.wanted.train_workers},
        {"--threads", 0, TD_CLI_COUNT, &u.wanted.threads},
        {"--timeout", 0, TD_CLI_SECONDS, &u.timeout_ms},
        {0},
    };
    int status = td_cli_options(&argc, argv, options);
    if (status == TD_CLI_OK && argc > 1) {
        fprintf(stderr, "tandem up: takes options only, not %s\n", argv[1]);
        status = TD_CLI_USAGE;
    }
    u.dir_name = td_client_dir(u.dir_name);
    return status == TD_CLI_OK ? up(&u) : status;
}
