// `tandem submit`: checks a job file here, sends it to the cluster, and follows it if asked to.
#include <inttypes.h>
#include <string.h>
#include <sys/random.h>

#include "cli/cli.h"
#include "cli/client.h"
#include "cli/job_paths.h"
#include "cli/message_json.h"
#include "cli/watch.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/spec/job_spec.h"

struct submit {
    struct td_client_opts client;
    const char *path, *request_id;
    bool wait, watch;
    int64_t within_ms;
    const char **overrides; // of the command line; points into argv
    size_t override_count;
    struct td_buf text;
    struct td_job_paths paths;
};

// The file as it is sent, so that what is checked here is what is checked there. "-" is stdin.
static int load(struct submit *s) {
    const char *name = strcmp(s->path, "-") == 0 ? "/dev/stdin" : s->path;
    struct td_err err = {0};
    if (td_file_read(name, TD_SPEC_FILE_MAX, &s->text, &err) != TD_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return TD_CLI_USAGE;
    }
    if (strlen(td_buf_str(&s->text)) != s->text.len) {
        fprintf(stderr, "%s: holds a zero byte, so it is no text\n", s->path);
        return TD_CLI_USAGE;
    }
    struct td_spec_text text = {s->path, td_buf_str(&s->text), s->text.len, s->overrides,
                                s->override_count};
    struct td_spec_notes notes = {0};
    struct td_job_spec *spec = NULL;
    enum td_rc rc = td_job_spec_parse(&text, &spec, &notes, &err);
    fputs(td_buf_str(&notes.errors), stderr);
    fputs(td_buf_str(&notes.warnings), stderr);
    rc = rc == TD_OK ? td_cli_check_rewards(spec, &err) : rc;
    rc = rc == TD_OK ? td_job_paths_find(spec, &s->paths, &err) : rc;
    if (rc != TD_OK && notes.error_count == 0) {
        fprintf(stderr, "%s: %s\n", s->path, err.msg);
    }
    td_job_spec_free(spec);
    td_spec_notes_fini(&notes);
    return rc == TD_OK ? TD_CLI_OK : TD_CLI_USAGE;
}

static int send(struct submit *s, struct td_client *client, Tandem__V1__Job **job) {
    char random[33];
    uint64_t id[2];
    if (getrandom(id, sizeof id, 0) != (ssize_t)sizeof id) {
        fprintf(stderr, "tandem submit: no random numbers; give --request-id\n");
        return TD_CLI_FAILED;
    }
    snprintf(random, sizeof random, "%016" PRIx64 "%016" PRIx64, id[0], id[1]);
    size_t n = s->override_count + s->paths.count;
    char **overrides = td_alloc_array(n + 1, sizeof *overrides);
    for (size_t i = 0; i < n; i++) {
        overrides[i] = i < s->override_count ? (char *)s->overrides[i]
                                             : s->paths.overrides[i - s->override_count];
    }
    Tandem__V1__SubmitJobRequest request = TANDEM__V1__SUBMIT_JOB_REQUEST__INIT;
    request.request_id = s->request_id ? (char *)s->request_id : random;
    request.job_file = (char *)td_buf_str(&s->text);
    request.name = (char *)s->path;
    request.overrides = overrides;
    request.n_overrides = n;
    struct td_client_call call = {"SubmitJob", &request.base, &tandem__v1__job__descriptor, true};
    int status = td_client_call(client, &call, (ProtobufCMessage **)job);
    td_free(overrides);
    return status;
}

static void tell(const struct submit *s, const Tandem__V1__Job *job) {
    if (s->client.output == TD_CLI_JSON) {
        struct td_buf out = {0};
        td_message_json(&job->base, false, &out);
        fputs(td_buf_str(&out), stdout);
        td_buf_fini(&out);
    } else {
        printf("job %" PRIu64 " submitted\n", job->id);
    }
    fflush(stdout);
}

static int submit(struct submit *s) {
    struct td_client *client = NULL;
    Tandem__V1__Job *job = NULL;
    int status = load(s);
    if (status == TD_CLI_OK) {
        status = td_client_new(&s->client, &client);
    }
    if (status == TD_CLI_OK) {
        status = send(s, client, &job);
    }
    if (status == TD_CLI_OK) {
        bool quiet = s->client.output == TD_CLI_JSON && (s->wait || s->watch);
        if (!quiet) {
            tell(s, job);
        }
        struct td_watch_job watch = {.job = job->id,
                                     .within_ms = s->within_ms,
                                     .output = s->client.output,
                                     .silent = !s->watch};
        if (s->wait || s->watch) {
            status = td_watch_job(client, &watch);
        }
        tandem__v1__job__free_unpacked(job, NULL);
    }
    td_client_free(client);
    return status;
}

int td_cli_submit(int argc, char **argv) {
    struct submit s = {.client = {.command = argv[0], .timeout_ms = TD_CLIENT_TIMEOUT_MS},
                       .within_ms = -1};
    const struct td_cli_option options[] = {
        {"--file", 'f', TD_CLI_TEXT, &s.path},
        {"--request-id", 0, TD_CLI_TEXT, &s.request_id},
        {"--wait", 0, TD_CLI_FLAG, &s.wait},
        {"--watch", 'w', TD_CLI_FLAG, &s.watch},
        {"--wait-timeout", 0, TD_CLI_SECONDS, &s.within_ms},
        TD_CLIENT_OPTIONS(s.client),
        {0},
    };
    int status = td_cli_options(&argc, argv, options);
    if (status == TD_CLI_OK && !s.path) {
        fprintf(stderr, "tandem submit: which job? give -f JOB.yaml\n");
        status = TD_CLI_USAGE;
    }
    if (status == TD_CLI_OK) {
        s.overrides = (const char **)(argv + 1);
        s.override_count = (size_t)argc - 1;
        status = submit(&s);
    }
    td_job_paths_fini(&s.paths);
    td_buf_fini(&s.text);
    return status;
}
