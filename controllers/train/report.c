// What the train controller tells the leader: the whole of it, each time. Whatever was computed
// names the generation, ref and lineage it was computed in (rule A5).
#include <string.h>

#include "controllers/common/proto.h"
#include "controllers/train/trainc_int.h"
#include "lib/base/mem.h"
#include "lib/base/plant.h"

static bool all_finished(const struct td_trainc *x, uint64_t step, struct td_pos ref) {
    for (uint32_t i = 0; i < x->rank_count; i++) {
        const struct td_rank *r = &x->ranks[i];
        bool same = r->digested && !r->applied && r->version.step == step &&
                    r->weight_digest == x->ranks[0].weight_digest &&
                    r->state_digest == x->ranks[0].state_digest;
        bool under = step == 0 || (r->finished && td_pos_equal(r->finished_ref, ref)) ||
                     TD_PLANTED(RESEAL_VOIDS);
        if (!same || !under) {
            return false;
        }
    }
    return true;
}

// The version after the head, whole on all ranks, its metric line durable.
static void add_finished(const struct td_trainc *x, const struct td_job_state *j,
                         Tandem__Sync__TrainReport *t) {
    uint64_t step = j->has_head ? j->head.step + 1 : 0;
    const struct td_round_state *r = step ? td_job_round(j, step) : NULL;
    struct td_pos ref = r ? r->ref : (struct td_pos){.offset = -1};
    bool line = td_store_has_line(x, step) || td_store_staged(x, step);
    if ((step && !r) || !td_ranks_loaded(x) || !all_finished(x, step, ref) || !line) {
        return;
    }
    Tandem__Sync__Finished *f = td_alloc(sizeof *f);
    tandem__sync__finished__init(f);
    f->ref = step ? td_proto_pos(ref) : NULL;
    f->version = td_proto_version((struct td_version){x->lineage, step});
    f->weight_digest = x->ranks[0].weight_digest;
    f->state_digest = x->ranks[0].state_digest;
    t->finished = f;
}

static void add_missing(const struct td_trainc *x, Tandem__Sync__TrainReport *t) {
    if (!x->missing_round) {
        return;
    }
    t->missing_round = x->missing_round;
    t->missing_ref = td_proto_pos(x->missing_ref);
    t->missing_cause = td_strdup(x->missing_cause);
    t->n_missing = x->missing_count;
    t->missing = td_memdup(x->missing, x->missing_count * sizeof *x->missing);
}

// Whoever is up serves what it reached, whatever becomes of the generation.
static void add_weights(const struct td_trainc *x, Tandem__Sync__TrainReport *t) {
    t->weights = td_alloc_array(TD_TRAIN_RANKS_MAX, sizeof *t->weights);
    for (uint32_t i = 0; i < x->rank_count && i < x->config.workers; i++) {
        if (x->ranks[i].weights) {
            t->weights[t->n_weights++] = td_strdup(x->ranks[i].weights);
        }
    }
}

static Tandem__Sync__TrainReport *train_report(struct td_trainc *x, const struct td_job_state *j) {
    Tandem__Sync__TrainReport *t = td_alloc(sizeof *t);
    tandem__sync__train_report__init(t);
    const struct td_gang_state *g = td_trainc_gang(x);
    t->job = x->job;
    t->gang = g->spec->gang;
    t->generation = x->generation;
    t->lineage = x->lineage;
    t->loaded = td_ranks_loaded(x);
    t->lost = x->lost;
    t->lost_cause = td_strdup(x->lost ? x->lost_cause : "");
    if (x->failed) {
        t->failed = td_strdup(x->failed);
    }
    t->mismatch = td_proto_dup(x->mismatch);
    t->checkpoint = td_proto_dup(x->saved);
    if (!x->lost && !x->mismatch && !x->failed) {
        add_finished(x, j, t);
    }
    add_missing(x, t);
    add_weights(x, t);
    td_arrived_report(x, t);
    t->has_metrics = x->disk_known && x->disk.has_line;
    t->metrics_step = t->has_metrics ? x->disk.step : 0;
    t->metrics_known = td_store_lines_known(x);
    t->saved = !td_store_save_due(x);
    t->n_bad_checkpoints = x->bad_count;
    t->bad_checkpoints = td_memdup(x->bad, x->bad_count * sizeof *x->bad);
    t->waits_for = td_strdup(x->waits_for);
    t->since_ms = x->since_ms;
    return t;
}

void td_report_send(struct td_trainc *x, int64_t now_ms, struct td_trainc_effects *out) {
    const struct td_journal_state *s = &x->follow.state;
    Tandem__Sync__Report *r = td_alloc(sizeof *r);
    tandem__sync__report__init(r);
    r->member = x->config.member;
    r->kind = TANDEM__SYNC__MEMBER_KIND__TRAIN;
    r->journal_id = s->journal_id;
    r->term = x->term > s->term ? x->term : s->term;
    r->build = td_strdup(x->config.build);
    r->device = td_strdup(x->config.device);
    r->workers = x->config.workers;
    for (uint32_t i = 0; i < x->config.workers; i++) {
        r->workers_ready += x->ranks[i].up;
    }
    r->index = td_proto_dup(x->config.index);
    const struct td_job_state *j = td_trainc_job(x);
    if (j && td_follower_ready(&x->follow)) {
        r->train = train_report(x, j);
    }
    uint64_t digest = td_proto_digest(r);
    bool due = !x->report_count || digest != x->report_digest ||
               now_ms - x->reported_ms >= x->config.report_ms;
    if (!due) {
        td_proto_free(r);
        return;
    }
    x->report_digest = digest;
    x->reported_ms = now_ms;
    r->report = ++x->report_count;
    td_trainc_push(out, TD_TC_REPORT)->report = r;
}
