// A pool of real workers of a tiny SFT job, and what it has told.
#ifndef TD_TESTS_COMMON_POOL_RIG_H
#define TD_TESTS_COMMON_POOL_RIG_H

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "controllers/common/pool.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "tests/unit/io/wait.h"
#include "tests/unit/job/tiny_job.h"

enum { RIG_WORKERS_MAX = 2 };

struct rig {
    struct tiny_job *job;
    struct td_loop *loop;
    struct td_children *children;
    struct td_pool *pool;
    struct td_pool_config config;
    Tandem__Worker__Setup setup;
    char *dir, *model;
    int up, down, failed, stopped, replies, nulls;
    pid_t pid[RIG_WORKERS_MAX];
    bool set_up[RIG_WORKERS_MAX];
    char weights[256]; // address of the last one that came up
    struct td_err err;
    char cause[256];
};

static inline void rig_up(void *user, int worker, const Tandem__Worker__Status *s) {
    struct rig *r = user;
    r->up++;
    r->pid[worker] = (pid_t)s->pid;
    r->set_up[worker] = s->set_up;
    strncpy(r->weights, s->weights_address, sizeof r->weights - 1);
}

static inline void rig_down(void *user, int worker, const char *cause) {
    struct rig *r = user;
    (void)worker;
    r->down++;
    strncpy(r->cause, cause, sizeof r->cause - 1);
}

static inline void rig_generated(void *user, int worker, const Tandem__Worker__Generated *m) {
    (void)user, (void)worker, (void)m;
    fail();
}

static inline void rig_failed(void *user, int worker, const struct td_err *err) {
    struct rig *r = user;
    (void)worker;
    r->failed++;
    r->err = *err;
}

static inline void rig_stopped(void *user) {
    ((struct rig *)user)->stopped++;
}

static inline void rig_reply(void *user, int worker, const td_frame *f, const int *fds) {
    struct rig *r = user;
    (void)worker, (void)fds;
    r->replies++;
    r->nulls += !f;
}

static inline void rig_init(struct rig *r, struct tiny_job *job, int workers) {
    *r = (struct rig){.job = job, .loop = new_loop()};
    assert_int_equal(td_children_new(r->loop, 16, &r->children, NULL), TD_OK);
    r->dir = tiny_job_path(job, "workers");
    r->model = tiny_job_path(job, "model");
    assert_int_equal(td_make_dirs(r->dir, NULL), TD_OK);
    tandem__worker__setup__init(&r->setup);
    r->setup.job = TINY_JOB_ID;
    r->setup.spec.data = job->canonical.data;
    r->setup.spec.len = job->canonical.len;
    r->setup.role = (char *)"actor";
    r->setup.size = 1;
    r->setup.threads = 1;
    r->setup.model_dir = r->model;
    r->config = (struct td_pool_config){.loop = r->loop,
                                        .children = r->children,
                                        .dir = r->dir,
                                        .name = "train",
                                        .program = TD_TEST_WORKER,
                                        .count = workers,
                                        .controller = 1,
                                        .job = TINY_JOB_ID,
                                        .journal_id = 2,
                                        .grace_s = 60,
                                        .silent_ms = 20000,
                                        .start_ms = 20000,
                                        .request_ms = 20000,
                                        .setup = &r->setup,
                                        .fns = {rig_up, rig_down, rig_generated, rig_failed},
                                        .user = r};
}

static inline void rig_start(struct rig *r) {
    r->pool = td_pool_new(&r->config);
}

static inline void rig_stop(struct rig *r) {
    int want = r->stopped + 1;
    td_pool_stop(r->pool, 2000, rig_stopped, r);
    wait_until(r->loop, &r->stopped, want);
    td_pool_free(r->pool);
    r->pool = NULL;
}

// Runs the loop for a while.
static inline void rig_run(struct rig *r, int ms) {
    int zero = 0;
    struct wait wait = {r->loop, NULL, &zero, 1, td_clock_ms() + ms};
    wait.timer = td_timer_new(r->loop, wait_check, &wait);
    td_timer_start(wait.timer, 0);
    td_loop_run(r->loop);
    td_timer_close(wait.timer);
}

// Nothing of the workers may be left: no process, no zombie, no socket.
static inline void rig_fini(struct rig *r) {
    if (r->pool) {
        rig_stop(r);
    }
    for (int i = 0; td_children_count(r->children) > 0 && i < 100; i++) {
        rig_run(r, 20); // those of killed workers come by SIGCHLD
    }
    assert_int_equal(td_children_count(r->children), 0);
    assert_int_equal(rmdir(r->dir), 0);
    td_children_free(r->children);
    td_loop_free(r->loop);
    td_free(r->dir);
    td_free(r->model);
}

// A zombie is not: it is reaped by a later SIGCHLD than the one of its end that the pool sees.
static inline bool is_alive(pid_t pid) {
    char path[64], text[256] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) {
        fclose(f);
    }
    const char *state = n ? strrchr(text, ')') : NULL;
    return state && state[1] && state[2] != 'Z';
}

// A request that a train seat without a base refuses at once.
static inline void rig_ask(struct rig *r, int worker) {
    Tandem__Worker__Digest m = TANDEM__WORKER__DIGEST__INIT;
    td_frame f = TANDEM__WORKER__FRAME__INIT;
    f.body_case = TANDEM__WORKER__FRAME__BODY_DIGEST;
    f.digest = &m;
    td_pool_send(r->pool, worker, &f, -1, rig_reply, r);
}

#endif
