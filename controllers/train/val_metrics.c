// Validation scores as verl's metrics: see val_metrics.h. Pure.
#include "controllers/train/val_metrics.h"

#include <stdio.h>
#include <string.h>

#include "lib/base/mem.h"

struct source {
    const char *name;
    double sum;
    uint64_t n;
};

static void add_row(struct source *sources, size_t *count, const struct td_row *row,
                    const Tandem__Sync__EvalScore *e) {
    size_t i = 0;
    while (i < *count && strcmp(sources[i].name, row->data_source) != 0) {
        i++;
    }
    if (i == *count) {
        if (*count == TD_VAL_SOURCES_MAX) {
            return;
        }
        sources[(*count)++] = (struct source){.name = row->data_source};
    }
    double sum = 0;
    for (size_t k = 0; k < e->n_score; k++) {
        sum += e->score[k];
    }
    sources[i].sum += e->n_score ? sum / (double)e->n_score : 0;
    sources[i].n++;
}

void td_val_metrics(const struct td_job_data *data, const Tandem__Sync__Orders *orders,
                    struct td_metrics *out) {
    if (!orders || !data->val) {
        return;
    }
    struct source sources[TD_VAL_SOURCES_MAX] = {0};
    size_t count = 0;
    // Rows in order, whatever the order of the scores: a sum must not depend on who was fast.
    uint64_t rows = td_dataset_rows(data->val);
    const Tandem__Sync__EvalScore **of_row = td_alloc_array(rows, sizeof(void *));
    for (size_t i = 0; i < orders->n_eval; i++) {
        if (orders->eval[i]->index < rows) {
            of_row[orders->eval[i]->index] = orders->eval[i];
        }
    }
    for (uint64_t row = 0; row < rows; row++) {
        struct td_row r;
        td_dataset_row(data->val, row, &r);
        if (of_row[row]) {
            add_row(sources, &count, &r, of_row[row]);
        }
    }
    td_free(of_row);
    for (size_t i = 0; i < count; i++) {
        char name[TD_METRIC_NAME_MAX];
        snprintf(name, sizeof name, "val-core/%.60s/reward/mean@%lld", sources[i].name,
                 (long long)data->spec->rollout.val_kwargs.n);
        td_metrics_add(out, name, sources[i].sum / (double)sources[i].n, TD_FOLD_LAST);
    }
}
