// What `tandem run` says at its start and end: see run_result.h.
#include "cli/run_result.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"

enum { NUMBER_BYTES_MAX = 64 };

const struct td_job_state *td_run_found_job(const struct td_run_dir *d) {
    const struct td_journal_state *s = &d->found.state;
    return s->job_count ? s->jobs[0] : NULL;
}

static void print_checkpoint(const struct td_run_dir *d) {
    char *path = td_asprintf("%s/latest_checkpointed_iteration.txt", d->save_dir);
    struct td_buf text = {0};
    struct td_err err;
    if (td_file_read(path, NUMBER_BYTES_MAX, &text, &err) == TD_OK) {
        printf("checkpoint: %s/global_step_%s\n", d->save_dir, td_buf_str(&text));
    } else {
        printf("no checkpoint for users was written (trainer.save_freq)\n");
    }
    td_buf_fini(&text);
    td_free(path);
    printf("metrics: %s/metrics.jsonl\n", d->path);
}

int td_run_check_found(const struct td_run_dir *d, const struct td_buf *canonical, bool *done) {
    const struct td_job_state *job = td_run_found_job(d);
    if (!job) {
        return TD_CLI_OK;
    }
    struct td_buf differing = {0};
    int n = td_job_spec_diff(job->job->spec.data, job->job->spec.len, canonical->data,
                             canonical->len, &differing);
    if (n != 0) {
        fprintf(stderr,
                "tandem run: %s holds a job with other settings:\n%sgive the old settings to go "
                "on, another tandem.run_dir, or --fresh to start over\n",
                d->path,
                n > 0 ? td_buf_str(&differing) : "(settings that this build cannot read)\n");
        td_buf_fini(&differing);
        return TD_CLI_USAGE;
    }
    td_buf_fini(&differing);
    if (job->outcome == TANDEM__JOURNAL__OUTCOME__OUTCOME_NONE) {
        return TD_CLI_OK;
    }
    *done = true;
    td_run_dir_tidy(d, job);
    if (job->outcome == TANDEM__JOURNAL__OUTCOME__SUCCEEDED) {
        printf("finished before: %" PRIu64 " steps\n", job->head.step);
        print_checkpoint(d);
        return TD_CLI_OK;
    }
    fprintf(stderr, "this job %s at step %" PRIu64 ": %s\nuse --fresh to start over\n",
            job->outcome == TANDEM__JOURNAL__OUTCOME__CANCELLED ? "was cancelled" : "failed",
            job->head.step, job->cause);
    return TD_CLI_FAILED;
}

static void add_paths(struct td_buf *out, const struct td_spec_strings *paths) {
    for (int i = 0; i < paths->count; i++) {
        td_buf_printf(out, "%s%s", out->len ? ", " : "", paths->items[i]);
    }
}

// Which of the files that the settings name differ; NULL: none.
static char *differing_file(const struct td_job_data *data, const Tandem__Journal__DataIndex *old) {
    const Tandem__Journal__DataIndex *index = &data->index;
    const struct td_job_spec *spec = data->spec;
    const char *folder = spec->model.path;
    if (old->rows != index->rows || old->data_digest != index->data_digest) {
        struct td_buf paths = {0};
        add_paths(&paths, &spec->data.train_files);
        add_paths(&paths, &spec->data.val_files);
        char *text = td_asprintf("a data file (%s)", td_buf_str(&paths));
        td_buf_fini(&paths);
        return text;
    }
    if (old->tokenizer_digest != index->tokenizer_digest) {
        return td_asprintf("the tokenizer (%s/tokenizer.json)", folder);
    }
    if (old->template_digest != index->template_digest) {
        return td_strdup("the chat template");
    }
    if (old->model_digest != index->model_digest) {
        return td_asprintf("the model folder (%s: config.json or model*.safetensors)", folder);
    }
    return NULL;
}

enum td_rc td_run_check_index(const struct td_run_dir *d, const struct td_job_data *data,
                              struct td_err *err) {
    const struct td_job_state *job = td_run_found_job(d);
    uint64_t log = d->rollouts ? td_log_id(d->rollouts) : 0;
    if (job && job->job->rollout_log != log) {
        return td_fail(err, TD_ECORRUPT,
                       "%s/rollouts holds log %016" PRIx64 ", the job wrote to %016" PRIx64
                       ": put that one back, or use --fresh to start over",
                       d->path, log, job->job->rollout_log);
    }
    char *what = job && job->job->index ? differing_file(data, job->job->index) : NULL;
    enum td_rc rc = what ? td_fail(err, TD_ECORRUPT,
                                   "%s is not what the job in %s began with: put the old one back, "
                                   "or use --fresh to start over",
                                   what, d->path)
                         : TD_OK;
    td_free(what);
    return rc;
}

void td_run_print_start(const struct td_job_spec *spec, const struct td_job_data *data,
                        const struct td_run_dir *d) {
    const struct td_job_state *job = td_run_found_job(d);
    printf("%s job in %s: %" PRIu64 " rows, %" PRIu64 " steps of %lld %s\n",
           spec->tandem.kind == TD_JOB_SFT ? "SFT" : "GRPO", d->path, data->index.rows,
           data->schedule.total_steps, (long long)spec->data.train_batch_size,
           spec->tandem.kind == TD_JOB_SFT ? "rows" : "prompts");
    if (job) {
        printf("goes on at step %" PRIu64 ", round %" PRIu64 " sealed, %zu prompts open\n",
               job->has_head ? job->head.step : 0, job->sealed, job->open_count);
    }
    fflush(stdout);
}

void td_run_print_end(const struct td_run_dir *d, const struct td_job_data *data, int status,
                      const char *cause) {
    switch (status) {
    case TD_CLI_OK:
        printf("done: %" PRIu64 " steps\n", data->schedule.total_steps);
        print_checkpoint(d);
        break;
    case TD_CLI_INTERRUPTED:
        fprintf(stderr, "stopped; the same command goes on from here (run directory %s)\n",
                d->path);
        break;
    default:
        fprintf(stderr, "tandem run: %s\n", cause ? cause : "failed");
        break;
    }
}
