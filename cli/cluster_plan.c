// What a local cluster consists of: see cluster_plan.h.
#include "cli/cluster_plan.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/buf.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"

enum {
    NAME_MAX_BYTES = 32,
    PORTS_MAX = 4 * TD_CLUSTER_PROCESSES_MAX,
    TRIES = 100,
    // --fast: faults are noticed soon, on a machine that is not crowded
    FAST_BEAT_MS = 300,
    FAST_TAKEOVER_MS = 1500,
    FAST_MEMBER_MS = 2000,
};

// ---- free ports ----

// Sockets are kept open until all ports are chosen, so that none comes twice.
struct ports {
    int fds[PORTS_MAX];
    size_t count;
};

// Binds a loopback port, 0: any; it is kept. −1: errno says why.
static int take_port(struct ports *ports, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons((uint16_t)port)};
    socklen_t len = sizeof address;
    if (ports->count == PORTS_MAX) {
        errno = EMFILE;
        return -1;
    }
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -1;
    }
    if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &len) != 0) {
        int why = errno;
        close(fd);
        errno = why;
        return -1;
    }
    ports->fds[ports->count++] = fd;
    return ntohs(address.sin_port);
}

// Two in a row, as deploy/kafka wants them: the first.
static int take_pair(struct ports *ports) {
    for (int i = 0; i < TRIES; i++) {
        int port = take_port(ports, 0);
        if (port < 0 || (port < 65535 && take_port(ports, port + 1) > 0)) {
            return port;
        }
    }
    errno = EADDRINUSE;
    return -1;
}

static void drop_ports(struct ports *ports) {
    while (ports->count > 0) {
        close(ports->fds[--ports->count]);
    }
}

static enum td_rc put_port(int port, char **address, struct td_err *err) {
    if (port < 0) {
        return td_fail_errno(err, errno, "no free port on 127.0.0.1");
    }
    td_free(*address);
    *address = td_asprintf("127.0.0.1:%d", port);
    return TD_OK;
}

// ---- servers ----

static struct td_cluster_process *add(const struct td_cluster_plan *plan, struct td_cluster *c,
                                      const char *name) {
    char *log = td_asprintf("%s/log/%s.log", plan->dir, name);
    struct td_cluster_process *p = td_cluster_add(c, name, log);
    td_free(log);
    return p;
}

static enum td_rc plan_redis(const struct td_cluster_plan *plan, struct td_cluster *c,
                             struct td_err *err) {
    char *folder = td_asprintf("%s/redis", plan->dir);
    char *path = td_asprintf("%s/redis.sock", folder);
    // No port: nobody else of this machine comes near it, and none is ever in use.
    const char *const argv[] = {"redis-server",
                                "--port",
                                "0",
                                "--unixsocket",
                                path,
                                "--dir",
                                folder,
                                "--appendonly",
                                "yes",
                                "--save",
                                "",
                                "--daemonize",
                                "no",
                                "--unixsocketperm",
                                "700",
                                NULL};
    struct td_cluster_process *p = add(plan, c, "redis");
    p->address = td_asprintf("unix:%s", path);
    td_cluster_set_argv(p, argv);
    enum td_rc rc = td_make_dirs(folder, err);
    td_free(path);
    td_free(folder);
    return rc;
}

static enum td_rc plan_kafka(const struct td_cluster_plan *plan, struct td_cluster *c,
                             struct ports *ports, struct td_err *err) {
    if (!plan->kafka) {
        return td_fail(err, TD_ENOENT, "deploy/kafka is not to be found above %s", plan->bin);
    }
    struct td_cluster_process *p = add(plan, c, "kafka");
    enum td_rc rc = put_port(take_pair(ports), &p->address, err);
    if (rc == TD_OK) {
        char *folder = td_asprintf("%s/kafka", plan->dir);
        const char *const argv[] = {plan->kafka, "start", folder, strrchr(p->address, ':') + 1,
                                    NULL};
        td_cluster_set_argv(p, argv);
        td_free(p->log);
        p->log = td_asprintf("%s/kafka.log", folder); // named by the script
        td_free(folder);
    }
    return rc;
}

// ---- settings of daemons ----

// A YAML string; JSON's quotes are YAML's, too.
static void put_text(struct td_buf *out, const char *key, const char *value) {
    json_t *s = json_string(value);
    char *text = json_dumps(s, JSON_ENCODE_ANY);
    td_buf_printf(out, "%s: %s\n", key, text);
    td_free(text);
    json_decref(s);
}

static void put_below(struct td_buf *out, const char *key, const char *name, const char *dir) {
    struct td_buf path = {0};
    td_buf_printf(&path, "%s/%s", dir, name);
    put_text(out, key, td_buf_str(&path));
    td_buf_fini(&path);
}

static void put_log(struct td_buf *out, const struct td_cluster_plan *plan, struct td_cluster *c) {
    td_buf_puts(out, "log:\n");
    if (c->shape.kafka) {
        td_buf_puts(out, "  kind: kafka\n");
        put_text(out, "  brokers", td_cluster_find(c, "kafka")->address);
    } else {
        td_buf_puts(out, "  kind: file\n");
        put_below(out, "  folder", "records", plan->dir);
    }
}

static void put_controller(struct td_buf *out, const struct td_cluster *c,
                           const struct td_cluster_process *p) {
    bool rollout = td_cluster_is(p, "rollout");
    td_buf_puts(out, "coordinators:\n");
    for (size_t i = 0; i < c->count; i++) {
        if (td_cluster_is(&c->processes[i], "coordinator")) {
            td_buf_printf(out, "  - \"%s\"\n", c->processes[i].address);
        }
    }
    td_buf_printf(out, "workers: %" PRId64 "\nthreads: %" PRId64 "\n",
                  rollout ? c->shape.rollout_workers : c->shape.train_workers, c->shape.threads);
}

static enum td_rc write_settings(const struct td_cluster_plan *plan, struct td_cluster *c,
                                 const struct td_cluster_process *p, struct td_err *err) {
    struct td_buf out = {0};
    td_buf_printf(&out, "# %s, written by `tandem up`; deploy/ explains the keys.\n", p->name);
    put_text(&out, "cluster", c->name);
    put_below(&out, "dir", p->name, plan->dir);
    put_text(&out, "http", p->http);
    if (td_cluster_is(p, "coordinator")) {
        put_text(&out, "listen", p->address);
    } else {
        put_controller(&out, c, p);
    }
    put_below(&out, "shared_dir", "shared", plan->dir);
    put_log(&out, plan, c);
    td_buf_puts(&out, "redis:\n");
    put_text(&out, "  address", td_cluster_find(c, "redis")->address);
    if (c->shape.fast) {
        td_buf_printf(&out, "timers:\n  beat_ms: %d\n  takeover_ms: %d\n  member_timeout_ms: %d\n",
                      FAST_BEAT_MS, FAST_TAKEOVER_MS, FAST_MEMBER_MS);
    }
    char *folder = td_asprintf("%s/%s", plan->dir, p->name);
    char *path = td_asprintf("%s.yaml", folder);
    enum td_rc rc = td_make_dirs(folder, err);
    rc = rc == TD_OK ? td_file_write(path, out.data, out.len, err) : rc;
    td_free(path);
    td_free(folder);
    td_buf_fini(&out);
    return rc;
}

// ---- daemons ----

static enum td_rc add_daemon(const struct td_cluster_plan *plan, struct td_cluster *c,
                             const char *name, struct ports *ports, struct td_err *err) {
    struct td_cluster_process *p = add(plan, c, name);
    enum td_rc rc = put_port(take_port(ports, 0), &p->http, err);
    if (rc == TD_OK && td_cluster_is(p, "coordinator")) {
        rc = put_port(take_port(ports, 0), &p->address, err);
    }
    char *program = td_asprintf("%s/tandem-%.*s", plan->bin, (int)strcspn(name, "-"), name);
    char *settings = td_asprintf("%s/%s.yaml", plan->dir, name);
    const char *const argv[] = {program, "-f", settings, NULL};
    td_cluster_set_argv(p, argv);
    if (rc == TD_OK && access(program, X_OK) != 0) {
        rc = td_fail_errno(err, errno, "%s, which belongs beside this program", program);
    }
    td_free(settings);
    td_free(program);
    return rc;
}

static enum td_rc plan_daemons(const struct td_cluster_plan *plan, struct td_cluster *c,
                               struct ports *ports, struct td_err *err) {
    // Coordinators first: the settings of controllers name them.
    const struct {
        const char *kind;
        int64_t count;
    } kinds[] = {{"coordinator", c->shape.coordinators},
                 {"rollout", c->shape.rollout},
                 {"train", c->shape.train}};
    size_t first = c->count;
    enum td_rc rc = TD_OK;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        for (int64_t i = 0; rc == TD_OK && i < kinds[k].count; i++) {
            char name[NAME_MAX_BYTES];
            snprintf(name, sizeof name, "%s-%" PRId64, kinds[k].kind, i);
            rc = td_cluster_find(c, name) ? TD_OK : add_daemon(plan, c, name, ports, err);
        }
    }
    for (size_t i = first; rc == TD_OK && i < c->count; i++) {
        rc = write_settings(plan, c, &c->processes[i], err);
    }
    return rc;
}

static enum td_rc check(const struct td_cluster_plan *plan, const struct td_cluster *c,
                        struct td_err *err) {
    int64_t daemons = c->shape.coordinators + c->shape.rollout + c->shape.train;
    if (daemons + 2 > TD_CLUSTER_PROCESSES_MAX) {
        return td_fail(err, TD_ELIMIT,
                       "%" PRId64 " daemons are too many for one machine: at most %d", daemons,
                       TD_CLUSTER_PROCESSES_MAX - 2);
    }
    if (strlen(plan->dir) > TD_CLUSTER_DIR_MAX) {
        return td_fail(err, TD_EINVAL,
                       "%s is a path of %zu bytes; sockets lie below it, whose paths the system "
                       "limits to 107, so at most %d; name a shorter one by --dir",
                       plan->dir, strlen(plan->dir), TD_CLUSTER_DIR_MAX);
    }
    json_t *text = json_string(plan->dir);
    json_decref(text);
    return text ? TD_OK : td_fail(err, TD_EINVAL, "the path of the run directory is not UTF-8");
}

static enum td_rc make_folders(const char *dir, struct td_err *err) {
    static const char *const names[] = {"log", "records", "shared"};
    enum td_rc rc = TD_OK;
    for (size_t i = 0; rc == TD_OK && i < sizeof names / sizeof *names; i++) {
        char *path = td_asprintf("%s/%s", dir, names[i]);
        rc = td_make_dirs(path, err);
        td_free(path);
    }
    return rc;
}

enum td_rc td_cluster_plan(const struct td_cluster_plan *plan, struct td_cluster *c,
                           struct td_err *err) {
    struct ports ports = {0};
    enum td_rc rc = check(plan, c, err);
    rc = rc == TD_OK ? make_folders(plan->dir, err) : rc;
    if (rc == TD_OK && !td_cluster_find(c, "redis")) {
        rc = plan_redis(plan, c, err);
    }
    if (rc == TD_OK && c->shape.kafka && !td_cluster_find(c, "kafka")) {
        rc = plan_kafka(plan, c, &ports, err);
    }
    rc = rc == TD_OK ? plan_daemons(plan, c, &ports, err) : rc;
    drop_ports(&ports);
    return rc;
}
