// Starting processes of a local cluster: see cluster_start.h.
#include "cli/cluster_start.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/process.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"

enum { NODE_FILE_MAX = 256, NOT_INSTALLED = 3 };

static void on_exit_of(void *user, pid_t pid, int status) {
    struct td_cluster_start *s = user;
    if (pid == s->script) {
        s->script = 0;
        s->script_status = status;
    }
    for (size_t i = 0; i < s->cluster->count; i++) {
        if (s->started[i] && s->cluster->processes[i].pid == pid) {
            s->died[i] = true;
            s->status[i] = status;
        }
    }
    td_loop_stop(s->loop);
}

// log NULL: where this program writes its errors.
static enum td_rc spawn(struct td_cluster_start *s, const char *const *argv, const char *log,
                        pid_t *pid, struct td_err *err) {
    int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int out = log ? open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : STDERR_FILENO;
    enum td_rc rc = TD_OK;
    if (in < 0 || out < 0) {
        rc = td_fail_errno(err, errno, "%s", in < 0 ? "/dev/null" : log);
    } else {
        const struct td_child_fd fds[] = {{in, 0}, {out, 1}, {out, 2}};
        const struct td_child_opts opts = {
            .argv = argv, .fds = fds, .fd_count = 3, .on_exit = on_exit_of, .user = s};
        rc = td_children_spawn(s->children, &opts, pid, err);
    }
    if (in >= 0) {
        close(in);
    }
    if (log && out >= 0) {
        close(out);
    }
    return rc;
}

// ---- Kafka, by its script ----

static enum td_rc run_script(struct td_cluster_start *s, const char *const *argv, const char *log,
                             int *exit_status, struct td_err *err) {
    bool told = false;
    enum td_rc rc = spawn(s, argv, log, &s->script, err);
    while (rc == TD_OK && s->script) {
        td_loop_run(s->loop);
        if (s->interrupted && s->script && !told) { // it ends what it has started
            told = true;
            rc = td_children_signal(s->children, s->script, SIGTERM, err);
        }
    }
    if (rc == TD_OK && s->interrupted) {
        rc = td_fail(err, TD_ESTOPPED, "interrupted");
    }
    *exit_status = WIFEXITED(s->script_status) ? WEXITSTATUS(s->script_status) : -1;
    return rc;
}

static enum td_rc install_kafka(struct td_cluster_start *s, const char *script,
                                struct td_err *err) {
    const char *const look[] = {script, "installed", NULL};
    const char *const install[] = {script, "install", NULL};
    int status = 0;
    enum td_rc rc = run_script(s, look, "/dev/null", &status, err);
    if (rc == TD_OK && status == NOT_INSTALLED) {
        fprintf(stderr, "tandem up: installing Apache Kafka, once for this user\n");
        rc = run_script(s, install, NULL, &status, err);
    }
    return rc == TD_OK && status != 0
               ? td_fail(err, TD_EIO,
                         "Kafka is not installed (%s install); without --kafka the logs "
                         "are files",
                         script)
               : rc;
}

// "PID START", written by the script.
static enum td_rc read_node(const char *dir, struct td_cluster_process *p, struct td_err *err) {
    char *path = td_asprintf("%s/kafka/node.pid", dir);
    struct td_buf text = {0};
    int pid = 0;
    unsigned long long start = 0;
    enum td_rc rc = td_file_read(path, NODE_FILE_MAX, &text, err);
    if (rc == TD_OK && sscanf(td_buf_str(&text), "%d %llu", &pid, &start) != 2) {
        rc = td_fail(err, TD_ECORRUPT, "%s: not \"PID START\"", path);
    }
    p->pid = pid;
    p->start = start;
    td_buf_fini(&text);
    td_free(path);
    return rc;
}

static enum td_rc start_kafka(struct td_cluster_start *s, struct td_cluster_process *p,
                              struct td_err *err) {
    int status = 0;
    char *log = td_asprintf("%s/log/kafka-start.log", s->dir);
    enum td_rc rc = install_kafka(s, p->argv[0], err);
    if (rc == TD_OK) {
        rc = run_script(s, (const char *const *)p->argv, log, &status, err);
    }
    if (rc == TD_OK && status != 0) {
        rc = td_fail(err, TD_EIO, "Kafka did not start: see %s and %s", log, p->log);
    }
    td_free(log);
    return rc == TD_OK ? read_node(s->dir, p, err) : rc;
}

// ---- all of them ----

static enum td_rc start_one(struct td_cluster_start *s, size_t i, struct td_err *err) {
    struct td_cluster_process *p = &s->cluster->processes[i];
    enum td_rc rc;
    if (td_cluster_is(p, "kafka")) {
        rc = start_kafka(s, p, err);
    } else {
        rc = spawn(s, (const char *const *)p->argv, p->log, &p->pid, err);
        p->start = rc == TD_OK ? td_process_start(p->pid) : 0;
    }
    if (rc == TD_ENOENT && td_cluster_is(p, "redis")) {
        return td_fail(err, rc,
                       "redis-server is not installed; as root: apt-get install "
                       "redis-server (or: deploy/debian-packages test)");
    }
    s->started[i] = rc == TD_OK;
    return rc == TD_OK ? td_cluster_write(s->dir, s->cluster, err) : rc;
}

enum td_rc td_cluster_start_missing(struct td_cluster_start *s, struct td_err *err) {
    enum td_rc rc = TD_OK;
    for (size_t i = 0; rc == TD_OK && i < s->cluster->count; i++) {
        if (s->interrupted) {
            rc = td_fail(err, TD_ESTOPPED, "interrupted");
        } else if (!td_cluster_alive(&s->cluster->processes[i])) {
            rc = start_one(s, i, err);
        }
    }
    return rc;
}
