// What the two controllers' shells have in common: see shell.h.
#include "controllers/common/shell.h"

#include "lib/base/check.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"

enum { STOP_MS = 5000 };

// ---- link ----

static void on_orders(void *user, const uint8_t *bytes, size_t n) {
    struct td_shell *s = user;
    Tandem__Sync__Orders *orders = tandem__sync__orders__unpack(NULL, n, bytes);
    if (orders) {
        td_shell_orders(s, orders);
        tandem__sync__orders__free_unpacked(orders, NULL);
    }
}

void td_shell_orders(struct td_shell *s, const Tandem__Sync__Orders *orders) {
    s->kind->orders(s->whole, orders);
}

void td_shell_report(struct td_shell *s, const Tandem__Sync__Report *report) {
    if (!s->link) {
        s->config.report(s->config.user, report);
        return;
    }
    size_t n = tandem__sync__report__get_packed_size(report);
    uint8_t *bytes = td_alloc(n);
    tandem__sync__report__pack(report, bytes);
    td_link_report(s->link, bytes, n);
    td_free(bytes);
}

// ---- work under way ----

bool td_shell_submit(struct td_shell *s, td_loop_fn *run, td_loop_fn *done, void *user) {
    if (!td_workq_submit(s->config.workq, run, done, user)) {
        s->config.stop(s->config.user, "the work queue is full");
        return false;
    }
    s->busy++;
    return true;
}

void td_shell_idle(struct td_shell *s) {
    td_assert_op(s->busy, >, 0);
    if (--s->busy == 0 && s->stopping) {
        td_loop_defer(s->config.loop, s->stopped, s->stopped_user);
    }
}

static void on_pool_stopped(void *user) {
    td_shell_idle(user);
}

void td_shell_stop(struct td_shell *s, td_loop_fn *stopped, void *user) {
    s->stopping = true;
    s->kind->halt(s->whole);
    s->stopped = stopped;
    s->stopped_user = user;
    s->busy++;
    td_pool_stop(s->pool, STOP_MS, on_pool_stopped, s);
}

// ---- life ----

enum td_rc td_shell_init(struct td_shell *s, const struct td_shell_config *config,
                         const struct td_shell_kind *kind, void *whole, struct td_err *err) {
    *s = (struct td_shell){.config = *config, .kind = kind, .whole = whole};
    tandem__worker__setup__init(&s->setup);
    s->setup.job = config->job;
    s->setup.spec.data = (uint8_t *)config->spec;
    s->setup.spec.len = config->spec_bytes;
    s->setup.size = config->workers;
    s->setup.threads = config->threads;
    s->setup.model_dir = (char *)config->data->spec->model.path;
    s->socket_dir = config->socket_dir ? td_strdup(config->socket_dir)
                                       : td_asprintf("%s/workers", config->run_dir);
    enum td_rc rc = td_make_dirs(s->socket_dir, err);
    if (rc == TD_OK && config->hub) {
        rc = td_link_new(config->hub, config->member, on_orders, s, &s->link, err);
    }
    return rc;
}

void td_shell_start_pool(struct td_shell *s, const char *name, const struct td_pool_fns *fns) {
    const struct td_shell_config *config = &s->config;
    const struct td_spec_tandem *t = &config->data->spec->tandem;
    struct td_pool_config c = {.loop = config->loop,
                               .children = config->children,
                               .dir = s->socket_dir,
                               .name = name,
                               .program = config->worker_program,
                               .host = config->host,
                               .count = (int)config->workers,
                               .controller = config->incarnation,
                               .job = config->job,
                               .journal_id = config->journal_id,
                               .grace_s = t->worker_grace_s,
                               .silent_ms = t->worker_timeout_s * 1000,
                               .start_ms = t->start_timeout_s * 1000,
                               .request_ms = t->step_timeout_s * 1000,
                               .verbose = config->verbose,
                               .setup = &s->setup,
                               .fns = *fns,
                               .user = s->whole};
    s->pool = td_pool_new(&c);
}

void td_shell_waits(const struct td_shell *s, char text[TD_SHELL_WAITS], int64_t *since_ms) {
    s->kind->waits(s->whole, text, since_ms);
}

void td_shell_free(struct td_shell *s) {
    if (s) {
        s->kind->free(s->whole);
    }
}

void td_shell_fini(struct td_shell *s) {
    td_pool_free(s->pool);
    td_link_free(s->link);
    td_free(s->socket_dir);
}
