// sim: runs schedules, prints how many and how fast, and the first seed that breaks something.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "tests/sim/plant.h"
#include "tests/sim/sim.h"

struct options {
    uint64_t first, schedules, rounds;
    double seconds;
    bool trace, stats, twice;
    const char *plant, *focus, *expect;
};

static int usage(void) {
    fputs(
        "usage: sim [--seed N [--trace]] [--first N] [--schedules K] [--seconds S] [--rounds R]\n"
        "           [--plant NAME[,NAME]] [--focus NAME] [--expect violation] [--stats] [--twice]\n"
        "           [--list-plants]\n",
        stderr);
    return 2;
}

static bool parse(int argc, char **argv, struct options *o) {
    *o = (struct options){.first = 1, .schedules = UINT64_MAX, .rounds = 6};
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(name, "--trace") == 0) {
            o->trace = true;
        } else if (strcmp(name, "--stats") == 0) {
            o->stats = true;
        } else if (strcmp(name, "--twice") == 0) {
            o->twice = true;
        } else if (!value) {
            return false;
        } else if (strcmp(name, "--seed") == 0) {
            o->first = strtoull(value, NULL, 0);
            o->schedules = 1;
        } else if (strcmp(name, "--first") == 0) {
            o->first = strtoull(value, NULL, 0);
        } else if (strcmp(name, "--schedules") == 0) {
            o->schedules = strtoull(value, NULL, 0);
        } else if (strcmp(name, "--seconds") == 0) {
            o->seconds = strtod(value, NULL);
        } else if (strcmp(name, "--rounds") == 0) {
            o->rounds = strtoull(value, NULL, 0);
        } else if (strcmp(name, "--plant") == 0) {
            o->plant = value;
        } else if (strcmp(name, "--focus") == 0) {
            o->focus = value;
        } else if (strcmp(name, "--expect") == 0) {
            o->expect = value;
        } else {
            return false;
        }
        i += strcmp(name, "--trace") != 0 && strcmp(name, "--stats") != 0 &&
             strcmp(name, "--twice") != 0;
    }
    if (o->schedules == UINT64_MAX && o->seconds <= 0) {
        o->schedules = 100;
    }
    return o->rounds > 0 && o->rounds < ROUNDS_MAX;
}

struct totals {
    uint64_t schedules, events, violations, first_bad, records, virtual_ms;
    uint64_t kinds[16];
    uint64_t digest; // of all that happened
    char what[512];
};

static void run_one(struct sim *s, const struct options *o, uint64_t seed, struct totals *t) {
    struct profile p = profile_of(seed, o->rounds, o->focus);
    s->trace = o->trace;
    bool ok = sim_run(s, seed, &p);
    t->schedules++;
    t->events += s->events;
    t->records += s->journal_count;
    t->virtual_ms += (uint64_t)s->now;
    for (int i = 0; i < 16; i++) {
        t->kinds[i] += s->accepted_by_kind[i];
    }
    t->digest = td_hash_u64(td_hash_u64(t->digest, td_journal_digest(&s->truth)), s->events);
    if (!ok) {
        if (!t->violations) {
            t->first_bad = seed;
            memcpy(t->what, s->violation, sizeof t->what);
        }
        t->violations++;
        if (o->stats) {
            printf("  seed %" PRIu64 ": %s\n", seed, s->violation);
        }
    }
    sim_fini(s);
}

// The same seed gives the same events and the same journal.
static void check_repeat(struct sim *s, const struct options *o, uint64_t seed, struct totals *t) {
    struct totals one = {0}, two = {0};
    run_one(s, o, seed, &one);
    run_one(s, o, seed, &two);
    if (one.digest != two.digest) {
        t->first_bad = t->violations++ ? t->first_bad : seed;
        snprintf(t->what, sizeof t->what, "the same seed gave another course of events");
    }
}

static void print_stats(const struct totals *t) {
    static const char *const names[] = {"INIT",   "LEAD",    "BEAT",       "STATE", "JOB",
                                        "GANG",   "RESTORE", "DRAW",       "DROP",  "SEAL",
                                        "RESEAL", "COMMIT",  "CHECKPOINT", "FORK",  "END"};
    for (int i = 0; i < 15; i++) {
        printf("  %-10s %" PRIu64 "\n", names[i], t->kinds[i]);
    }
    printf("  journal records %" PRIu64 ", virtual seconds %" PRIu64 "\n", t->records,
           t->virtual_ms / 1000);
}

int main(int argc, char **argv) {
    struct options o;
    if (argc == 2 && strcmp(argv[1], "--list-plants") == 0) {
        sim_plant_list();
        return 0;
    }
    if (!parse(argc, argv, &o) || (o.plant && !sim_plant(o.plant))) {
        return usage();
    }
    struct totals t = {0};
    struct sim *s = td_alloc(sizeof *s); // large; one at a time
    int64_t start = td_clock_ns();
    double elapsed = 0;
    bool stop = false;
    for (uint64_t seed = o.first; !stop && t.schedules < o.schedules; seed++) {
        run_one(s, &o, seed, &t);
        if (o.twice) {
            check_repeat(s, &o, seed, &t);
        }
        elapsed = (double)(td_clock_ns() - start) * 1e-9;
        stop = (o.seconds > 0 && elapsed >= o.seconds) || (t.violations && !o.stats);
    }
    td_free(s);
    printf("%" PRIu64 " schedules of %" PRIu64 " rounds from seed %" PRIu64 ", %" PRIu64
           " events, %.1f s, %.1f schedules/s\n",
           t.schedules, o.rounds, o.first, t.events, elapsed, (double)t.schedules / elapsed);
    if (o.stats) {
        print_stats(&t);
    }
    if (t.violations) {
        printf("%" PRIu64 " violating, first seed %" PRIu64 ": %s\n  replay: sim --seed %" PRIu64
               " --rounds %" PRIu64 "%s%s%s%s --trace\n",
               t.violations, t.first_bad, t.what, t.first_bad, o.rounds, o.plant ? " --plant " : "",
               o.plant ? o.plant : "", o.focus ? " --focus " : "", o.focus ? o.focus : "");
    }
    bool expected = o.expect && strcmp(o.expect, "violation") == 0;
    return (t.violations != 0) == expected ? 0 : 1;
}
