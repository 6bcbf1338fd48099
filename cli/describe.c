// `tandem describe job N`: all there is to know of one job.
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/client.h"
#include "cli/job_text.h"
#include "cli/lists.h"
#include "cli/message_json.h"
#include "cli/table.h"

enum { LABEL = 16, ROUNDS_SHOWN = 20 };

static void put_label(struct td_buf *out, const char *label) {
    td_buf_printf(out, "%-*s", LABEL, label);
}

static void put(struct td_buf *out, const char *label, const char *text) {
    put_label(out, label);
    td_buf_printf(out, "%s\n", *text ? text : "-");
}

static void put_digest(struct td_buf *out, const char *label, uint64_t digest) {
    put_label(out, label);
    if (digest) {
        td_buf_printf(out, "%016" PRIx64 "\n", digest);
    } else {
        td_buf_puts(out, "-\n");
    }
}

static void put_metrics(struct td_buf *out, const char *text) {
    json_t *root = json_loads(text, 0, NULL), *value;
    const char *key;
    if (json_object_size(root)) {
        td_buf_puts(out, "Metrics:\n");
    }
    json_object_foreach(root, key, value) {
        if (json_is_number(value)) {
            td_buf_printf(out, "  %-40s %.6g\n", key, json_number_value(value));
        }
    }
    json_decref(root);
}

static void put_job(struct td_buf *out, const Tandem__V1__Job *j) {
    put_label(out, "Job:");
    td_buf_printf(out, "%" PRIu64 "\n", j->id);
    put(out, "Kind:", j->kind);
    put(out, "State:", td_job_state_name(j->state));
    if (j->cause[0]) {
        put(out, "Cause:", j->cause);
    }
    put_label(out, "Progress:");
    td_job_progress(j, out);
    td_buf_puts(out, "\n");
    if (j->waits_for[0]) {
        put_label(out, "Waits for:");
        td_buf_printf(out, "%s, for ", j->waits_for);
        td_put_duration(out, j->waits_since_ms);
        td_buf_puts(out, "\n");
    }
    put_label(out, "Lineage:");
    td_buf_printf(out, "%" PRIu64 "\n", j->lineage);
    put_digest(out, "Weights:", j->weight_digest);
    put_digest(out, "Full state:", j->state_digest);
    put(out, "Folder:", j->folder);
    put(out, "Request id:", j->request_id);
}

// The newest ones: a job may have had very many.
static void put_rounds(struct td_buf *out, const Tandem__V1__ListRoundsResponse *r) {
    size_t skipped = r->n_rounds > ROUNDS_SHOWN ? r->n_rounds - ROUNDS_SHOWN : 0;
    if (r->n_rounds == 0) {
        put(out, "Rounds:", "");
        return;
    }
    td_buf_puts(out, skipped ? "Rounds (the newest; `tandem get rounds` has all):\n" : "Rounds:\n");
    td_list_rounds(r->rounds + skipped, r->n_rounds - skipped, out);
}

static int describe(struct td_client *client, uint64_t id, enum td_cli_output output) {
    Tandem__V1__Job *job = NULL;
    Tandem__V1__ListRoundsResponse *rounds = NULL;
    struct td_buf out = {0};
    int status = td_client_get_job(client, id, &job);
    if (status == TD_CLI_OK && output == TD_CLI_JSON) {
        td_message_json(&job->base, false, &out);
    } else if (status == TD_CLI_OK) {
        status = td_client_list_rounds(client, id, &rounds);
        put_job(&out, job);
    }
    if (rounds) {
        put_rounds(&out, rounds);
        put_metrics(&out, job->metrics);
        tandem__v1__list_rounds_response__free_unpacked(rounds, NULL);
    }
    if (status == TD_CLI_OK) {
        fputs(td_buf_str(&out), stdout);
    }
    if (job) {
        tandem__v1__job__free_unpacked(job, NULL);
    }
    td_buf_fini(&out);
    return status;
}

int td_cli_describe(int argc, char **argv) {
    return td_client_job_command(argc, argv, describe);
}
