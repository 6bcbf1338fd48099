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

enum td_rc td_run_check_index(const struct td_run_dir *d, const Tandem__Journal__DataIndex *index,
                              struct td_err *err) {
    const struct td_job_state *job = td_run_found_job(d);
    if (!job || !job->job->index) {
        return TD_OK;
    }
    const Tandem__Journal__DataIndex *old = job->job->index;
    const char *what = NULL;
    if (old->rows != index->rows || old->data_digest != index->data_digest) {
        what = "a file of data.train_files or data.val_files";
    } else if (old->tokenizer_digest != index->tokenizer_digest) {
        what = "the tokenizer (tokenizer.json of model.path)";
    } else if (old->template_digest != index->template_digest) {
        what = "the chat template";
    } else if (old->model_digest != index->model_digest) {
        what = "the model folder (config.json or weights of model.path)";
    }
    return what ? td_fail(err, TD_ECORRUPT,
                          "%s is not what the job in %s began with: put the old one back, or use "
                          "--fresh to start over",
                          what, d->path)
                : TD_OK;
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
