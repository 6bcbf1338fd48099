// The live view in the store, for people and clients: rewritten all the time, so that a store that
// was wiped has it again soon, and what is over goes by itself.
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/daemon/daemon_int.h"
#include "coordinator/daemon/jobs_view.h"
#include "lib/base/mem.h"

enum { VIEW_MS = 2000, TTL_MS = 10000 };

static void on_leader(void *user, enum td_rc rc, const void *value, size_t n,
                      const struct td_err *err) {
    struct td_coordinator_daemon *d = user;
    (void)err;
    if (rc == TD_OK && n < sizeof d->leader) {
        memcpy(d->leader, value ? value : "", n);
        d->leader[n] = 0;
    }
}

static void put(struct td_coordinator_daemon *d, const char *what, const char *name,
                const void *value, size_t n) {
    char *key = td_asprintf("tandem:{%s}:%s%s", d->daemon.settings->cluster, what, name);
    struct td_kv_set set = {key, value, n, TTL_MS};
    td_kv_set(d->kv, &set, NULL, NULL);
    td_free(key);
}

static void put_json(struct td_coordinator_daemon *d, const char *what, const char *name,
                     json_t *json) {
    char *text = json_dumps(json, JSON_COMPACT);
    if (text) {
        put(d, what, name, text, strlen(text));
    }
    td_free(text); // jansson allocates by malloc, as td_free releases
    json_decref(json);
}

static void put_view(struct td_coordinator_daemon *d) {
    struct td_jobs_view v = {.machine = td_coordinator_shell_machine(d->shell),
                             .shared_dir = d->daemon.settings->shared_dir,
                             .now_ms = td_loop_now_ms(d->daemon.loop),
                             .arena = td_arena_new()};
    const struct td_journal_state *s = td_coordinator_state(v.machine);
    char name[24];
    for (size_t i = 0; i < s->job_count; i++) {
        Tandem__V1__Job job;
        if (td_jobs_view_job(&v, s->jobs[i]->job->job, &job)) {
            snprintf(name, sizeof name, "%" PRIu64, job.id);
            put_json(d, "job:", name, td_coordinator_job_json(&job));
        }
    }
    Tandem__V1__ListMembersResponse members;
    td_jobs_view_members(&v, &members);
    for (size_t i = 0; i < members.n_members; i++) {
        snprintf(name, sizeof name, "%016" PRIx64, members.members[i]->id);
        put_json(d, "member:", name, td_coordinator_member_json(members.members[i]));
    }
    td_arena_free(v.arena);
}

void td_coordinator_tell_store(struct td_coordinator_daemon *d, bool leads) {
    if (!d->kv) {
        return;
    }
    if (!leads) {
        char *key = td_asprintf("tandem:{%s}:leader", d->daemon.settings->cluster);
        td_kv_get(d->kv, key, on_leader, d);
        td_free(key);
        return;
    }
    put(d, "leader", "", d->address, strlen(d->address));
    int64_t now = td_loop_now_ms(d->daemon.loop);
    if (td_kv_renewed(d->kv) || now - d->view_ms >= VIEW_MS) {
        d->view_ms = now;
        put_view(d);
    }
}
