// Training speed of a model folder on the CPU backend: rounds of one batch through the trainer, as
// a worker runs them: prep (GRPO: log-probs of all trained tokens), an update, finish with digests.
// GRPO's first update is an empty one, since rows of the first need no log-probs beforehand. Prints
// one JSON line. A folder without weights gets random ones.
//
//   bench_train FOLDER [sft=0] [rows=512] [length=8] [micro=8192] [threads=2] [repeat=5]
//
// One thread is measured in its own processor time, which a crowded machine bends little; several
// in wall time. Row i has length − i % 4 tokens; the second half of each is trained.
// bench/torch_peer.py makes the same rows.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench/settings.h"
#include "lib/base/mem.h"
#include "workers/engine/train.h"

enum { SFT, ROWS, LENGTH, MICRO, THREADS, REPEAT, SETTINGS };

struct bench {
    struct setting set[SETTINGS];
    struct td_backend *be;
    struct td_model *model;
    struct td_trainer *trainer;
    uint32_t tokens;
    int batch; // memfd
};

struct seconds { // of one round, by phase
    double prep, step, finish;
};

static enum td_rc open_all(struct bench *b, const char *dir, struct td_err *err) {
    struct td_model_config shape;
    struct td_train_config how = {
        .sft = b->set[SFT].value != 0,
        .temperature = 1,
        .micro_batch_tokens = b->set[MICRO].value,
        .lr = 1e-5,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .eps = 1e-8,
        .grad_clip = 1,
        .loss = {.clip_low = 0.2, .clip_high = 0.2, .clip_c = 3, .agg = TD_AGG_TOKEN_MEAN}};
    enum td_rc rc = td_model_config_load(dir, &shape, err);
    rc = rc ? rc : td_backend_cpu_new((int)b->set[THREADS].value, NULL, &b->be, err);
    rc = rc ? rc : td_model_new(b->be, &shape, &b->model, err);
    rc = rc ? rc : td_trainer_new(b->be, b->model, &how, &b->trainer, err);
    if (rc != TD_OK) {
        return rc;
    }
    rc = td_weights_load(b->model, td_trainer_weights(b->trainer), dir, err);
    if (rc == TD_ENOENT) {
        td_weights_random(b->model, td_trainer_weights(b->trainer), 1);
        rc = TD_OK;
    }
    return rc ? rc : td_trainer_load(b->trainer, 1, 0, NULL, err);
}

static void close_all(struct bench *b) {
    td_trainer_free(b->trainer);
    td_model_free(b->model);
    td_backend_free(b->be);
    if (b->batch >= 0) {
        close(b->batch);
    }
}

static uint32_t updates_of(const struct bench *b) {
    return b->set[SFT].value ? 1 : 2;
}

static enum td_rc make_batch(struct bench *b, struct td_err *err) {
    uint32_t rows = (uint32_t)b->set[ROWS].value, length = (uint32_t)b->set[LENGTH].value, at = 0;
    uint32_t vocab = (uint32_t)td_model_config(b->model)->vocab_size,
             mini[4] = {b->set[SFT].value ? 0 : rows, rows, 0, rows};
    uint32_t *start = td_alloc_array(rows + 1, sizeof *start);
    int32_t *ids = td_alloc_array((size_t)rows * length, sizeof *ids);
    uint8_t *mask = td_alloc_array((size_t)rows * length, 1);
    float *logp = td_alloc_array((size_t)rows * length, sizeof *logp);
    double *advantage = td_alloc_array(rows, sizeof *advantage);
    double trained[2] = {0}, sequences[2] = {rows, rows};
    for (uint32_t r = 0; r < rows; r++) {
        uint32_t n = length - r % 4;
        start[r] = at;
        advantage[r] = r % 2 ? 1 : -1;
        for (uint32_t i = 0; i < n; i++, at++) {
            ids[at] = (int32_t)((r * 31 + i * 7) % vocab);
            mask[at] = i >= n / 2;
            logp[at] = mask[at] ? -1 : 0;
            trained[0] += mask[at];
        }
    }
    start[rows] = b->tokens = at;
    trained[1] = trained[0];
    const struct td_batch batch = {.rows = rows,
                                   .tokens = at,
                                   .updates = updates_of(b),
                                   .row_start = start,
                                   .ids = ids,
                                   .loss_mask = mask,
                                   .rollout_logp = logp,
                                   .advantage = advantage,
                                   .mini = mini,
                                   .token_count = trained,
                                   .sequence_count = sequences};
    enum td_rc rc = td_batch_write(&batch, &b->batch, err);
    void *all[] = {start, ids, mask, logp, advantage};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        td_free(all[i]);
    }
    return rc;
}

static double seconds_now(const struct bench *b) {
    struct timespec t;
    clock_gettime(b->set[THREADS].value == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double since(const struct bench *b, double *from) {
    double now = seconds_now(b), span = now - *from;
    *from = now;
    return span;
}

static void keep_best(double *best, double seconds) {
    *best = *best == 0 || seconds < *best ? seconds : *best;
}

static enum td_rc run_round(struct bench *b, uint64_t round, struct seconds *out,
                            struct td_err *err) {
    struct td_round_key key = {.generation = 1, .ref_offset = round, .ref_crc = 1};
    struct td_metrics metrics = {0};
    struct td_batch *batch = NULL;
    double at = seconds_now(b);
    enum td_rc rc = td_batch_map(b->batch, &batch, err);
    rc = rc ? rc : td_trainer_prep(b->trainer, &key, batch, &metrics, err);
    out->prep = since(b, &at);
    for (uint32_t k = 1; rc == TD_OK && k <= updates_of(b); k++) {
        rc = td_trainer_step(b->trainer, &key, k, 0, &metrics, err);
        out->step = since(b, &at); // the last one's
    }
    rc = rc ? rc : td_trainer_finish(b->trainer, &key, 0, err);
    if (rc == TD_OK) {
        uint64_t weights, state;
        td_trainer_digest(b->trainer, &weights, &state);
    }
    out->finish = since(b, &at);
    return rc;
}

int main(int argc, char **argv) {
    struct bench b = {.set = {{"sft", 0, 0, 1000000},
                              {"rows", 512, 1, 1000000},
                              {"length", 8, 6, 1000000},
                              {"micro", 8192, 1, 1000000},
                              {"threads", 2, 1, 1000000},
                              {"repeat", 5, 1, 1000000}},
                      .batch = -1};
    struct td_err err = {0};
    settings_parse("FOLDER", b.set, SETTINGS, argc, argv);
    struct seconds best = {0};
    enum td_rc rc = open_all(&b, argv[1], &err);
    rc = rc ? rc : make_batch(&b, &err);
    for (long i = 0; rc == TD_OK && i <= b.set[REPEAT].value; i++) { // the first warms up
        struct seconds s = {0};
        rc = run_round(&b, (uint64_t)i + 1, &s, &err);
        if (i > 0) {
            keep_best(&best.prep, s.prep);
            keep_best(&best.step, s.step);
            keep_best(&best.finish, s.finish);
        }
    }
    if (rc == TD_OK) {
        printf("{\"bench\": \"train\", \"kind\": \"%s\", \"rows\": %ld, \"length\": %ld, "
               "\"tokens\": %u, \"threads\": %ld, \"prep_s\": %.6f, \"step_s\": %.6f, "
               "\"finish_s\": %.6f, \"score_tokens_per_s\": %.0f, \"train_tokens_per_s\": %.0f}\n",
               b.set[SFT].value ? "sft" : "grpo", b.set[ROWS].value, b.set[LENGTH].value, b.tokens,
               b.set[THREADS].value, best.prep, best.step, best.finish,
               b.set[SFT].value ? 0.0 : (double)b.tokens / best.prep, (double)b.tokens / best.step);
    } else {
        fprintf(stderr, "bench_train: %s\n", err.msg);
    }
    close_all(&b);
    return rc == TD_OK ? 0 : 1;
}
