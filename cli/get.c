// `tandem get`: jobs, rounds, controllers and workers as tables or as the API's fields.
#include <inttypes.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/client.h"
#include "cli/job_text.h"
#include "cli/lists.h"
#include "cli/message_json.h"
#include "cli/table.h"

struct get {
    struct td_client *client;
    enum td_cli_output output;
    const char *word; // behind the kind; NULL: none
};

static int print(const struct get *g, ProtobufCMessage *message, const struct td_buf *table) {
    struct td_buf out = {0};
    if (g->output == TD_CLI_JSON) {
        td_message_json(message, false, &out);
    }
    fputs(td_buf_str(g->output == TD_CLI_JSON ? &out : table), stdout);
    td_buf_fini(&out);
    protobuf_c_message_free_unpacked(message, NULL);
    return TD_CLI_OK;
}

static int get_jobs(const struct get *g) {
    uint64_t id;
    struct td_buf table = {0};
    Tandem__V1__ListJobsResponse *list = NULL;
    Tandem__V1__Job *one = NULL;
    int status = g->word ? td_cli_job_id("get", g->word, &id) : TD_CLI_OK;
    if (status == TD_CLI_OK) {
        status = g->word ? td_client_get_job(g->client, id, &one)
                         : td_client_list_jobs(g->client, &list);
    }
    if (list && list->n_jobs == 0 && g->output != TD_CLI_JSON) {
        fprintf(stderr, "tandem get: there are no jobs; `tandem submit -f JOB.yaml` gives one\n");
    }
    if (status == TD_CLI_OK) {
        td_list_jobs(list ? list->jobs : &one, list ? list->n_jobs : 1, &table);
        status = print(g, list ? &list->base : &one->base, &table);
    }
    td_buf_fini(&table);
    return status;
}

// Rounds belong to a job; without one it is the newest.
static int find_job(const struct get *g, uint64_t *id) {
    if (g->word) {
        return td_cli_job_id("get", g->word, id);
    }
    Tandem__V1__ListJobsResponse *list = NULL;
    int status = td_client_list_jobs(g->client, &list);
    if (status != TD_CLI_OK) {
        return status;
    }
    *id = 0;
    for (size_t i = 0; i < list->n_jobs; i++) {
        *id = list->jobs[i]->id > *id ? list->jobs[i]->id : *id;
    }
    tandem__v1__list_jobs_response__free_unpacked(list, NULL);
    if (*id == 0) {
        fprintf(stderr, "tandem get: there are no jobs, so there are no rounds\n");
        return TD_CLI_NOT_FOUND;
    }
    return TD_CLI_OK;
}

static int get_rounds(const struct get *g) {
    uint64_t id;
    struct td_buf table = {0};
    Tandem__V1__ListRoundsResponse *list = NULL;
    int status = find_job(g, &id);
    if (status == TD_CLI_OK) {
        status = td_client_list_rounds(g->client, id, &list);
    }
    if (status == TD_CLI_OK) {
        if (list->n_rounds == 0 && g->output != TD_CLI_JSON) {
            fprintf(stderr, "tandem get: job %" PRIu64 " has no rounds yet\n", id);
        }
        td_list_rounds(list->rounds, list->n_rounds, &table);
        status = print(g, &list->base, &table);
    }
    td_buf_fini(&table);
    return status;
}

static int get_members(const struct get *g, void (*put)(Tandem__V1__Member *const *members,
                                                        size_t n, struct td_buf *out)) {
    struct td_buf table = {0};
    Tandem__V1__ListMembersResponse *list = NULL;
    int status = td_client_list_members(g->client, &list);
    if (status == TD_CLI_OK) {
        put(list->members, list->n_members, &table);
        status = print(g, &list->base, &table);
    }
    td_buf_fini(&table);
    return status;
}

enum kind { JOBS, ROUNDS, CONTROLLERS, WORKERS, NO_KIND };

static enum kind kind_of(const char *word) {
    static const struct {
        const char *word;
        enum kind kind;
    } words[] = {{"jobs", JOBS},
                 {"job", JOBS},
                 {"rounds", ROUNDS},
                 {"round", ROUNDS},
                 {"members", CONTROLLERS},
                 {"controllers", CONTROLLERS},
                 {"controller", CONTROLLERS},
                 {"workers", WORKERS},
                 {"worker", WORKERS}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(words[i].word, word) == 0) {
            return words[i].kind;
        }
    }
    return NO_KIND;
}

static int get(const struct get *g, enum kind kind) {
    switch (kind) {
    case JOBS:
        return get_jobs(g);
    case ROUNDS:
        return get_rounds(g);
    case CONTROLLERS:
        return get_members(g, td_list_controllers);
    default:
        return get_members(g, td_list_workers);
    }
}

int td_cli_get(int argc, char **argv) {
    struct td_client_opts opts = {.command = argv[0], .timeout_ms = TD_CLIENT_TIMEOUT_MS};
    const struct td_cli_option options[] = {TD_CLIENT_OPTIONS(opts), {0}};
    int status = td_cli_options(&argc, argv, options);
    if (status != TD_CLI_OK) {
        return status;
    }
    enum kind kind = argc == 2 || argc == 3 ? kind_of(argv[1]) : NO_KIND;
    if (kind == NO_KIND) {
        fprintf(stderr, "tandem get: get what? jobs [N], rounds [JOB], controllers or workers\n");
        return TD_CLI_USAGE;
    }
    if (argc == 3 && (kind == CONTROLLERS || kind == WORKERS)) {
        fprintf(stderr, "tandem get: controllers and workers are listed all at once\n");
        return TD_CLI_USAGE;
    }
    struct get g = {.output = opts.output, .word = argc == 3 ? argv[2] : NULL};
    status = td_client_new(&opts, &g.client);
    if (status == TD_CLI_OK) {
        status = get(&g, kind);
    }
    td_client_free(g.client);
    return status;
}
