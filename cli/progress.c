// Progress lines: see progress.h.
#include "cli/progress.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/mem.h"

enum { LINE_EVERY_MS = 1000, STALL_MS = 5000, STALL_AGAIN_MS = 10000 };

struct td_progress {
    uint64_t total, first, last;
    int64_t started_ms, printed_ms, closed_ms, stall_ms;
    double tokens; // trained since this process started
    double accuracy;
    bool has_accuracy, terminal, open_line;
};

struct td_progress *td_progress_new(uint64_t total_steps, uint64_t first_step, int64_t now_ms) {
    struct td_progress *p = td_alloc(sizeof *p);
    *p = (struct td_progress){.total = total_steps,
                              .first = first_step,
                              .last = first_step,
                              .started_ms = now_ms,
                              .closed_ms = now_ms,
                              .terminal = isatty(STDOUT_FILENO) == 1};
    return p;
}

void td_progress_free(struct td_progress *p) {
    td_free(p);
}

void td_progress_end(struct td_progress *p) {
    if (p->open_line) {
        printf("\n");
        p->open_line = false;
    }
    fflush(stdout);
}

static bool number(const json_t *root, const char *key, double *out) {
    const json_t *v = json_object_get(root, key);
    if (json_is_number(v)) {
        *out = json_number_value(v);
    }
    return json_is_number(v);
}

static void find_accuracy(struct td_progress *p, json_t *root) {
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value) {
        if (strncmp(key, "val-core/", 9) == 0 && strstr(key, "/mean@") && json_is_number(value)) {
            p->accuracy = json_number_value(value);
            p->has_accuracy = true;
            return;
        }
    }
}

static void print_line(struct td_progress *p, const json_t *root, uint64_t step, int64_t now_ms) {
    double v, elapsed = (double)(now_ms - p->started_ms) * 1e-3;
    printf("%sstep %" PRIu64 "/%" PRIu64, p->terminal ? "\r\033[K" : "", step, p->total);
    if (number(root, "train/loss", &v)) {
        printf("  loss %.4f", v);
    }
    if (number(root, "critic/score/mean", &v)) {
        printf("  reward %.3f", v);
    }
    if (p->has_accuracy) {
        printf("  accuracy %.3f", p->accuracy);
    }
    if (number(root, "actor/kl_loss", &v)) {
        printf("  KL %.4f", v);
    } else if (number(root, "actor/ppo_kl", &v)) {
        printf("  KL %.4f", v);
    }
    if (elapsed > 0) {
        printf("  %.0f tokens/s", p->tokens / elapsed);
    }
    if (step > p->first && step < p->total) {
        double left = elapsed / (double)(step - p->first) * (double)(p->total - step);
        printf("  ETA %.0f s", left);
    }
    if (p->terminal) {
        p->open_line = true;
    } else {
        printf("\n");
    }
    fflush(stdout);
}

void td_progress_step(struct td_progress *p, uint64_t step, const char *json, int64_t now_ms) {
    json_t *root = json_loads(json, 0, NULL);
    double tokens = 0;
    if (step > p->first && number(root, "perf/total_num_tokens", &tokens)) {
        p->tokens += tokens;
    }
    find_accuracy(p, root);
    p->last = step;
    p->closed_ms = now_ms;
    p->stall_ms = 0;
    if (p->terminal || step == p->total || step == 0 || now_ms - p->printed_ms >= LINE_EVERY_MS) {
        p->printed_ms = now_ms;
        print_line(p, root, step, now_ms);
    }
    json_decref(root);
}

void td_progress_waits(struct td_progress *p, const char *what, int64_t since_ms, int64_t now_ms) {
    int64_t quiet = now_ms - p->closed_ms;
    if (quiet < STALL_MS || (p->stall_ms && now_ms - p->stall_ms < STALL_AGAIN_MS)) {
        return;
    }
    p->stall_ms = now_ms;
    td_progress_end(p);
    printf("round %" PRIu64 " waits for %.1f s: %s\n", p->last + 1,
           (double)(now_ms - since_ms) * 1e-3, what);
    fflush(stdout);
}
