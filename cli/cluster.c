// cluster.json: see cluster.h.
#include "cli/cluster.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/process.h"
#include "lib/base/check.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"

enum { FILE_MAX = 1 << 20 };

static const char file_name[] = "cluster.json";

// ---- in memory ----

static void free_argv(char **argv) {
    for (char **a = argv; a && *a; a++) {
        td_free(*a);
    }
    td_free(argv);
}

void td_cluster_fini(struct td_cluster *c) {
    for (size_t i = 0; i < c->count; i++) {
        struct td_cluster_process *p = &c->processes[i];
        td_free(p->name);
        td_free(p->log);
        td_free(p->address);
        td_free(p->http);
        free_argv(p->argv);
    }
    td_free(c->name);
    *c = (struct td_cluster){0};
}

struct td_cluster_process *td_cluster_find(struct td_cluster *c, const char *name) {
    for (size_t i = 0; i < c->count; i++) {
        if (strcmp(c->processes[i].name, name) == 0) {
            return &c->processes[i];
        }
    }
    return NULL;
}

struct td_cluster_process *td_cluster_add(struct td_cluster *c, const char *name, const char *log) {
    td_assert_op(c->count, <, TD_CLUSTER_PROCESSES_MAX);
    struct td_cluster_process *p = &c->processes[c->count++];
    *p = (struct td_cluster_process){.name = td_strdup(name), .log = td_strdup(log)};
    return p;
}

void td_cluster_set_argv(struct td_cluster_process *p, const char *const *argv) {
    size_t n = 0;
    while (argv[n]) {
        n++;
    }
    td_assert_op(n, <=, TD_CLUSTER_ARGS_MAX);
    char **copy = td_alloc_array(n + 1, sizeof *copy);
    for (size_t i = 0; i < n; i++) {
        copy[i] = td_strdup(argv[i]);
    }
    free_argv(p->argv);
    p->argv = copy;
}

bool td_cluster_is(const struct td_cluster_process *p, const char *kind) {
    size_t n = strlen(kind);
    return strncmp(p->name, kind, n) == 0 && (p->name[n] == '-' || p->name[n] == 0);
}

bool td_cluster_alive(const struct td_cluster_process *p) {
    return td_process_alive(p->pid, p->start);
}

char *td_cluster_addresses(const struct td_cluster *c) {
    struct td_buf out = {0};
    for (size_t i = 0; i < c->count; i++) {
        if (td_cluster_is(&c->processes[i], "coordinator")) {
            td_buf_printf(&out, "%s%s", out.len ? "," : "", c->processes[i].address);
        }
    }
    char *copy = td_strdup(td_buf_str(&out));
    td_buf_fini(&out);
    return copy;
}

enum td_rc td_cluster_dir(const char *name, bool make, char **out, struct td_err *err) {
    char path[PATH_MAX];
    enum td_rc rc = make ? td_make_dirs(name, err) : TD_OK;
    if (rc == TD_OK && !realpath(name, path)) {
        rc = td_fail_errno(err, errno, "%s", name);
    }
    if (rc == TD_OK) {
        *out = td_strdup(path);
    }
    return rc;
}

// ---- on disk ----

static json_t *json_of(const struct td_cluster_process *p) {
    json_t *argv = json_array();
    for (char **a = p->argv; a && *a; a++) {
        json_array_append_new(argv, json_string(*a));
    }
    return json_pack("{s:s, s:i, s:I, s:s, s:s*, s:s*, s:o}", "name", p->name, "pid", (int)p->pid,
                     "start", (json_int_t)p->start, "log", p->log, "address", p->address, "http",
                     p->http, "argv", argv);
}

enum td_rc td_cluster_write(const char *dir, const struct td_cluster *c, struct td_err *err) {
    json_t *addresses = json_array(), *http = json_object(), *processes = json_array();
    for (size_t i = 0; i < c->count; i++) {
        const struct td_cluster_process *p = &c->processes[i];
        if (td_cluster_is(p, "coordinator")) {
            json_array_append_new(addresses, json_string(p->address));
        }
        if (p->http) {
            json_object_set_new(http, p->name, json_string(p->http));
        }
        json_array_append_new(processes, json_of(p));
    }
    const struct td_cluster_shape *s = &c->shape;
    json_t *shape = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:b}", "coordinators", (json_int_t)s->coordinators,
        "rollout", (json_int_t)s->rollout, "train", (json_int_t)s->train, "rollout_workers",
        (json_int_t)s->rollout_workers, "train_workers", (json_int_t)s->train_workers, "threads",
        (json_int_t)s->threads, "kafka", (int)s->kafka, "fast", (int)s->fast);
    json_t *root = json_pack("{s:s, s:o, s:o, s:o, s:o}", "name", c->name, "addresses", addresses,
                             "http", http, "shape", shape, "processes", processes);
    char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    if (!text) {
        return td_fail(err, TD_EINVAL, "%s: a path is not UTF-8", file_name);
    }
    char *path = td_asprintf("%s/%s", dir, file_name);
    enum td_rc rc = td_file_write(path, text, strlen(text), err);
    td_free(path);
    td_free(text);
    return rc;
}

static bool take_process(struct td_cluster *c, json_t *from) {
    const char *name = NULL, *log = NULL, *address = NULL, *http = NULL;
    int pid = 0;
    json_int_t start = 0;
    json_t *argv = NULL;
    if (c->count == TD_CLUSTER_PROCESSES_MAX ||
        json_unpack(from, "{s:s, s:i, s:I, s:s, s?s, s?s, s:o}", "name", &name, "pid", &pid,
                    "start", &start, "log", &log, "address", &address, "http", &http, "argv",
                    &argv) != 0 ||
        json_array_size(argv) > TD_CLUSTER_ARGS_MAX) {
        return false;
    }
    const char *words[TD_CLUSTER_ARGS_MAX + 1] = {0};
    for (size_t i = 0; i < json_array_size(argv); i++) {
        words[i] = json_string_value(json_array_get(argv, i));
        if (!words[i]) {
            return false;
        }
    }
    struct td_cluster_process *p = td_cluster_add(c, name, log);
    p->pid = pid;
    p->start = (uint64_t)start;
    p->address = td_strdup(address);
    p->http = td_strdup(http);
    td_cluster_set_argv(p, words);
    return !td_cluster_is(p, "coordinator") || address;
}

static bool take(struct td_cluster *c, json_t *root) {
    const char *name = NULL;
    json_t *processes = NULL;
    int kafka = 0, fast = 0;
    json_int_t n[6] = {0};
    if (json_unpack(root, "{s:s, s:o, s:{s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:b}}", "name", &name,
                    "processes", &processes, "shape", "coordinators", &n[0], "rollout", &n[1],
                    "train", &n[2], "rollout_workers", &n[3], "train_workers", &n[4], "threads",
                    &n[5], "kafka", &kafka, "fast", &fast) != 0 ||
        !json_is_array(processes)) {
        return false;
    }
    c->name = td_strdup(name);
    c->shape = (struct td_cluster_shape){n[0], n[1], n[2], n[3], n[4], n[5], kafka, fast};
    for (size_t i = 0; i < json_array_size(processes); i++) {
        if (!take_process(c, json_array_get(processes, i))) {
            return false;
        }
    }
    return true;
}

enum td_rc td_cluster_read(const char *dir, struct td_cluster *out, struct td_err *err) {
    char *path = td_asprintf("%s/%s", dir, file_name);
    struct td_buf text = {0};
    struct td_cluster c = {0};
    enum td_rc rc = td_file_read(path, FILE_MAX, &text, err);
    if (rc == TD_ENOENT) {
        rc = td_fail(err, rc,
                     "there is no cluster in %s; `tandem up` makes one, --dir names another", dir);
    } else if (rc == TD_OK) {
        json_t *root = json_loadb(td_buf_str(&text), text.len, 0, NULL);
        if (take(&c, root)) {
            *out = c;
        } else {
            td_cluster_fini(&c);
            rc = td_fail(err, TD_ECORRUPT, "%s: not written by `tandem up` of this version", path);
        }
        json_decref(root);
    }
    td_buf_fini(&text);
    td_free(path);
    return rc;
}
