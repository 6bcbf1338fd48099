// The rollout seat: frames to the generation engine. Weights are a mapped snapshot, used in place;
// the next version is pulled and verified beside the current one and flipped to when nothing is
// open.
#include <string.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "workers/settings.h"
#include "workers/worker_int.h"

static void weights_free(struct td_worker *w, struct td_rollout_weights *x) {
    if (x) {
        td_weights_fini(w->model, &x->weights);
        td_snapshot_unmap(&x->map);
        td_free(x);
    }
}

enum td_rc td_rollout_seat_new(struct td_worker *w, const Tandem__Worker__Setup *m,
                               struct td_err *err) {
    struct td_rollout_seat *s = &w->rollout;
    const struct td_model_config *config = td_model_config(w->model);
    if (m->allowed_ids.len > 0) {
        s->allowed = td_alloc((size_t)config->vocab_size);
        size_t n = m->allowed_ids.len;
        if (n > (size_t)config->vocab_size) {
            return td_fail(err, TD_EINVAL,
                           "the tokenizer knows %zu ids, the model's vocab_size is %d", n,
                           config->vocab_size);
        }
        memcpy(s->allowed, m->allowed_ids.data, n);
    }
    if (m->n_stop_ids > TD_STOP_IDS_MAX) {
        return td_fail(err, TD_ELIMIT, "%zu end-of-text tokens, at most %d", m->n_stop_ids,
                       TD_STOP_IDS_MAX);
    }
    s->stop_count = (int32_t)m->n_stop_ids;
    s->stop_ids = td_memdup(m->stop_ids, m->n_stop_ids * sizeof *s->stop_ids);
    struct td_generate_config g;
    td_generate_settings(w->spec, &g);
    g.allowed = s->allowed;
    return td_generator_new(w->model, &g, &s->generator, err);
}

void td_rollout_seat_fini(struct td_worker *w) {
    struct td_rollout_seat *s = &w->rollout;
    td_generator_free(s->generator);
    weights_free(w, s->current);
    weights_free(w, s->next);
    td_free(s->allowed);
    td_free(s->stop_ids);
    *s = (struct td_rollout_seat){0};
}

static bool is_version(const struct td_rollout_weights *x, const Tandem__Worker__Version *v) {
    return x && x->map.lineage == v->lineage && x->map.step == v->step;
}

static enum td_rc pull(struct td_worker *w, const Tandem__Worker__Prepare *m,
                       struct td_snapshot *out, struct td_err *err) {
    int fd = -1;
    const struct td_weights_want want = {
        .sources = (const char *const *)m->sources,
        .count = m->n_sources,
        .step = m->version->step,
        .digest = m->digest,
        .bytes = td_snapshot_bytes((uint64_t)td_model_elements(w->model)),
        .deadline_ms = td_clock_ms() + (int64_t)m->deadline_ms,
    };
    td_heartbeat_doing(w->heartbeat, TD_DOING_PULL);
    enum td_rc rc = td_weights_pull(&want, &fd, err);
    td_heartbeat_doing(w->heartbeat, TD_DOING_PREPARE);
    if (rc == TD_OK) {
        rc = td_snapshot_map(fd, out, err);
        close(fd);
    }
    return rc;
}

static enum td_rc on_prepare(struct td_worker *w, const Tandem__Worker__Prepare *m,
                             struct td_err *err) {
    struct td_rollout_seat *s = &w->rollout;
    struct td_rollout_weights *x = td_alloc(sizeof *x);
    const int64_t elements = td_model_elements(w->model);
    enum td_rc rc = pull(w, m, &x->map, err);
    if (rc != TD_OK) {
        goto out;
    }
    if (x->map.elements != (uint64_t)elements || x->map.step != m->version->step) {
        rc = td_fail(err, TD_ECORRUPT,
                     "snapshot of version (%llu, %llu) with %llu elements, not %lld",
                     (unsigned long long)x->map.lineage, (unsigned long long)x->map.step,
                     (unsigned long long)x->map.elements, (long long)elements);
        goto out;
    }
    x->weights.flat = td_tensor_of(w->backend, (void *)x->map.flat, 1, elements);
    uint64_t digest = td_weights_digest(w->model, &x->weights.flat);
    if (digest != m->digest) {
        rc = td_fail(err, TD_ECORRUPT, "snapshot digest is %016llx, the journal says %016llx",
                     (unsigned long long)digest, (unsigned long long)m->digest);
        goto out;
    }
    rc = td_weights_prepare(w->model, &x->weights, err);
    if (rc != TD_OK) {
        goto out;
    }
    x->map.lineage = m->version->lineage; // a FORK may have renamed it since it was written
    weights_free(w, s->next);
    s->next = x;
    x = NULL;
out:
    weights_free(w, x);
    return rc;
}

static enum td_rc on_flip(struct td_worker *w, const Tandem__Worker__Flip *m, struct td_err *err) {
    struct td_rollout_seat *s = &w->rollout;
    if (is_version(s->current, m->version)) {
        return TD_OK;
    }
    if (!is_version(s->next, m->version)) {
        return td_fail(err, TD_ENOENT, "version (%llu, %llu) was not prepared",
                       (unsigned long long)m->version->lineage,
                       (unsigned long long)m->version->step);
    }
    enum td_rc rc = td_generator_set_weights(s->generator, &s->next->weights, err);
    if (rc == TD_OK) {
        weights_free(w, s->current);
        s->current = s->next;
        s->next = NULL;
    }
    return rc;
}

static enum td_rc on_fork(struct td_worker *w, const Tandem__Worker__Fork *m, struct td_err *err) {
    enum td_rc rc = TD_OK;
    for (size_t i = 0; rc == TD_OK && i < m->n_children; i++) {
        rc = td_generator_fork(w->rollout.generator, m->sequence, m->children[i], err);
    }
    return rc;
}

static enum td_rc on_generate(struct td_worker *w, const Tandem__Worker__Generate *m,
                              struct td_err *err) {
    if (!w->rollout.current) {
        return td_fail(err, TD_ECONFLICT, "no weights yet: Prepare and Flip come first");
    }
    struct td_sampling sampling = {.key = m->key,
                                   .temperature = m->temperature,
                                   .top_k = m->top_k,
                                   .top_p = m->top_p,
                                   .max_new_tokens = (int32_t)m->max_new_tokens,
                                   .stop_ids = w->rollout.stop_ids,
                                   .stop_count = w->rollout.stop_count};
    return td_generator_generate(w->rollout.generator, m->sequence, &sampling, err);
}

static enum td_rc on_close(struct td_worker *w, const Tandem__Worker__Close *m,
                           struct td_err *err) {
    if (m->all) {
        td_generator_close_all(w->rollout.generator);
        return TD_OK;
    }
    for (size_t i = 0; i < m->n_sequences; i++) {
        enum td_rc rc = td_generator_close(w->rollout.generator, m->sequences[i], err);
        if (rc != TD_OK && rc != TD_ENOENT) {
            return rc;
        }
    }
    return TD_OK;
}

static enum td_rc on_score(struct td_worker *w, const Tandem__Worker__Score *m, struct td_reply *r,
                           struct td_err *err) {
    if (m->n_ids < 2) {
        return td_fail(err, TD_EINVAL, "Score needs two tokens or more, not %zu", m->n_ids);
    }
    r->scores = td_alloc_array(m->n_ids - 1, sizeof *r->scores);
    enum td_rc rc = td_generator_score(w->rollout.generator, m->ids, (int32_t)m->n_ids,
                                       m->temperature, r->scores, err);
    tandem__worker__scored__init(&r->scored);
    r->scored.logp = r->scores;
    r->scored.n_logp = m->n_ids - 1;
    r->frame.body_case = TANDEM__WORKER__FRAME__BODY_SCORED;
    r->frame.scored = &r->scored;
    return rc;
}

enum td_rc td_rollout_seat_handle(struct td_worker *w, const td_frame *f, struct td_reply *r,
                                  struct td_err *err) {
    struct td_generator *g = w->rollout.generator;
    td_reply_done(r);
    switch ((int)f->body_case) {
    case TANDEM__WORKER__FRAME__BODY_PREPARE:
        return f->prepare->version ? on_prepare(w, f->prepare, err)
                                   : td_fail(err, TD_EINVAL, "Prepare without a version");
    case TANDEM__WORKER__FRAME__BODY_FLIP:
        return f->flip->version ? on_flip(w, f->flip, err)
                                : td_fail(err, TD_EINVAL, "Flip without a version");
    case TANDEM__WORKER__FRAME__BODY_OPEN:
        return td_generator_open(g, f->open->sequence, err);
    case TANDEM__WORKER__FRAME__BODY_EXTEND:
        return td_generator_extend(g, f->extend->sequence, f->extend->ids,
                                   (int32_t)f->extend->n_ids, err);
    case TANDEM__WORKER__FRAME__BODY_FORK:
        return on_fork(w, f->fork, err);
    case TANDEM__WORKER__FRAME__BODY_GENERATE:
        return on_generate(w, f->generate, err);
    case TANDEM__WORKER__FRAME__BODY_CLOSE:
        return on_close(w, f->close, err);
    case TANDEM__WORKER__FRAME__BODY_SCORE:
        td_heartbeat_doing(w->heartbeat, TD_DOING_SCORE);
        return on_score(w, f->score, r, err);
    default:
        return td_fail(err, TD_EUNSUPPORTED, "a rollout seat takes no frame %d", (int)f->body_case);
    }
}

void td_rollout_seat_status(struct td_worker *w, struct td_reply *r) {
    struct td_rollout_seat *s = &w->rollout;
    r->status.generated_tokens = td_generator_tokens(s->generator);
    r->status.open_sequences = (uint32_t)td_generator_open_count(s->generator);
    if (s->current) {
        tandem__worker__version__init(&r->version);
        r->version.lineage = s->current->map.lineage;
        r->version.step = s->current->map.step;
        r->status.has_weights = true;
        r->status.weights = &r->version;
        r->status.held_digest = s->current->map.digest;
    }
}

static enum td_rc send_generated(struct td_worker *w, const struct td_generated *g,
                                 struct td_err *err) {
    Tandem__Worker__Version version = TANDEM__WORKER__VERSION__INIT;
    version.lineage = w->rollout.current->map.lineage;
    version.step = w->rollout.current->map.step;
    Tandem__Worker__Generated body = TANDEM__WORKER__GENERATED__INIT;
    body.sequence = g->sequence;
    body.ids = (int32_t *)g->ids;
    body.n_ids = (size_t)g->n;
    body.logp = (float *)g->logp;
    body.n_logp = (size_t)g->n;
    body.finish = (Tandem__Worker__Finished)g->finish;
    body.version = &version;
    td_frame frame = TANDEM__WORKER__FRAME__INIT;
    frame.body_case = TANDEM__WORKER__FRAME__BODY_GENERATED;
    frame.generated = &body;
    return td_ipc_send(w->conn, &frame, NULL, 0, err);
}

enum td_rc td_rollout_seat_turn(struct td_worker *w, bool *busy, struct td_err *err) {
    struct td_generator *g = w->rollout.generator;
    enum td_rc rc = td_generator_step(g, busy, err);
    if (rc != TD_OK) {
        return rc;
    }
    struct td_generated done;
    bool some = *busy;
    while (w->conn && td_generator_next(g, &done)) {
        struct td_err lost;
        if (send_generated(w, &done, &lost) != TD_OK) {
            return TD_OK; // the controller is gone: the next frame tells, its sequences are closed
        }
        some = true;
        rc = td_generator_close(g, done.sequence, err);
        if (rc != TD_OK) {
            return rc;
        }
    }
    if (some) {
        td_heartbeat_doing(w->heartbeat, *busy ? TD_DOING_GENERATE : TD_DOING_NOTHING);
        td_heartbeat_progress(w->heartbeat, td_generator_tokens(g),
                              (uint32_t)td_generator_open_count(g));
    }
    return TD_OK;
}
