// The rollout controller's shell: bringing a version's weights to a worker.
#include "controllers/rollout/shell_int.h"
#include "lib/base/mem.h"
#include "lib/base/trace.h"

struct weights_call {
    struct td_rollout_shell *shell;
    enum td_rolloutc_event_kind kind;
    uint32_t worker;
    struct td_version version;
};

static void give(struct weights_call *c, bool ok) {
    struct td_rolloutc_event e = {
        .kind = c->kind, .worker = c->worker, .version = c->version, .ok = ok};
    td_rollout_shell_step(c->shell, &e);
    td_free(c);
}

static void on_reply(void *user, int worker, const td_frame *f, const int *fds) {
    struct weights_call *c = user;
    (void)fds;
    if (!f) { // WORKER_DOWN tells
        td_free(c);
        return;
    }
    bool refused = f->body_case == TANDEM__WORKER__FRAME__BODY_ERROR;
    if (refused) {
        td_trace_warn("weights refused", "worker=%d cause=\"%s\"", worker, f->error->message);
    }
    give(c, !refused);
}

static struct weights_call *new_call(struct td_rollout_shell *s, const struct td_rolloutc_effect *x,
                                     enum td_rolloutc_event_kind kind) {
    struct weights_call *c = td_alloc(sizeof *c);
    *c =
        (struct weights_call){.shell = s, .kind = kind, .worker = x->worker, .version = x->version};
    return c;
}

// Half of the time in which any request is to be answered: the rest is for checking the digest.
void td_rollout_shell_prepare(struct td_rollout_shell *s, const struct td_rolloutc_effect *x) {
    Tandem__Worker__Version version = TANDEM__WORKER__VERSION__INIT;
    version.lineage = x->version.lineage;
    version.step = x->version.step;
    Tandem__Worker__Prepare m = TANDEM__WORKER__PREPARE__INIT;
    m.version = &version;
    m.digest = x->digest;
    m.sources = x->sources;
    m.n_sources = x->source_count;
    m.deadline_ms = (uint64_t)s->base.config.data->spec->tandem.step_timeout_s * 1000 / 2;
    td_frame f = TANDEM__WORKER__FRAME__INIT;
    f.body_case = TANDEM__WORKER__FRAME__BODY_PREPARE;
    f.prepare = &m;
    td_pool_send(s->base.pool, (int)x->worker, &f, -1, on_reply, new_call(s, x, TD_RC_PREPARED));
}

void td_rollout_shell_flip(struct td_rollout_shell *s, const struct td_rolloutc_effect *x) {
    Tandem__Worker__Version version = TANDEM__WORKER__VERSION__INIT;
    version.lineage = x->version.lineage;
    version.step = x->version.step;
    Tandem__Worker__Flip m = TANDEM__WORKER__FLIP__INIT;
    m.version = &version;
    td_frame f = TANDEM__WORKER__FRAME__INIT;
    f.body_case = TANDEM__WORKER__FRAME__BODY_FLIP;
    f.flip = &m;
    td_pool_send(s->base.pool, (int)x->worker, &f, -1, on_reply, new_call(s, x, TD_RC_FLIPPED));
}
