// Episodes over the data of a tiny GRPO job.
#ifndef TD_TESTS_ROLLOUT_SHELL_RIG_H
#define TD_TESTS_ROLLOUT_SHELL_RIG_H

#include <string.h>

#include "controllers/rollout/val_dump.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "tests/unit/cmocka_all.h"
#include "tests/unit/job/tiny_job.h"

struct rig {
    struct tiny_job job;
    struct td_job_data *data;
    struct td_episodes *episodes;
};

static inline void rig_init_with(struct rig *r, const char *const *overrides) {
    struct td_err err;
    tiny_job_new(&r->job, TD_JOB_GRPO, overrides);
    if (td_job_data_load(r->job.spec, &r->data, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
    r->episodes = td_episodes_new();
}

static inline void rig_init(struct rig *r) {
    rig_init_with(r, NULL);
}

static inline void rig_fini(struct rig *r) {
    td_episodes_free(r->episodes);
    td_job_data_free(r->data);
    tiny_job_free(&r->job);
}

static inline struct td_episode *rig_start(struct rig *r, uint64_t ticket, bool eval,
                                           uint64_t index, uint32_t samples) {
    struct td_rolloutc_effect e = {.kind = TD_RC_START_GROUP,
                                   .ticket = ticket,
                                   .job = TINY_JOB_ID,
                                   .worker = 1,
                                   .attempt = {3, 4},
                                   .eval = eval,
                                   .group = {0, index},
                                   .version = {0, 7},
                                   .samples = samples};
    return td_episodes_add(r->episodes, &e, r->data);
}

// What a worker generated, as a frame; texts of at most 256 tokens.
struct generated {
    Tandem__Worker__Generated m;
    Tandem__Worker__Version version;
    int32_t ids[256];
    float logp[256];
};

static inline void generate(struct rig *r, const struct td_episode *g, uint32_t sample,
                            const char *text, struct generated *out) {
    struct td_ids ids = {0};
    assert_int_equal(td_tokenizer_encode(r->data->tokenizer, text, strlen(text), &ids, NULL),
                     TD_OK);
    td_ids_put(&ids, TINY_JOB_EOS);
    assert_true(ids.n <= 256);
    tandem__worker__generated__init(&out->m);
    tandem__worker__version__init(&out->version);
    memcpy(out->ids, ids.v, ids.n * sizeof *ids.v);
    for (size_t i = 0; i < ids.n; i++) {
        out->logp[i] = -0.5f * (float)i;
    }
    out->version.step = 7;
    out->m.sequence = td_episode_sequence(g, sample);
    out->m.ids = out->ids;
    out->m.logp = out->logp;
    out->m.n_ids = out->m.n_logp = ids.n;
    out->m.finish = TANDEM__WORKER__FINISHED__STOP_TOKEN;
    out->m.version = &out->version;
    td_ids_fini(&ids);
}

static inline void rig_score(struct rig *r, struct td_episode *g) {
    struct td_scoring *x = td_scoring_new(g, r->data);
    struct td_err err;
    assert_int_equal(td_scoring_run(x, &err), TD_OK);
    td_scoring_give(x, g);
    td_scoring_free(x);
}

static inline void take(struct rig *r, struct td_episode *g, uint32_t sample, const char *text) {
    struct generated x;
    generate(r, g, sample, text, &x);
    assert_true(td_episode_take(g, &x.m));
}

#endif
