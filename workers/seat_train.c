// The train seat: frames to the train engine. Serves the snapshots of its last versions, so that
// the head's weights can be had while the next round is already under way.
#include <string.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/rng.h"
#include "lib/ipc/batch.h"
#include "workers/settings.h"
#include "workers/worker_int.h"

static enum td_rc fill_initial(struct td_worker *w, struct td_err *err) {
    struct td_weights *weights = td_trainer_weights(w->train.trainer);
    if (w->spec->tandem.init == TD_INIT_RANDOM) {
        td_weights_random(w->model, weights, (uint64_t)w->spec->tandem.seed);
        return TD_OK;
    }
    return td_weights_load(w->model, weights, w->model_dir, err);
}

enum td_rc td_train_seat_new(struct td_worker *w, const Tandem__Worker__Setup *m,
                             struct td_err *err) {
    struct td_train_config config;
    td_train_settings(w->spec, (int64_t)m->total_steps, (int64_t)m->warmup_steps, &config);
    struct td_train_seat *s = &w->train;
    enum td_rc rc = td_trainer_new(w->backend, w->model, &config, &s->trainer, err);
    if (rc == TD_OK) {
        rc = fill_initial(w, err);
    }
    if (rc == TD_OK && config.use_reference) {
        rc = td_trainer_set_reference(s->trainer, NULL, err);
    }
    if (rc == TD_OK && m->size > 1) {
        rc = td_comm_listen("127.0.0.1", &s->listener, &s->address, err);
    }
    if (rc == TD_OK) {
        char *path = td_asprintf("%s" TD_IPC_WEIGHTS_SUFFIX, w->config->socket_path);
        rc = td_weights_server_new(path, w->config->host, &s->server, err);
        td_free(path);
    }
    return rc;
}

void td_train_seat_init(struct td_train_seat *s) {
    s->finished_ref_offset = -1;
}

void td_train_seat_fini(struct td_train_seat *s) {
    td_trainer_free(s->trainer);
    td_comm_free(s->comm);
    td_comm_listener_free(s->listener);
    td_weights_server_free(s->server);
    td_free(s->address);
    *s = (struct td_train_seat){0};
    td_train_seat_init(s);
}

// Makes the snapshot of the version just reached and serves it.
static enum td_rc serve_version(struct td_worker *w, const struct td_train_status *st,
                                struct td_err *err) {
    struct td_train_seat *s = &w->train;
    struct td_snapshot snap = {.lineage = st->lineage,
                               .step = st->step,
                               .digest = s->weight_digest,
                               .elements = (uint64_t)td_model_elements(w->model),
                               .flat = td_trainer_weights(s->trainer)->flat.p};
    int fd = -1;
    enum td_rc rc = td_snapshot_write(&snap, &fd, err);
    if (rc != TD_OK) {
        return rc;
    }
    rc = td_weights_serve(s->server, snap.step, snap.digest, fd, err);
    close(fd);
    return rc;
}

static void point_at_metrics(struct td_reply *r) {
    for (int i = 0; i < r->metrics.count; i++) {
        tandem__worker__metric__init(&r->metric[i]);
        r->metric[i].name = r->metrics.m[i].name;
        r->metric[i].value = r->metrics.m[i].value;
        r->metric[i].fold = (uint32_t)r->metrics.m[i].fold;
        r->metric_ptr[i] = &r->metric[i];
    }
}

static void fold_into(struct td_metrics *to, const struct td_metrics *from) {
    for (int i = 0; i < from->count; i++) {
        td_metrics_add(to, from->m[i].name, from->m[i].value, from->m[i].fold);
    }
}

static struct td_round_key key_of(const Tandem__Worker__Key *key) {
    return (struct td_round_key){key->generation, (uint64_t)key->ref_offset, key->ref_crc};
}

static enum td_rc on_digest(struct td_worker *w, struct td_reply *r, struct td_err *err) {
    struct td_train_seat *s = &w->train;
    if (!s->finished) {
        return td_fail(err, TD_ECONFLICT, "in the middle of a round, or nothing loaded");
    }
    struct td_train_status st;
    td_trainer_status(s->trainer, &st);
    tandem__worker__version__init(&r->version);
    r->version.lineage = st.lineage;
    r->version.step = st.step;
    tandem__worker__digested__init(&r->digested);
    r->digested.version = &r->version;
    r->digested.weight_digest = s->weight_digest;
    r->digested.state_digest = s->state_digest;
    r->metrics = s->round;
    point_at_metrics(r);
    r->digested.metrics = r->metric_ptr;
    r->digested.n_metrics = (size_t)r->metrics.count;
    r->frame.body_case = TANDEM__WORKER__FRAME__BODY_DIGESTED;
    r->frame.digested = &r->digested;
    return TD_OK;
}

static enum td_rc reach_version(struct td_worker *w, int64_t ref_offset, uint32_t ref_crc,
                                struct td_reply *r, struct td_err *err) {
    struct td_train_seat *s = &w->train;
    td_trainer_digest(s->trainer, &s->weight_digest, &s->state_digest);
    struct td_train_status st;
    td_trainer_status(s->trainer, &st);
    enum td_rc rc = serve_version(w, &st, err);
    if (rc != TD_OK) {
        return rc;
    }
    s->finished = true;
    s->finished_ref_offset = ref_offset;
    s->finished_ref_crc = ref_crc;
    return on_digest(w, r, err);
}

static void reply_stepped(struct td_reply *r, uint32_t k, int64_t started_ns) {
    tandem__worker__stepped__init(&r->stepped);
    point_at_metrics(r);
    r->stepped.k = k;
    r->stepped.metrics = r->metric_ptr;
    r->stepped.n_metrics = (size_t)r->metrics.count;
    r->stepped.seconds = (double)(td_clock_ns() - started_ns) * 1e-9;
    r->frame.body_case = TANDEM__WORKER__FRAME__BODY_STEPPED;
    r->frame.stepped = &r->stepped;
}

static enum td_rc on_ring(struct td_worker *w, const Tandem__Worker__Ring *m, struct td_reply *r,
                          struct td_err *err) {
    struct td_train_seat *s = &w->train;
    enum td_rc allowed = td_trainer_may_load(s->trainer, m->generation, err);
    if (allowed != TD_OK) {
        return allowed; // a ring is made before its generation is loaded
    }
    td_trainer_set_comm(s->trainer, NULL);
    td_comm_free(s->comm);
    s->comm = NULL;
    td_reply_done(r);
    if (m->n_addresses < 2) {
        return TD_OK;
    }
    int rank = -1;
    for (size_t i = 0; i < m->n_addresses; i++) {
        if (s->address && strcmp(m->addresses[i], s->address) == 0) {
            rank = (int)i;
        }
    }
    if (rank < 0) {
        return td_fail(err, TD_EINVAL, "ring without this worker's address");
    }
    uint64_t key = td_hash_u64(td_hash_u64(w->job, 1), m->generation);
    const struct td_comm_place place = {.addresses = (const char *const *)m->addresses,
                                        .rank = rank,
                                        .size = (int)m->n_addresses,
                                        .key = key};
    enum td_rc rc = td_comm_tcp_new(s->listener, &place, td_clock_ms() + (int64_t)m->deadline_ms,
                                    &s->comm, err);
    if (rc == TD_OK) {
        td_trainer_set_comm(s->trainer, s->comm);
    }
    return rc;
}

static enum td_rc on_load(struct td_worker *w, const Tandem__Worker__Load *m, struct td_reply *r,
                          struct td_err *err) {
    struct td_train_seat *s = &w->train;
    bool initial = m->folder[0] == 0;
    enum td_rc rc = td_trainer_may_load(s->trainer, m->generation, err);
    if (rc != TD_OK) {
        return rc; // before anything is overwritten
    }
    s->finished = false;
    s->round.count = 0;
    rc = initial ? fill_initial(w, err) : TD_OK;
    if (rc == TD_OK) {
        rc =
            td_trainer_load(s->trainer, m->generation, m->lineage, initial ? NULL : m->folder, err);
    }
    return rc == TD_OK ? reach_version(w, -1, 0, r, err) : rc;
}

static enum td_rc on_prep(struct td_worker *w, const Tandem__Worker__Prep *m, int fd,
                          struct td_reply *r, struct td_err *err) {
    int64_t started = td_clock_ns();
    struct td_batch *batch = NULL;
    enum td_rc rc = td_batch_map(fd, &batch, err);
    if (rc != TD_OK) {
        return rc;
    }
    struct td_round_key key = key_of(m->key);
    rc = td_trainer_prep(w->train.trainer, &key, batch, &r->metrics, err);
    if (rc == TD_OK) {
        w->train.prep = r->metrics;
        w->train.steps.count = 0;
        reply_stepped(r, 0, started);
    }
    return rc;
}

static enum td_rc on_step(struct td_worker *w, const Tandem__Worker__Step *m, struct td_reply *r,
                          struct td_err *err) {
    int64_t started = td_clock_ns();
    struct td_round_key key = key_of(m->key);
    enum td_rc rc = td_trainer_step(w->train.trainer, &key, m->k,
                                    td_clock_ms() + (int64_t)m->deadline_ms, &r->metrics, err);
    w->train.finished = w->train.finished && rc == TD_ECONFLICT; // refused: all is as it was
    if (rc == TD_OK) {
        fold_into(&w->train.steps, &r->metrics);
        reply_stepped(r, m->k, started);
    }
    return rc;
}

static enum td_rc on_save(struct td_worker *w, const Tandem__Worker__Save *m, struct td_reply *r,
                          struct td_err *err) {
    int count = 0;
    struct td_train_status st;
    td_trainer_status(w->train.trainer, &st);
    if (!w->train.finished || st.generation != m->generation ||
        w->train.state_digest != m->state_digest) {
        return td_fail(err, TD_ECONFLICT,
                       "Save of state %016llx of generation %llu; this worker holds %s%016llx of "
                       "%llu",
                       (unsigned long long)m->state_digest, (unsigned long long)m->generation,
                       w->train.finished ? "" : "no version since ",
                       (unsigned long long)w->train.state_digest,
                       (unsigned long long)st.generation);
    }
    enum td_rc rc;
    if (m->user) {
        rc = td_trainer_export(w->train.trainer, m->folder, m->source_dir,
                               w->spec->tandem.init == TD_INIT_RANDOM, err);
    } else {
        rc = td_trainer_save(w->train.trainer, m->folder, r->saved_files, &count, err);
    }
    if (rc != TD_OK) {
        return rc;
    }
    tandem__worker__saved__init(&r->saved);
    for (int i = 0; i < count; i++) {
        tandem__worker__saved_file__init(&r->file[i]);
        r->file[i].name = r->saved_files[i].name;
        r->file[i].digest = r->saved_files[i].digest;
        r->file[i].size = r->saved_files[i].size;
        r->file_ptr[i] = &r->file[i];
    }
    r->saved.files = r->file_ptr;
    r->saved.n_files = (size_t)count;
    r->frame.body_case = TANDEM__WORKER__FRAME__BODY_SAVED;
    r->frame.saved = &r->saved;
    return TD_OK;
}

static enum td_rc on_finish(struct td_worker *w, const Tandem__Worker__Finish *m,
                            struct td_reply *r, struct td_err *err) {
    struct td_round_key key = key_of(m->key);
    enum td_rc rc = td_trainer_finish(w->train.trainer, &key, m->lineage, err);
    if (rc != TD_OK) {
        return rc;
    }
    struct td_train_seat *s = &w->train;
    s->round = s->prep;
    fold_into(&s->round, &s->steps);
    return reach_version(w, m->key->ref_offset, m->key->ref_crc, r, err);
}

enum td_rc td_train_seat_handle(struct td_worker *w, const td_frame *f, const int *fds,
                                struct td_reply *r, struct td_err *err) {
    switch ((int)f->body_case) {
    case TANDEM__WORKER__FRAME__BODY_RING:
        td_heartbeat_doing(w->heartbeat, TD_DOING_RING);
        return on_ring(w, f->ring, r, err);
    case TANDEM__WORKER__FRAME__BODY_LOAD:
        td_heartbeat_doing(w->heartbeat, TD_DOING_LOAD);
        return on_load(w, f->load, r, err);
    case TANDEM__WORKER__FRAME__BODY_PREP:
        td_heartbeat_doing(w->heartbeat, TD_DOING_PREP);
        if (f->fds != 1 || !f->prep->key) {
            return td_fail(err, TD_EINVAL, "Prep without its batch or key");
        }
        return on_prep(w, f->prep, fds[0], r, err);
    case TANDEM__WORKER__FRAME__BODY_STEP:
        td_heartbeat_doing(w->heartbeat, TD_DOING_STEP);
        return f->step->key ? on_step(w, f->step, r, err)
                            : td_fail(err, TD_EINVAL, "Step without a key");
    case TANDEM__WORKER__FRAME__BODY_FINISH:
        td_heartbeat_doing(w->heartbeat, TD_DOING_FINISH);
        return f->finish->key ? on_finish(w, f->finish, r, err)
                              : td_fail(err, TD_EINVAL, "Finish without a key");
    case TANDEM__WORKER__FRAME__BODY_DIGEST:
        return on_digest(w, r, err);
    case TANDEM__WORKER__FRAME__BODY_SAVE:
        td_heartbeat_doing(w->heartbeat, TD_DOING_SAVE);
        return on_save(w, f->save, r, err);
    default:
        return td_fail(err, TD_EUNSUPPORTED, "a train seat takes no frame %d", (int)f->body_case);
    }
}

void td_train_seat_status(struct td_worker *w, struct td_reply *r) {
    struct td_train_seat *s = &w->train;
    struct td_train_status st;
    td_trainer_status(s->trainer, &st);
    Tandem__Worker__Status *out = &r->status;
    out->generation = st.generation;
    tandem__worker__version__init(&r->version);
    r->version.lineage = st.lineage;
    r->version.step = st.step;
    out->version = &r->version;
    if (st.prepped) {
        out->ref_offset = (int64_t)st.ref_offset;
        out->ref_crc = st.ref_crc;
    }
    out->prepped = st.prepped;
    out->applied = st.applied;
    out->updates = st.updates;
    out->finished = s->finished;
    out->weight_digest = s->weight_digest;
    out->state_digest = s->state_digest;
    out->finished_ref_offset = s->finished_ref_offset;
    out->finished_ref_crc = s->finished_ref_crc;
    out->ring_address = s->address ? s->address : out->ring_address;
    out->weights_address = (char *)td_weights_server_address(s->server);
    r->metrics = s->round;
    point_at_metrics(r);
    out->round_metrics = r->metric_ptr;
    out->n_round_metrics = (size_t)r->metrics.count;
}
