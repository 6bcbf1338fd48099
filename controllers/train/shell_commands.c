// The train controller's shell: commands to the ranks, and their answers.
#include <stdio.h>
#include <string.h>

#include "controllers/train/shell_int.h"

#include "lib/base/mem.h"
#include "lib/base/trace.h"

enum { RING_DEADLINE_MS = 20000 };

struct call { // one command under way
    struct td_train_shell *shell;
    enum td_trainc_effect_kind kind;
    uint64_t seq;
};

static void answer(struct call *c, int worker, const td_frame *f) {
    struct td_trainc_event e = {.kind = TD_TC_DONE, .worker = (uint32_t)worker, .seq = c->seq};
    if (f->body_case == TANDEM__WORKER__FRAME__BODY_ERROR) {
        e.kind = TD_TC_FAILED;
        e.rc = (enum td_rc)f->error->code;
        e.text = f->error->message;
    } else if (f->body_case == TANDEM__WORKER__FRAME__BODY_DIGESTED && c->kind != TD_TC_LOAD) {
        e.kind = TD_TC_DIGESTED;
        e.weight_digest = f->digested->weight_digest;
        e.state_digest = f->digested->state_digest;
        e.worker_metrics = (const Tandem__Worker__Metric *const *)f->digested->metrics;
        e.worker_metric_count = f->digested->n_metrics;
    }
    if (f->body_case == TANDEM__WORKER__FRAME__BODY_STEPPED && worker == 0) {
        c->shell->step_seconds_ns += (int64_t)(f->stepped->seconds * 1e9);
    }
    td_train_shell_step(c->shell, &e);
}

static void on_reply(void *user, int worker, const td_frame *f, const int *fds) {
    struct call *c = user;
    (void)fds;
    if (f) { // else WORKER_DOWN tells
        answer(c, worker, f);
    }
    td_free(c);
}

static struct call *new_call(struct td_train_shell *s, const struct td_trainc_effect *x) {
    struct call *c = td_alloc(sizeof *c);
    *c = (struct call){.shell = s, .kind = x->kind, .seq = x->seq};
    return c;
}

static void send(struct td_train_shell *s, const struct td_trainc_effect *x, td_frame *f, int fd) {
    td_pool_send(s->base.pool, (int)x->worker, f, fd, on_reply, new_call(s, x));
}

static void answer_setup(void *user) {
    struct call *c = user;
    struct td_trainc_event e = {.kind = TD_TC_DONE, .seq = c->seq};
    td_train_shell_step(c->shell, &e);
    td_shell_idle(&c->shell->base);
    td_free(c);
}

// The pool has set the worker up before it said that it is there.
static void command_setup(struct td_train_shell *s, const struct td_trainc_effect *x) {
    s->base.busy++;
    td_loop_defer(s->base.config.loop, answer_setup, new_call(s, x));
}

static void command_ring(struct td_train_shell *s, const struct td_trainc_effect *x) {
    Tandem__Worker__Ring m = TANDEM__WORKER__RING__INIT;
    char *addresses[TD_TRAIN_RANKS_MAX];
    for (uint32_t i = 0; i < x->ranks; i++) {
        addresses[i] = s->ring_addresses[i];
    }
    m.generation = x->generation;
    m.deadline_ms = RING_DEADLINE_MS;
    m.addresses = addresses;
    m.n_addresses = x->ranks > 1 ? x->ranks : 0;
    td_frame f = TANDEM__WORKER__FRAME__INIT;
    f.body_case = TANDEM__WORKER__FRAME__BODY_RING;
    f.ring = &m;
    send(s, x, &f, -1);
}

static void command_load(struct td_train_shell *s, const struct td_trainc_effect *x) {
    char *folder =
        x->text[0] ? td_asprintf("%s/%s", s->checkpoint_dir, x->text) : td_strdup(x->text);
    Tandem__Worker__Load m = TANDEM__WORKER__LOAD__INIT;
    m.generation = x->generation;
    m.lineage = x->version.lineage;
    m.step = x->version.step;
    m.folder = folder;
    td_frame f = TANDEM__WORKER__FRAME__INIT;
    f.body_case = TANDEM__WORKER__FRAME__BODY_LOAD;
    f.load = &m;
    send(s, x, &f, -1);
    td_free(folder);
}

static void command_keyed(struct td_train_shell *s, const struct td_trainc_effect *x) {
    Tandem__Worker__Key key = TANDEM__WORKER__KEY__INIT;
    key.generation = x->generation;
    key.ref_offset = x->ref.offset;
    key.ref_crc = x->ref.crc;
    Tandem__Worker__Prep prep = TANDEM__WORKER__PREP__INIT;
    Tandem__Worker__Step step = TANDEM__WORKER__STEP__INIT;
    Tandem__Worker__Finish finish = TANDEM__WORKER__FINISH__INIT;
    td_frame f = TANDEM__WORKER__FRAME__INIT;
    int fd = -1;
    if (x->kind == TD_TC_PREP) {
        prep.key = &key;
        prep.round = x->round;
        f.body_case = TANDEM__WORKER__FRAME__BODY_PREP;
        f.prep = &prep;
        fd = s->round ? s->round->fds[x->worker] : -1;
    } else if (x->kind == TD_TC_STEP) {
        step.key = &key;
        step.k = x->k;
        step.deadline_ms = (uint64_t)s->base.config.data->spec->tandem.step_timeout_s * 1000;
        f.body_case = TANDEM__WORKER__FRAME__BODY_STEP;
        f.step = &step;
    } else {
        finish.key = &key;
        finish.lineage = x->version.lineage;
        f.body_case = TANDEM__WORKER__FRAME__BODY_FINISH;
        f.finish = &finish;
    }
    send(s, x, &f, fd);
}

void td_train_shell_command(struct td_train_shell *s, const struct td_trainc_effect *x) {
    td_frame f = TANDEM__WORKER__FRAME__INIT;
    Tandem__Worker__Digest digest = TANDEM__WORKER__DIGEST__INIT;
    switch (x->kind) {
    case TD_TC_SETUP:
        command_setup(s, x);
        break;
    case TD_TC_RING:
        command_ring(s, x);
        break;
    case TD_TC_LOAD:
        command_load(s, x);
        break;
    case TD_TC_PREP:
    case TD_TC_STEP:
    case TD_TC_FINISH:
        command_keyed(s, x);
        break;
    case TD_TC_DIGEST:
        f.body_case = TANDEM__WORKER__FRAME__BODY_DIGEST;
        f.digest = &digest;
        send(s, x, &f, -1);
        break;
    default:
        td_trace_error("effect not known", "kind=%d", (int)x->kind);
        break;
    }
}

static void on_up(void *user, int worker, const Tandem__Worker__Status *status) {
    struct td_train_shell *s = user;
    snprintf(s->ring_addresses[worker], sizeof s->ring_addresses[worker], "%s",
             status->ring_address);
    struct td_trainc_event e = {
        .kind = TD_TC_WORKER_UP, .worker = (uint32_t)worker, .status = status};
    td_train_shell_step(s, &e);
}

static void on_down(void *user, int worker, const char *cause) {
    struct td_train_shell *s = user;
    struct td_trainc_event e = {
        .kind = TD_TC_WORKER_DOWN, .worker = (uint32_t)worker, .text = cause};
    td_train_shell_step(s, &e);
}

static void on_generated(void *user, int worker, const Tandem__Worker__Generated *m) {
    (void)user;
    td_trace_warn("a train worker generated", "worker=%d sequence=%llu", worker,
                  (unsigned long long)m->sequence);
}

static void on_failed(void *user, int worker, const struct td_err *err) {
    struct td_train_shell *s = user;
    (void)worker;
    s->base.config.failed(s->base.config.user, err->msg);
}

void td_train_shell_pool_fns(struct td_pool_fns *fns) {
    *fns = (struct td_pool_fns){
        .up = on_up, .down = on_down, .generated = on_generated, .failed = on_failed};
}
