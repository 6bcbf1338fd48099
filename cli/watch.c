// `tandem watch`: one job or all of them, as they go on. On a terminal a view that is drawn again
// every second; elsewhere one line for each change. See also watch.h.
#include "cli/watch.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/job_text.h"
#include "cli/lists.h"
#include "cli/message_json.h"
#include "lib/base/map.h"
#include "lib/base/crc.h"

enum { REFRESH_MS = 1000, COLUMNS = 80 };

// ---- lines ----

struct lines {
    enum td_cli_output output;
    struct td_map *told; // job → digest of the line printed last
};

static void print_job(const Tandem__V1__Job *job, const struct td_buf *line,
                      enum td_cli_output output) {
    struct td_buf json = {0};
    if (output == TD_CLI_JSON) {
        td_message_json(&job->base, true, &json);
        fputs(td_buf_str(&json), stdout);
    } else {
        printf("%s\n", td_buf_str(line));
    }
    fflush(stdout);
    td_buf_fini(&json);
}

static void on_changed(void *user, const Tandem__V1__Job *job) {
    struct lines *l = user;
    struct td_buf line = {0};
    td_job_line(job, &line);
    uint64_t digest = td_digest64(job->id, line.data, line.len), told = 0;
    if (!td_map_get(l->told, &job->id, sizeof job->id, &told) || told != digest) {
        td_map_put(l->told, &job->id, sizeof job->id, digest);
        print_job(job, &line, l->output);
    }
    td_buf_fini(&line);
}

int td_watch_job(struct td_client *client, const struct td_watch_job *watch) {
    struct lines lines = {watch->output, td_map_new()};
    struct td_client_follow follow = {.job = watch->job,
                                      .within_ms = watch->within_ms,
                                      .changed = watch->silent ? NULL : on_changed,
                                      .user = &lines};
    Tandem__V1__Job *job = NULL;
    int status = td_client_follow(client, &follow, &job);
    if (status == TD_CLI_OK) {
        on_changed(&lines, job); // if it is silent, or the end came with the answer
        status = td_client_exit_of(job);
        tandem__v1__job__free_unpacked(job, NULL);
    } else if (status == TD_CLI_INTERRUPTED) {
        fprintf(stderr, "job %" PRIu64 " goes on; `tandem watch %" PRIu64 "` looks again\n",
                watch->job, watch->job);
    }
    td_map_free(lines.told);
    return status;
}

// Until SIGINT.
static int watch_lines(struct td_client *client, enum td_cli_output output) {
    struct lines lines = {output, td_map_new()};
    int status = TD_CLI_OK;
    while (status == TD_CLI_OK) {
        Tandem__V1__ListJobsResponse *list = NULL;
        status = td_client_list_jobs(client, &list);
        if (status != TD_CLI_OK) {
            break;
        }
        for (size_t i = 0; i < list->n_jobs; i++) {
            on_changed(&lines, list->jobs[i]);
        }
        tandem__v1__list_jobs_response__free_unpacked(list, NULL);
        status = td_client_pause(client, REFRESH_MS);
    }
    td_map_free(lines.told);
    return status;
}

// ---- the view ----

// One screen: each line cut to the width, so that no line wraps and moves the rest down.
static void draw(const struct td_buf *text) {
    struct winsize size = {0};
    size_t columns = COLUMNS, column = 0;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
        columns = size.ws_col;
    }
    struct td_buf out = {0};
    td_buf_puts(&out, "\033[H");
    for (const char *s = td_buf_str(text); *s; s++) {
        column += ((unsigned char)*s & 0xc0) != 0x80;
        if (*s == '\n') {
            td_buf_puts(&out, "\033[K\n");
            column = 0;
        } else if (column <= columns) {
            td_buf_put(&out, s, 1);
        }
    }
    td_buf_puts(&out, "\033[J");
    fputs(td_buf_str(&out), stdout);
    fflush(stdout);
    td_buf_fini(&out);
}

static void put_jobs(Tandem__V1__Job *const *jobs, size_t n, struct td_buf *out) {
    td_list_jobs(jobs, n, out);
    for (size_t i = 0; i < n; i++) {
        if (jobs[i]->state == TANDEM__V1__JOB_STATE__RUNNING) {
            td_buf_puts(out, "\n");
            td_job_line(jobs[i], out);
            td_buf_puts(out, "\n");
        }
    }
}

// job 0: all. *end: the exit status of a job that has ended, else −1.
static int view_once(struct td_client *client, uint64_t job, int *end) {
    struct td_buf text = {0};
    Tandem__V1__ListJobsResponse *list = NULL;
    Tandem__V1__ListMembersResponse *members = NULL;
    Tandem__V1__Job *one = NULL;
    int status = job ? td_client_get_job(client, job, &one) : td_client_list_jobs(client, &list);
    if (status == TD_CLI_OK) {
        status = td_client_list_members(client, &members);
    }
    if (status == TD_CLI_OK) {
        td_buf_printf(&text, "tandem: coordinator %s\n\n", td_client_address(client));
        put_jobs(one ? &one : list->jobs, one ? 1 : list->n_jobs, &text);
        td_buf_puts(&text, "\n");
        td_list_controllers(members->members, members->n_members, &text);
        draw(&text);
        *end = one && td_client_ended(one) ? td_client_exit_of(one) : -1;
    }
    if (one) {
        tandem__v1__job__free_unpacked(one, NULL);
    }
    if (list) {
        tandem__v1__list_jobs_response__free_unpacked(list, NULL);
    }
    if (members) {
        tandem__v1__list_members_response__free_unpacked(members, NULL);
    }
    td_buf_fini(&text);
    return status;
}

static int view(struct td_client *client, uint64_t job) {
    int status = TD_CLI_OK, end = -1;
    printf("\033[2J");
    while (status == TD_CLI_OK && end < 0) {
        status = view_once(client, job, &end);
        if (status == TD_CLI_OK && end < 0) {
            status = td_client_pause(client, REFRESH_MS);
        }
    }
    return status == TD_CLI_OK ? end : status;
}

static bool can_draw(void) {
    const char *term = getenv("TERM");
    return isatty(STDOUT_FILENO) == 1 && term && *term && strcmp(term, "dumb") != 0;
}

int td_cli_watch(int argc, char **argv) {
    struct td_client_opts opts = {.command = argv[0], .timeout_ms = TD_CLIENT_TIMEOUT_MS};
    const struct td_cli_option options[] = {TD_CLIENT_OPTIONS(opts), {0}};
    struct td_watch_job watch = {.within_ms = -1};
    struct td_client *client = NULL;
    int status = td_cli_options(&argc, argv, options);
    bool all = argc == 1 || (argc == 2 && strcmp(argv[1], "jobs") == 0);
    if (status == TD_CLI_OK && !all) {
        status = td_cli_job_words(argc, argv, &watch.job);
    }
    if (status == TD_CLI_OK) {
        status = td_client_new(&opts, &client);
    }
    if (status == TD_CLI_OK) {
        watch.output = opts.output;
        status = opts.output == TD_CLI_TABLE && can_draw() ? view(client, watch.job)
                 : all                                     ? watch_lines(client, opts.output)
                                                           : td_watch_job(client, &watch);
    }
    td_client_free(client);
    return status;
}
