// The journal's state: memory and queries. Pure; one thread at a time.
#include "lib/journal/state_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/mem.h"

bool td_journal_no(char *why, const char *fmt, ...) {
    if (why) {
        va_list args;
        va_start(args, fmt);
        vsnprintf(why, TD_WHY_MAX, fmt, args);
        va_end(args);
    }
    return false;
}

void td_journal_state_init(struct td_journal_state *s) {
    *s =
        (struct td_journal_state){.last.offset = -1, .trim.offset = -1, .partial_first.offset = -1};
}

void td_journal_state_fini(struct td_journal_state *s) {
    for (size_t i = 0; i < s->job_count; i++) {
        td_job_free(s->jobs[i]);
    }
    td_buf_fini(&s->partial);
    td_journal_state_init(s);
}

void td_round_free_entries(struct td_round_state *r) {
    for (size_t i = 0; i < r->entry_count; i++) {
        tandem__journal__entry__free_unpacked(r->entries[i], NULL);
    }
    td_free(r->entries);
    r->entries = NULL;
    r->entry_count = 0;
}

void td_round_free_commit(struct td_round_state *r) {
    for (size_t i = 0; i < r->role_count; i++) {
        tandem__journal__role_commit__free_unpacked(r->roles[i], NULL);
    }
    td_free(r->roles);
    r->roles = NULL;
    r->role_count = 0;
    r->committed = false;
    r->version = (struct td_version){0};
    r->commit = (struct td_pos){.offset = -1};
}

void td_job_free(struct td_job_state *j) {
    if (!j) {
        return;
    }
    for (size_t i = 0; i < j->round_count; i++) {
        td_round_free_entries(&j->rounds[i]);
        td_round_free_commit(&j->rounds[i]);
    }
    for (size_t i = 0; i < j->gang_count; i++) {
        tandem__journal__gang_spec__free_unpacked(j->gangs[i].spec, NULL);
    }
    for (size_t i = 0; i < j->kept_count; i++) {
        tandem__journal__checkpoint__free_unpacked(j->kept[i], NULL);
    }
    tandem__journal__job__free_unpacked(j->job, NULL);
    td_free(j->open);
    td_free(j->rounds);
    td_free(j->cause);
    td_free(j->metrics);
    td_free(j);
}

size_t td_journal_oldest_ended(const struct td_journal_state *s) {
    size_t i = 0;
    while (i < s->job_count && s->jobs[i]->outcome == TANDEM__JOURNAL__OUTCOME__OUTCOME_NONE) {
        i++;
    }
    return i;
}

struct td_job_state *td_journal_job_mutable(struct td_journal_state *s, uint64_t job) {
    for (size_t i = 0; i < s->job_count; i++) {
        if (s->jobs[i]->job->job == job) {
            return s->jobs[i];
        }
    }
    return NULL;
}

const struct td_job_state *td_journal_job(const struct td_journal_state *s, uint64_t job) {
    return td_journal_job_mutable((struct td_journal_state *)s, job);
}

struct td_round_state *td_job_round_mutable(struct td_job_state *j, uint64_t round) {
    if (j->round_count == 0 || round < j->rounds[0].round) {
        return NULL;
    }
    uint64_t i = round - j->rounds[0].round; // rounds follow each other without a gap
    return i < j->round_count ? &j->rounds[i] : NULL;
}

const struct td_round_state *td_job_round(const struct td_job_state *j, uint64_t round) {
    return td_job_round_mutable((struct td_job_state *)j, round);
}

struct td_round_state *td_job_add_round(struct td_job_state *j, uint64_t round) {
    TD_GROW(j->rounds, j->round_cap, j->round_count + 1);
    struct td_round_state *r = &j->rounds[j->round_count++];
    *r = (struct td_round_state){.round = round, .ref.offset = -1, .commit.offset = -1};
    return r;
}

struct td_gang_state *td_job_gang_mutable(struct td_job_state *j, uint32_t gang) {
    for (size_t i = 0; i < j->gang_count; i++) {
        if (j->gangs[i].spec->gang == gang) {
            return &j->gangs[i];
        }
    }
    return NULL;
}

const struct td_gang_state *td_job_gang_by_id(const struct td_job_state *j, uint32_t gang) {
    return td_job_gang_mutable((struct td_job_state *)j, gang);
}

const struct td_gang_state *td_job_gang(const struct td_job_state *j, const char *role) {
    for (size_t i = 0; i < j->gang_count; i++) {
        if (strcmp(j->gangs[i].spec->role, role) == 0) {
            return &j->gangs[i];
        }
    }
    return NULL;
}

size_t td_job_open_index(const struct td_job_state *j, struct td_group group, bool *found) {
    size_t low = 0, high = j->open_count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (td_group_compare(j->open[mid], group) < 0) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    *found = low < j->open_count && td_group_compare(j->open[low], group) == 0;
    return low;
}

bool td_job_is_open(const struct td_job_state *j, struct td_group group) {
    bool found;
    td_job_open_index(j, group, &found);
    return found;
}

void td_job_open_add(struct td_job_state *j, struct td_group group) {
    bool found;
    size_t i = td_job_open_index(j, group, &found);
    if (!found) {
        TD_GROW(j->open, j->open_cap, j->open_count + 1);
        memmove(&j->open[i + 1], &j->open[i], (j->open_count - i) * sizeof *j->open);
        j->open[i] = group;
        j->open_count++;
    }
}

void td_job_open_remove(struct td_job_state *j, struct td_group group) {
    bool found;
    size_t i = td_job_open_index(j, group, &found);
    if (found) {
        j->open_count--;
        memmove(&j->open[i], &j->open[i + 1], (j->open_count - i) * sizeof *j->open);
    }
}

const Tandem__Journal__Checkpoint *td_job_kept(const struct td_job_state *j, uint64_t id) {
    for (size_t i = 0; i < j->kept_count; i++) {
        if (j->kept[i]->id == id) {
            return j->kept[i];
        }
    }
    return NULL;
}

uint64_t td_job_oldest_step(const struct td_job_state *j) {
    return j->initial_kept || j->kept_count == 0 ? 0 : j->kept[0]->version->step;
}
