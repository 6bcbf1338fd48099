// The rollout controller's shell: groups under way, from the first frame to the record in the log.
#include <stdio.h>
#include <string.h>

#include "controllers/rollout/shell_int.h"
#include "lib/base/mem.h"
#include "lib/base/rng.h"
#include "lib/base/trace.h"

enum { PURPOSE_TRAIN = 0, PURPOSE_EVAL = 1 };

struct group_call { // requests of a group, or its append
    struct td_rollout_shell *shell;
    uint64_t ticket;
};

static struct group_call *new_call(struct td_rollout_shell *s, uint64_t ticket) {
    struct group_call *c = td_alloc(sizeof *c);
    *c = (struct group_call){s, ticket};
    return c;
}

void td_rollout_shell_failed(struct td_rollout_shell *s, uint64_t ticket, const char *text) {
    struct td_rolloutc_event e = {.kind = TD_RC_GROUP_FAILED, .ticket = ticket, .text = text};
    td_rollout_shell_step(s, &e);
}

static void on_reply(void *user, int worker, const td_frame *f, const int *fds) {
    struct group_call *c = user;
    (void)worker;
    (void)fds;
    if (f && f->body_case == TANDEM__WORKER__FRAME__BODY_ERROR) {
        td_trace_warn("group refused", "cause=\"%s\"", f->error->message);
        td_rollout_shell_failed(c->shell, c->ticket, f->error->message);
    }
    td_free(c);
}

static void send(struct td_rollout_shell *s, const struct td_episode *g, td_frame *f) {
    td_pool_send(s->base.pool, g->worker, f, -1, on_reply, new_call(s, g->ticket));
}

static void send_prompt(struct td_rollout_shell *s, const struct td_episode *g) {
    td_frame f = TANDEM__WORKER__FRAME__INIT;
    Tandem__Worker__Open open = TANDEM__WORKER__OPEN__INIT;
    open.sequence = td_episode_sequence(g, 0);
    f.body_case = TANDEM__WORKER__FRAME__BODY_OPEN;
    f.open = &open;
    send(s, g, &f);
    Tandem__Worker__Extend extend = TANDEM__WORKER__EXTEND__INIT;
    extend.sequence = open.sequence;
    extend.ids = (int32_t *)g->row.ids;
    extend.n_ids = g->row.n;
    f.body_case = TANDEM__WORKER__FRAME__BODY_EXTEND;
    f.extend = &extend;
    send(s, g, &f);
    if (g->sample_count < 2) {
        return;
    }
    uint64_t *children = td_alloc_array(g->sample_count, sizeof *children);
    for (uint32_t i = 1; i < g->sample_count; i++) {
        children[i - 1] = td_episode_sequence(g, i);
    }
    Tandem__Worker__Fork fork = TANDEM__WORKER__FORK__INIT;
    fork.sequence = open.sequence;
    fork.children = children;
    fork.n_children = g->sample_count - 1;
    f.body_case = TANDEM__WORKER__FRAME__BODY_FORK;
    f.fork = &fork;
    send(s, g, &f);
    td_free(children);
}

static void send_generate(struct td_rollout_shell *s, const struct td_episode *g) {
    const struct td_job_spec *spec = s->base.config.data->spec;
    const struct td_spec_val_kwargs *val = &spec->rollout.val_kwargs;
    Tandem__Worker__Generate m = TANDEM__WORKER__GENERATE__INIT;
    m.temperature = td_job_temperature(spec, g->eval);
    m.top_k = (int32_t)(g->eval ? val->top_k : spec->rollout.top_k);
    m.top_p = g->eval ? val->top_p : spec->rollout.top_p;
    m.max_new_tokens = (uint32_t)spec->data.max_response_length;
    td_frame f = TANDEM__WORKER__FRAME__INIT;
    f.body_case = TANDEM__WORKER__FRAME__BODY_GENERATE;
    f.generate = &m;
    for (uint32_t i = 0; i < g->sample_count; i++) {
        m.sequence = td_episode_sequence(g, i);
        // The samples of a validation do not depend on the step.
        m.key = td_sampling_key((uint64_t)spec->tandem.seed, g->eval ? PURPOSE_EVAL : PURPOSE_TRAIN,
                                g->eval ? 0 : g->group.data_epoch, g->group.index, i, 0);
        send(s, g, &f);
    }
}

void td_rollout_shell_start_group(struct td_rollout_shell *s, const struct td_rolloutc_effect *x) {
    const struct td_episode *g = td_episodes_add(s->episodes, x, s->base.config.data);
    send_prompt(s, g);
    send_generate(s, g);
}

void td_rollout_shell_generated(struct td_rollout_shell *s, const Tandem__Worker__Generated *m) {
    uint64_t ticket = td_sequence_ticket(m->sequence);
    struct td_episode *g = td_episodes_find(s->episodes, ticket);
    if (!g) {
        return; // of a group that was closed meanwhile
    }
    if (!td_episode_take(g, m)) {
        td_rollout_shell_failed(s, ticket, "a worker gave what was not asked for");
        return;
    }
    struct td_rolloutc_event e = {.kind = TD_RC_SAMPLE_DONE, .ticket = ticket};
    td_rollout_shell_step(s, &e);
    g = td_episodes_find(s->episodes, ticket);
    if (g && g->done == g->sample_count) {
        td_rollout_shell_score(s, g);
    }
}

// ---- publication ----

struct packed { // arrays of a record, of one group
    Tandem__Rollout__Header header;
    Tandem__Rollout__Model model, *models[1];
    Tandem__Rollout__Sequence *sequence, **sequences;
    Tandem__Rollout__Segment *segment, **segments;
    uint32_t *samples;
    Tandem__Rollout__Status *status;
    int32_t *tok;
    float *logp;
    uint8_t *mask;
    double *reward;
    uint64_t tokens;
};

static void packed_fini(struct packed *p) {
    td_free(p->sequence);
    td_free(p->sequences);
    td_free(p->segment);
    td_free(p->segments);
    td_free(p->samples);
    td_free(p->status);
    td_free(p->tok);
    td_free(p->logp);
    td_free(p->mask);
    td_free(p->reward);
}

static void packed_init(struct packed *p, const struct td_episode *g) {
    size_t n = g->sample_count;
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < n; i++) {
        tokens += g->row.n + (uint64_t)g->samples[i].n;
    }
    *p = (struct packed){.sequence = td_alloc_array(n, sizeof *p->sequence),
                         .sequences = td_alloc_array(n, sizeof *p->sequences),
                         .segment = td_alloc_array(2 * n, sizeof *p->segment),
                         .segments = td_alloc_array(2 * n, sizeof *p->segments),
                         .samples = td_alloc_array(n, sizeof *p->samples),
                         .status = td_alloc_array(n, sizeof *p->status),
                         .tok = td_alloc_array(tokens, sizeof *p->tok),
                         .logp = td_alloc_array(tokens, sizeof *p->logp),
                         .mask = td_alloc_array(tokens, sizeof *p->mask),
                         .reward = td_alloc_array(n, sizeof *p->reward)};
}

static void add_segment(struct packed *p, uint32_t sequence, Tandem__Rollout__SegmentKind kind,
                        size_t n) {
    Tandem__Rollout__Segment *g = &p->segment[p->header.n_segments];
    tandem__rollout__segment__init(g);
    g->sequence = sequence;
    g->kind = kind;
    g->from = p->tokens;
    g->to = p->tokens + n;
    p->segments[p->header.n_segments++] = g;
    p->tokens += n;
}

static void add_sample(struct packed *p, const struct td_episode *g, uint32_t i) {
    const struct td_sample *s = &g->samples[i];
    size_t n = (size_t)s->n;
    Tandem__Rollout__Sequence *q = &p->sequence[i];
    tandem__rollout__sequence__init(q);
    q->sample = i;
    q->parent = -1;
    q->from = p->tokens;
    memcpy(p->tok + p->tokens, g->row.ids, g->row.n * sizeof *p->tok);
    add_segment(p, i, TANDEM__ROLLOUT__SEGMENT_KIND__PROMPT, g->row.n);
    memcpy(p->tok + p->tokens, s->ids, n * sizeof *p->tok);
    memcpy(p->logp + p->tokens, s->logp, n * sizeof *p->logp);
    memset(p->mask + p->tokens, 1, n);
    add_segment(p, i, TANDEM__ROLLOUT__SEGMENT_KIND__MODEL, n);
    q->to = p->tokens;
    p->sequences[i] = q;
    p->samples[i] = i;
    p->status[i] = s->clipped ? TANDEM__ROLLOUT__STATUS__LENGTH : TANDEM__ROLLOUT__STATUS__COMPLETE;
    p->reward[i] = s->score;
}

static void pack(const struct td_rollout_shell *s, struct td_episode *g) {
    char actor[] = "actor", score_name[] = "score";
    char *components[] = {score_name};
    struct packed p;
    packed_init(&p, g);
    Tandem__Rollout__Header *h = &p.header;
    tandem__rollout__header__init(h);
    tandem__rollout__model__init(&p.model);
    p.model.name = actor;
    p.model.lineage = g->version.lineage;
    p.model.step = g->version.step;
    p.models[0] = &p.model;
    for (uint32_t i = 0; i < g->sample_count; i++) {
        add_sample(&p, g, i);
    }
    h->log = td_log_id(s->base.config.rollouts);
    h->job = g->job;
    h->journal_id = s->base.config.journal_id;
    h->data_epoch = g->group.data_epoch;
    h->index = g->group.index;
    h->parts = 1;
    h->attempt_term = g->attempt.term;
    h->attempt = g->attempt.n;
    h->producer = s->base.config.incarnation;
    h->models = p.models;
    h->n_models = 1;
    h->samples = p.samples;
    h->n_samples = g->sample_count;
    h->status = p.status;
    h->n_status = g->sample_count;
    h->sequences = p.sequences;
    h->n_sequences = g->sample_count;
    h->segments = p.segments;
    h->reward_components = components;
    h->n_reward_components = 1;
    struct td_rollout_record record = {.header = h,
                                       .tokens = p.tokens,
                                       .samples = g->sample_count,
                                       .tok = p.tok,
                                       .logp = p.logp,
                                       .loss_mask = p.mask,
                                       .reward = p.reward};
    td_rollout_record_encode(&record, &g->record);
    packed_fini(&p);
}

static void on_appended(void *user, const struct td_log_result *result) {
    struct group_call *c = user;
    struct td_rollout_shell *s = c->shell;
    if (result->outcome == TD_LOG_FAILED && !s->base.stopping) {
        s->base.config.failed(s->base.config.user, result->err->msg);
    } else {
        struct td_rolloutc_event e = {
            .kind = TD_RC_PUBLISHED, .ticket = c->ticket, .ok = result->outcome == TD_LOG_APPENDED};
        td_rollout_shell_step(s, &e);
    }
    td_free(c);
    td_shell_idle(&s->base);
}

static void give_unpublished(void *user) {
    struct group_call *c = user;
    struct td_rolloutc_event e = {.kind = TD_RC_PUBLISHED, .ticket = c->ticket};
    td_rollout_shell_step(c->shell, &e);
    td_shell_idle(&c->shell->base);
    td_free(c);
}

void td_rollout_shell_publish(struct td_rollout_shell *s, const struct td_rolloutc_effect *x) {
    struct td_episode *g = td_episodes_find(s->episodes, x->ticket);
    if (!g) {
        return;
    }
    if (g->record.len == 0) {
        pack(s, g);
    }
    if (g->record.len > TD_LOG_RECORD_BYTES_MAX) {
        char cause[160];
        snprintf(cause, sizeof cause,
                 "the record of a group has %zu bytes, at most %d: lower rollout.n or "
                 "data.max_response_length",
                 g->record.len, TD_LOG_RECORD_BYTES_MAX);
        s->base.config.failed(s->base.config.user, cause);
        return;
    }
    uint64_t key = td_hash_u64(g->group.data_epoch, g->group.index);
    struct td_log_append a = {.partition =
                                  (uint32_t)(key % td_log_partitions(s->base.config.rollouts)),
                              .bytes = g->record.data,
                              .n = g->record.len,
                              .done = on_appended,
                              .user = new_call(s, x->ticket)};
    struct td_err err;
    s->base.busy++;
    if (td_log_append(s->base.config.rollouts, &a, &err) != TD_OK) {
        td_loop_defer(s->base.config.loop, give_unpublished,
                      a.user); // too many outstanding: again later
    }
}

void td_rollout_shell_close_group(struct td_rollout_shell *s, const struct td_rolloutc_effect *x) {
    struct td_episode *g = td_episodes_find(s->episodes, x->ticket);
    if (!g) {
        return;
    }
    if (g->done < g->sample_count && td_pool_is_up(s->base.pool, g->worker)) {
        uint64_t *open = td_alloc_array(g->sample_count, sizeof *open);
        Tandem__Worker__Close m = TANDEM__WORKER__CLOSE__INIT;
        for (uint32_t i = 0; i < g->sample_count; i++) {
            if (!g->samples[i].done) {
                open[m.n_sequences++] = td_episode_sequence(g, i);
            }
        }
        m.sequences = open;
        td_frame f = TANDEM__WORKER__FRAME__INIT;
        f.body_case = TANDEM__WORKER__FRAME__BODY_CLOSE;
        f.close = &m;
        td_pool_send(s->base.pool, g->worker, &f, -1, NULL, NULL);
        td_free(open);
    }
    td_episodes_remove(s->episodes, x->ticket);
}
