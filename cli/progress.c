// Progress lines: see progress.h.
#include "cli/progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/metrics.h"
#include "lib/base/mem.h"

enum { LINE_EVERY_MS = 1000, STALL_MS = 5000, STALL_AGAIN_MS = 10000 };

struct td_progress {
    uint64_t total, first, last;
    int64_t started_ms, printed_ms, closed_ms, stall_ms;
    double tokens; // trained since this process started
    struct td_metrics metrics;
    bool terminal, open_line;
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

static void print_line(struct td_progress *p, uint64_t step, int64_t now_ms) {
    double elapsed = (double)(now_ms - p->started_ms) * 1e-3;
    struct td_buf numbers = {0};
    td_metrics_print(&p->metrics, &numbers);
    printf("%sstep %" PRIu64 "/%" PRIu64 "%s", p->terminal ? "\r\033[K" : "", step, p->total,
           td_buf_str(&numbers));
    td_buf_fini(&numbers);
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
    td_metrics_read(json, &p->metrics);
    if (step > p->first && p->metrics.has_tokens) {
        p->tokens += p->metrics.tokens;
    }
    p->last = step;
    p->closed_ms = now_ms;
    p->stall_ms = 0;
    if (p->terminal || step == p->total || step == 0 || now_ms - p->printed_ms >= LINE_EVERY_MS) {
        p->printed_ms = now_ms;
        print_line(p, step, now_ms);
    }
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
