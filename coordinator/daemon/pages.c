// The coordinator's pages; under /api/v1: jobs, jobs/ID with /rounds and /groups, members.
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/daemon/daemon_int.h"
#include "coordinator/daemon/jobs_view.h"
#include "lib/base/mem.h"
#include "lib/io/prometheus.h"

enum { GROUPS_MAX = 4096, GROUPS_SHOWN = 16, ROUNDS_SHOWN = 4 };

static const struct td_coordinator *machine_of(const struct td_coordinator_daemon *d) {
    return td_coordinator_shell_machine(d->shell);
}

static struct td_jobs_view view_of(const struct td_coordinator_daemon *d) {
    return (struct td_jobs_view){.machine = machine_of(d),
                                 .shared_dir = d->daemon.settings->shared_dir,
                                 .now_ms = td_loop_now_ms(d->daemon.loop),
                                 .arena = td_arena_new()};
}

static bool ready(void *user, struct td_buf *out) {
    const struct td_coordinator_daemon *d = user;
    const char *trouble = td_coordinator_log_trouble(machine_of(d));
    bool journal = td_coordinator_state(machine_of(d))->based && !trouble;
    bool store = !d->kv || td_kv_connected(d->kv);
    td_buf_printf(out, "[%c] journal%s%s\n[%c] store%s\n", journal ? '+' : '-',
                  trouble ? ": it waits for " : "", trouble ? trouble : "", store ? '+' : '-',
                  d->kv ? "" : " (none is configured)");
    return journal && !d->daemon.stopping;
}

static void metrics(void *user, struct td_buf *out) {
    const struct td_coordinator_daemon *d = user;
    const struct td_journal_state *s = td_coordinator_state(machine_of(d));
    const struct {
        const char *name, *help;
        enum td_prometheus_type type;
        double value;
    } rows[] = {
        {"tandem_leader", "Whether this coordinator leads.", TD_PROMETHEUS_GAUGE,
         td_coordinator_leads(machine_of(d))},
        {"tandem_term", "Term of the leader.", TD_PROMETHEUS_GAUGE, (double)s->term},
        {"tandem_jobs", "Jobs in the journal, ended ones included.", TD_PROMETHEUS_GAUGE,
         (double)s->job_count},
        {"tandem_journal_accepted_total", "Records of the journal that were accepted.",
         TD_PROMETHEUS_COUNTER, (double)s->accepted},
        {"tandem_journal_rejected_total", "Records whose body was rejected: a leader's mistake.",
         TD_PROMETHEUS_COUNTER, (double)s->rejected},
        {"tandem_journal_ignored_total", "Records that came too late: fenced.",
         TD_PROMETHEUS_COUNTER, (double)s->ignored},
        {"tandem_reports_total", "Reports of members.", TD_PROMETHEUS_COUNTER, (double)d->reports},
        {"tandem_orders_total", "Orders to members.", TD_PROMETHEUS_COUNTER, (double)d->orders},
        {"tandem_members", "Members that reported in this term.", TD_PROMETHEUS_GAUGE,
         (double)td_coordinator_member_count(machine_of(d))},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        td_prometheus_family(out, rows[i].name, rows[i].type, rows[i].help);
        td_prometheus_sample(out, rows[i].name, NULL, 0, rows[i].value);
    }
    td_prometheus_family(out, "tandem_job_step", TD_PROMETHEUS_GAUGE, "Committed step of a job.");
    for (size_t i = 0; i < s->job_count; i++) {
        char id[24];
        snprintf(id, sizeof id, "%" PRIu64, s->jobs[i]->job->job);
        struct td_prometheus_label job = {"job", id};
        if (s->jobs[i]->outcome == TANDEM__JOURNAL__OUTCOME__OUTCOME_NONE) {
            td_prometheus_sample(out, "tandem_job_step", &job, 1, (double)s->jobs[i]->head.step);
        }
    }
}

// ---- JSON ----

static json_t *jobs_json(const struct td_jobs_view *v) {
    const struct td_journal_state *s = td_coordinator_state(v->machine);
    json_t *list = json_array();
    for (size_t i = 0; i < s->job_count; i++) {
        Tandem__V1__Job job;
        if (td_jobs_view_job(v, s->jobs[i]->job->job, &job)) {
            json_array_append_new(list, td_coordinator_job_json(&job));
        }
    }
    return json_pack("{s:o}", "jobs", list);
}

static json_t *rounds_json(const struct td_jobs_view *v, uint64_t job) {
    Tandem__V1__ListRoundsResponse r;
    td_jobs_view_rounds(v, job, &r);
    json_t *list = json_array();
    for (size_t i = 0; i < r.n_rounds; i++) {
        const Tandem__V1__Round *x = r.rounds[i];
        json_array_append_new(
            list, json_pack("{s:I,s:s,s:I,s:I,s:I,s:o,s:o,s:s,s:I}", "round", (json_int_t)x->round,
                            "state", x->state, "groups", (json_int_t)x->groups, "tokens",
                            (json_int_t)x->tokens, "generation", (json_int_t)x->generation,
                            "weight_digest", td_coordinator_hex(x->weight_digest), "state_digest",
                            td_coordinator_hex(x->state_digest), "waits_for", x->waits_for,
                            "waits_since_ms", (json_int_t)x->waits_since_ms));
    }
    return list;
}

static const char *const places[] = {"waits", "leased", "arrived"}; // by td_group_place

static int64_t group_wait_ms(const struct td_jobs_view *v, const struct td_group_view *g) {
    return g->place == TD_GROUP_ARRIVED ? 0 : v->now_ms - g->since_ms;
}

static json_t *groups_json(const struct td_jobs_view *v, uint64_t job) {
    struct td_group_view *groups = td_arena_alloc(v->arena, GROUPS_MAX * sizeof *groups);
    size_t n = td_coordinator_groups(v->machine, job, groups, GROUPS_MAX);
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        const struct td_group_view *g = &groups[i];
        json_array_append_new(list, json_pack("{s:I,s:I,s:s,s:o,s:I,s:I,s:s,s:I}", "data_epoch",
                                              (json_int_t)g->group.data_epoch, "index",
                                              (json_int_t)g->group.index, "state", places[g->place],
                                              "member", td_coordinator_hex(g->member), "term",
                                              (json_int_t)g->term, "attempt", (json_int_t)g->n,
                                              "waits_for", td_jobs_view_text(v, g->waits_for),
                                              "waits_since_ms", (json_int_t)group_wait_ms(v, g)));
    }
    return list;
}

// path: ID, ID/rounds, ID/groups.
static json_t *one_job_json(const struct td_jobs_view *v, const char *path) {
    char *end = NULL;
    uint64_t id = strtoull(path, &end, 10);
    Tandem__V1__Job job;
    if (!td_jobs_view_job(v, id, &job)) {
        return NULL;
    }
    if (strcmp(end, "/rounds") == 0) {
        return json_pack("{s:o}", "rounds", rounds_json(v, id));
    }
    if (strcmp(end, "/groups") == 0) {
        return json_pack("{s:o}", "groups", groups_json(v, id));
    }
    return *end ? NULL : td_coordinator_job_json(&job);
}

static json_t *members_json(const struct td_jobs_view *v) {
    Tandem__V1__ListMembersResponse r;
    json_t *list = json_array();
    td_jobs_view_members(v, &r);
    for (size_t i = 0; i < r.n_members; i++) {
        json_array_append_new(list, td_coordinator_member_json(r.members[i]));
    }
    return json_pack("{s:o}", "members", list);
}

static json_t *json(void *user, const char *path) {
    static const char of_job[] = "jobs/";
    struct td_jobs_view v = view_of(user);
    json_t *root = NULL;
    if (strcmp(path, "jobs") == 0) {
        root = jobs_json(&v);
    } else if (strcmp(path, "members") == 0) {
        root = members_json(&v);
    } else if (strncmp(path, of_job, strlen(of_job)) == 0) {
        root = one_job_json(&v, path + strlen(of_job));
    }
    td_arena_free(v.arena);
    return root;
}

// ---- HTML ----

static void cell(struct td_buf *out, const char *text) {
    td_buf_puts(out, "<td>");
    td_http_escape(out, text);
}

static void number(struct td_buf *out, double value) {
    td_buf_printf(out, "<td align=right>%.10g", value);
}

static void job_rows(const struct td_jobs_view *v, struct td_buf *out) {
    const struct td_journal_state *s = td_coordinator_state(v->machine);
    td_buf_puts(out, "<h2>jobs</h2><table border=1 cellspacing=0 cellpadding=4><tr><th>job<th>kind"
                     "<th>state<th>step<th>of<th>waits for<th>s<th>cause");
    for (size_t i = 0; i < s->job_count; i++) {
        Tandem__V1__Job j;
        if (!td_jobs_view_job(v, s->jobs[i]->job->job, &j)) {
            continue;
        }
        td_buf_puts(out, "<tr>");
        number(out, (double)j.id);
        cell(out, j.kind);
        cell(out, td_coordinator_state_name(j.state));
        number(out, (double)j.step);
        number(out, (double)j.total_steps);
        cell(out, j.waits_for);
        number(out, (double)(j.waits_since_ms / 1000));
        cell(out, j.cause);
    }
    td_buf_puts(out, "</table>");
}

static void member_rows(const struct td_jobs_view *v, struct td_buf *out) {
    Tandem__V1__ListMembersResponse r;
    td_jobs_view_members(v, &r);
    td_buf_puts(out, "<h2>members</h2><table border=1 cellspacing=0 cellpadding=4><tr><th>member"
                     "<th>kind<th>host<th>status<th>job<th>workers<th>ready<th>units<th>heard, s"
                     "<th>waits for");
    for (size_t i = 0; i < r.n_members; i++) {
        const Tandem__V1__Member *m = r.members[i];
        td_buf_printf(out, "<tr><td>%016" PRIx64, m->id);
        cell(out, m->kind);
        cell(out, m->host);
        cell(out, m->http);
        number(out, (double)m->job);
        number(out, m->workers);
        number(out, m->workers_ready);
        number(out, m->units);
        number(out, (double)(m->heard_ms / 1000));
        cell(out, m->waits_for);
    }
    td_buf_puts(out, "</table>");
}

static void gang_rows(const struct td_jobs_view *v, struct td_buf *out) {
    const struct td_journal_state *s = td_coordinator_state(v->machine);
    td_buf_puts(out, "<h2>gangs</h2><table border=1 cellspacing=0 cellpadding=4><tr><th>job<th>role"
                     "<th>generation<th>ranks<th>member<th>base");
    for (size_t i = 0; i < s->job_count; i++) {
        for (size_t k = 0; k < s->jobs[i]->gang_count; k++) {
            const struct td_gang_state *g = &s->jobs[i]->gangs[k];
            td_buf_puts(out, "<tr>");
            number(out, (double)s->jobs[i]->job->job);
            cell(out, g->spec->role);
            number(out, (double)g->generation);
            number(out, g->spec->ranks);
            td_buf_printf(out, "<td>%016" PRIx64 "<td>", g->spec->members[0]);
            td_buf_printf(out, g->has_base ? "step %" PRIu64 : "none", g->base_step);
        }
    }
    td_buf_puts(out, "</table>");
}

// The newest rounds of each job that goes on.
static void round_rows(const struct td_jobs_view *v, struct td_buf *out) {
    const struct td_journal_state *s = td_coordinator_state(v->machine);
    td_buf_puts(out, "<h2>rounds</h2><table border=1 cellspacing=0 cellpadding=4><tr><th>job"
                     "<th>round<th>state<th>groups<th>tokens<th>generation<th>waits for<th>s");
    for (size_t i = 0; i < s->job_count; i++) {
        Tandem__V1__ListRoundsResponse r = {.n_rounds = 0};
        if (s->jobs[i]->outcome == TANDEM__JOURNAL__OUTCOME__OUTCOME_NONE) {
            td_jobs_view_rounds(v, s->jobs[i]->job->job, &r);
        }
        for (size_t k = r.n_rounds > ROUNDS_SHOWN ? r.n_rounds - ROUNDS_SHOWN : 0; k < r.n_rounds;
             k++) {
            const Tandem__V1__Round *x = r.rounds[k];
            td_buf_puts(out, "<tr>");
            number(out, (double)s->jobs[i]->job->job);
            number(out, (double)x->round);
            cell(out, x->state);
            number(out, (double)x->groups);
            number(out, (double)x->tokens);
            number(out, (double)x->generation);
            cell(out, x->waits_for);
            number(out, (double)(x->waits_since_ms / 1000));
        }
    }
    td_buf_puts(out, "</table>");
}

static void group_row(const struct td_jobs_view *v, uint64_t job, const struct td_group_view *g,
                      struct td_buf *out) {
    td_buf_puts(out, "<tr>");
    number(out, (double)job);
    td_buf_printf(out, "<td>(%" PRIu64 ", %" PRIu64 ")", g->group.data_epoch, g->group.index);
    cell(out, places[g->place]);
    if (g->place == TD_GROUP_LEASED) {
        td_buf_printf(out, "<td>%016" PRIx64 "<td>%" PRIu64 ".%" PRIu64, g->member, g->term, g->n);
    } else {
        td_buf_puts(out, "<td><td>");
    }
    cell(out, g->waits_for);
    number(out, (double)(group_wait_ms(v, g) / 1000));
}

// The groups of each open round that have not arrived; of many, the first.
static void group_rows(const struct td_jobs_view *v, struct td_buf *out) {
    const struct td_journal_state *s = td_coordinator_state(v->machine);
    struct td_group_view *groups = td_arena_alloc(v->arena, GROUPS_MAX * sizeof *groups);
    td_buf_puts(out, "<h2>open groups</h2><table border=1 cellspacing=0 cellpadding=4><tr><th>job"
                     "<th>group<th>state<th>member<th>attempt<th>waits for<th>s");
    for (size_t i = 0; i < s->job_count; i++) {
        uint64_t job = s->jobs[i]->job->job;
        size_t missing = 0, n = td_coordinator_groups(v->machine, job, groups, GROUPS_MAX);
        for (size_t k = 0; k < n; k++) {
            missing += groups[k].place != TD_GROUP_ARRIVED;
            if (groups[k].place != TD_GROUP_ARRIVED && missing <= GROUPS_SHOWN) {
                group_row(v, job, &groups[k], out);
            }
        }
        if (missing > GROUPS_SHOWN) {
            td_buf_puts(out, "<tr>");
            number(out, (double)job);
            td_buf_printf(out, "<td colspan=6>and %zu more: /api/v1/jobs/%" PRIu64 "/groups",
                          missing - GROUPS_SHOWN, job);
        }
    }
    td_buf_puts(out, "</table>");
}

static void status(void *user, struct td_buf *out) {
    const struct td_coordinator_daemon *d = user;
    struct td_jobs_view v = view_of(d);
    const struct td_journal_state *s = td_coordinator_state(v.machine);
    td_buf_puts(out, "<h1>coordinator ");
    td_http_escape(out, d->address);
    td_buf_printf(out, "</h1><p>%s; term %" PRIu64 ", journal %016" PRIx64 ", record %" PRId64 "%s",
                  td_coordinator_leads(v.machine) ? "leads" : "stands by", s->term, s->journal_id,
                  s->last.offset, d->leader[0] ? "; leader: " : "");
    td_http_escape(out, d->leader);
    pid_t holder = td_log_waits_for(d->journal);
    if (holder) {
        td_buf_printf(out, "<p>an append waits for the lock that process %d holds", (int)holder);
    }
    job_rows(&v, out);
    member_rows(&v, out);
    round_rows(&v, out);
    gang_rows(&v, out);
    group_rows(&v, out);
    td_arena_free(v.arena);
}

const struct td_daemon_pages td_coordinator_pages = {
    ready, metrics, status, json, "jobs, jobs/ID, jobs/ID/rounds, jobs/ID/groups, members"};
