// Numbers of metrics.jsonl: see metrics.h.
#include "cli/metrics.h"

#include <jansson.h>
#include <string.h>

static bool number(const json_t *root, const char *key, double *out) {
    const json_t *v = json_object_get(root, key);
    if (json_is_number(v)) {
        *out = json_number_value(v);
    }
    return json_is_number(v);
}

static void find_accuracy(struct td_metrics *m, json_t *root) {
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value) {
        if (strncmp(key, "val-core/", 9) == 0 && strstr(key, "/mean@") && json_is_number(value)) {
            m->accuracy = json_number_value(value);
            m->has_accuracy = true;
            return;
        }
    }
}

void td_metrics_read(const char *json, struct td_metrics *m) {
    json_t *root = json_loads(json, 0, NULL);
    m->has_loss = number(root, "train/loss", &m->loss);
    m->has_reward = number(root, "critic/score/mean", &m->reward);
    m->has_kl = number(root, "actor/kl_loss", &m->kl) || number(root, "actor/ppo_kl", &m->kl);
    m->has_tokens = number(root, "perf/total_num_tokens", &m->tokens);
    find_accuracy(m, root);
    json_decref(root);
}

void td_metrics_print(const struct td_metrics *m, struct td_buf *out) {
    if (m->has_loss) {
        td_buf_printf(out, "  loss %.4f", m->loss);
    }
    if (m->has_reward) {
        td_buf_printf(out, "  reward %.3f", m->reward);
    }
    if (m->has_accuracy) {
        td_buf_printf(out, "  accuracy %.3f", m->accuracy);
    }
    if (m->has_kl) {
        td_buf_printf(out, "  KL %.4f", m->kl);
    }
}
