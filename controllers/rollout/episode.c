// Groups under way: see episode.h.
#include "controllers/rollout/episode.h"

#include <string.h>

#include "lib/base/check.h"
#include "lib/base/map.h"
#include "lib/base/mem.h"
#include "lib/base/trace.h"

struct td_episodes {
    struct td_map *by_ticket; // to struct td_episode *
};

static void episode_free(struct td_episode *g) {
    for (uint32_t i = 0; i < g->sample_count; i++) {
        td_free(g->samples[i].ids);
        td_free(g->samples[i].logp);
    }
    td_free(g->samples);
    td_buf_fini(&g->record);
    td_free(g);
}

struct td_episodes *td_episodes_new(void) {
    struct td_episodes *e = td_alloc(sizeof *e);
    e->by_ticket = td_map_new();
    return e;
}

void td_episodes_free(struct td_episodes *e) {
    if (!e) {
        return;
    }
    uint64_t value;
    for (size_t at = 0; td_map_next(e->by_ticket, &at, &value);) {
        episode_free((struct td_episode *)(uintptr_t)value);
    }
    td_map_free(e->by_ticket);
    td_free(e);
}

struct td_episode *td_episodes_add(struct td_episodes *e, const struct td_rolloutc_effect *start,
                                   const struct td_job_data *data) {
    td_assert(start->samples >= 1 && start->samples <= TD_EPISODE_SAMPLES_MAX);
    struct td_episode *g = td_alloc(sizeof *g);
    *g = (struct td_episode){.ticket = start->ticket,
                             .job = start->job,
                             .worker = (int)start->worker,
                             .attempt = start->attempt,
                             .eval = start->eval,
                             .group = start->group,
                             .version = start->version,
                             .sample_count = start->samples};
    g->samples = td_alloc_array(start->samples, sizeof *g->samples);
    if (start->eval) {
        td_dataset_row(data->val, start->group.index, &g->row);
    } else {
        td_dataset_at(data->train, start->group.data_epoch, start->group.index, &g->row);
    }
    td_map_put(e->by_ticket, &g->ticket, sizeof g->ticket, (uint64_t)(uintptr_t)g);
    return g;
}

struct td_episode *td_episodes_find(struct td_episodes *e, uint64_t ticket) {
    uint64_t value;
    return td_map_get(e->by_ticket, &ticket, sizeof ticket, &value)
               ? (struct td_episode *)(uintptr_t)value
               : NULL;
}

void td_episodes_remove(struct td_episodes *e, uint64_t ticket) {
    struct td_episode *g = td_episodes_find(e, ticket);
    if (g) {
        td_map_remove(e->by_ticket, &ticket, sizeof ticket);
        episode_free(g);
    }
}

uint64_t td_episode_sequence(const struct td_episode *g, uint32_t sample) {
    return g->ticket * TD_EPISODE_SAMPLES_MAX + sample;
}

uint64_t td_sequence_ticket(uint64_t sequence) {
    return sequence / TD_EPISODE_SAMPLES_MAX;
}

uint32_t td_sequence_sample(uint64_t sequence) {
    return (uint32_t)(sequence % TD_EPISODE_SAMPLES_MAX);
}

bool td_episode_take(struct td_episode *g, const Tandem__Worker__Generated *m) {
    uint32_t i = td_sequence_sample(m->sequence);
    bool right_version = m->version && m->version->lineage == g->version.lineage &&
                         m->version->step == g->version.step;
    bool whole = m->n_ids > 0 && m->n_logp == m->n_ids &&
                 (m->finish == TANDEM__WORKER__FINISHED__STOP_TOKEN ||
                  m->finish == TANDEM__WORKER__FINISHED__LENGTH);
    if (i >= g->sample_count || g->samples[i].done || !whole || !right_version) {
        return false;
    }
    struct td_sample *s = &g->samples[i];
    s->n = (int32_t)m->n_ids;
    s->ids = td_memdup(m->ids, m->n_ids * sizeof *s->ids);
    s->logp = td_memdup(m->logp, m->n_logp * sizeof *s->logp);
    s->clipped = m->finish == TANDEM__WORKER__FINISHED__LENGTH;
    s->done = true;
    g->done++;
    return true;
}

struct td_scoring {
    const struct td_rewards *rewards;
    const char *data_source, *ground_truth;
    uint64_t index;
    uint32_t count;
    struct td_buf *texts; // owned, count
    double *scores;       // owned, count
};

struct td_scoring *td_scoring_new(const struct td_episode *g, const struct td_job_data *data) {
    struct td_scoring *x = td_alloc(sizeof *x);
    *x = (struct td_scoring){.rewards = data->rewards,
                             .data_source = g->row.data_source,
                             .ground_truth = g->row.ground_truth,
                             .index = g->group.index,
                             .count = g->sample_count,
                             .texts = td_alloc_array(g->sample_count, sizeof *x->texts),
                             .scores = td_alloc_array(g->sample_count, sizeof *x->scores)};
    for (uint32_t i = 0; i < x->count; i++) {
        const struct td_sample *s = &g->samples[i];
        td_tokenizer_decode(data->tokenizer, s->ids, (size_t)s->n, true, &x->texts[i]);
    }
    return x;
}

enum td_rc td_scoring_run(struct td_scoring *x, struct td_err *err) {
    enum td_rc rc = TD_OK;
    for (uint32_t i = 0; rc == TD_OK && i < x->count; i++) {
        const struct td_response response = {.data_source = x->data_source,
                                             .ground_truth = x->ground_truth,
                                             .text = td_buf_str(&x->texts[i]),
                                             .n = x->texts[i].len};
        rc = td_rewards_score(x->rewards, &response, &x->scores[i], err);
        if (rc == TD_ELIMIT) {
            td_trace_warn("answer not graded, scores 0", "index=%llu sample=%u cause=\"%s\"",
                          (unsigned long long)x->index, i, err->msg);
            x->scores[i] = 0;
            rc = TD_OK;
        }
    }
    return rc;
}

void td_scoring_give(const struct td_scoring *x, struct td_episode *g) {
    td_assert_op(x->count, ==, g->sample_count);
    for (uint32_t i = 0; i < x->count; i++) {
        g->samples[i].score = x->scores[i];
    }
}

void td_scoring_free(struct td_scoring *x) {
    if (!x) {
        return;
    }
    for (uint32_t i = 0; i < x->count; i++) {
        td_buf_fini(&x->texts[i]);
    }
    td_free(x->texts);
    td_free(x->scores);
    td_free(x);
}
