// The pool: see pool.h. A slot goes CONNECTING → ATTACHING → SETTING_UP → UP and, on any failure,
// back to CONNECTING, once the process has ended, after a pause that doubles. The worker's pid
// comes from the socket, so that a worker of an earlier controller is handled like a child; it is
// held as a pidfd, since the pid of one that is not a child may become a stranger's at any time.
#include "controllers/common/pool.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/check.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/trace.h"

enum {
    TICK_MS = 100,
    STALL_MS = 1000, // a tick that is later by this says nothing about the workers
    CONNECT_POLL_MS = 10,
    BACKOFF_FIRST_MS = 100,
    BACKOFF_MAX_MS = 5000,
    FAILURES_MAX = 5,
    HEALTHY_MS = 30000,
    DOING_MAX = 32,
    CAUSE_MAX = 256,
};

enum slot_state { SLOT_CONNECTING, SLOT_ATTACHING, SLOT_SETTING_UP, SLOT_UP, SLOT_GONE };

struct pending {
    struct pending *next;
    uint64_t seq;
    int64_t since_ms;
    td_pool_reply_fn *reply;
    void *user;
};

struct slot {
    struct td_pool *pool;
    int index;
    enum slot_state state;
    char *path;
    struct td_ipc_conn *conn;
    struct td_watch *watch;
    int process;     // pidfd of the worker that is connected, or has to end; −1: none
    pid_t pid;       // of process
    pid_t child;     // started and not yet connected, 0: none
    int64_t next_ms; // when to try again
    char *doomed;    // owned: why it is to be ended in the next turn
    char last_cause[CAUSE_MAX];
    int64_t started_ms, heard_ms, up_ms, down_ms; // down_ms 0: never was
    int64_t backoff_ms;
    int failures;
    struct pending *first, **last;
    size_t pending_count;
    char doing[DOING_MAX];
    int64_t doing_since_ms;
};

struct late_reply { // to a request that was not sent
    struct late_reply *next;
    td_pool_reply_fn *reply;
    void *user;
    int worker;
};

struct td_pool {
    struct td_pool_config config;
    struct slot *slots;
    struct td_timer *timer, *late_timer;
    struct late_reply *late, **late_tail;
    int64_t tick_ms; // when the next tick was due
    uint64_t seq;
    bool stopping;
    int64_t stop_until_ms;
    td_loop_fn *stopped;
    void *stopped_user;
};

static void slot_read(void *user, int fd, unsigned events);

static int64_t now_of(const struct slot *s) {
    return td_loop_now_ms(s->pool->config.loop);
}

static void end_pending(struct slot *s) {
    while (s->first) {
        struct pending *p = s->first;
        s->first = p->next;
        if (!s->first) {
            s->last = &s->first;
        }
        s->pending_count--;
        if (p->reply) {
            p->reply(p->user, s->index, NULL, NULL);
        }
        td_free(p);
    }
}

static void end_process(const struct slot *s) {
    if (s->process >= 0) {
        (void)pidfd_send_signal(s->process, SIGKILL, NULL, 0); // or it has ended: all the same
    }
}

// Also true of one that its parent has not reaped: a worker of an earlier controller is nobody's
// child here.
static bool has_ended(struct slot *s) {
    struct pollfd p = {.fd = s->process, .events = POLLIN};
    if (s->process >= 0 && poll(&p, 1, 0) > 0) {
        close(s->process);
        s->process = -1;
    }
    return s->process < 0;
}

static void try_later(struct slot *s) {
    s->failures++;
    s->next_ms = now_of(s) + s->backoff_ms;
    s->backoff_ms = s->backoff_ms * 2 < BACKOFF_MAX_MS ? s->backoff_ms * 2 : BACKOFF_MAX_MS;
}

// Drops the connection and ends the process; the slot tries again later. A worker that was told to
// stop and closed its end is left to finish: finish_stop waits for it.
static void slot_down(struct slot *s, const char *cause) {
    bool was_up = s->state == SLOT_UP;
    if (!s->pool->stopping) {
        end_process(s);
    }
    td_watch_close(s->watch);
    td_ipc_conn_free(s->conn);
    td_free(s->doomed);
    s->watch = NULL;
    s->conn = NULL;
    s->doomed = NULL;
    s->doing[0] = 0;
    snprintf(s->last_cause, sizeof s->last_cause, "%s", cause);
    s->down_ms = now_of(s);
    s->state = s->pool->stopping ? SLOT_GONE : SLOT_CONNECTING;
    if (was_up && now_of(s) - s->up_ms > HEALTHY_MS) {
        s->failures = 0;
        s->backoff_ms = BACKOFF_FIRST_MS;
    }
    try_later(s);
    end_pending(s);
    if (!s->pool->stopping) {
        td_trace_warn("worker down", "worker=%s-%d cause=\"%s\"", s->pool->config.name, s->index,
                      cause);
    }
    if (was_up) {
        s->pool->config.fns.down(s->pool->config.user, s->index, cause);
    }
}

static void slot_failed(struct slot *s, const struct td_err *err) {
    if (!s->pool->stopping) {
        s->pool->config.fns.failed(s->pool->config.user, s->index, err);
    }
}

static void child_exited(void *user, pid_t pid, int status) {
    struct slot *s = user;
    if (s->child == pid) { // else the socket's end tells
        s->child = 0;
        snprintf(s->last_cause, sizeof s->last_cause, "it ended with wait status %d", status);
        s->down_ms = now_of(s);
        try_later(s);
    }
}

static void slot_spawn(struct slot *s) {
    const struct td_pool_config *c = &s->pool->config;
    char grace[24];
    snprintf(grace, sizeof grace, "%lld", (long long)c->grace_s);
    const char *argv[] = {c->program,
                          "--socket",
                          s->path,
                          "--grace-s",
                          grace,
                          "--host",
                          c->host ? c->host : "127.0.0.1",
                          c->verbose ? "--verbose" : NULL,
                          NULL};
    struct td_child_opts opts = {.argv = argv, .on_exit = child_exited, .user = s};
    struct td_err err;
    s->started_ms = now_of(s);
    if (td_children_spawn(c->children, &opts, &s->child, &err) != TD_OK) {
        s->child = 0;
        (void)td_err_in(&err, "cannot start worker %s-%d", c->name, s->index);
        slot_failed(s, &err);
        s->next_ms = now_of(s) + BACKOFF_MAX_MS;
    }
}

static void push_pending(struct slot *s, uint64_t seq, td_pool_reply_fn *reply, void *user) {
    struct pending *p = td_alloc(sizeof *p);
    *p = (struct pending){.seq = seq, .since_ms = now_of(s), .reply = reply, .user = user};
    *s->last = p;
    s->last = &p->next;
    s->pending_count++;
}

static void watch_writes(struct slot *s) {
    struct td_err err;
    bool pending = false;
    if (td_ipc_flush(s->conn, &pending, &err) == TD_OK) {
        td_watch_set(s->watch, TD_LOOP_READ | (pending ? TD_LOOP_WRITE : 0));
    } // a broken connection shows when it is read
}

static void slot_send(struct slot *s, td_frame *frame, int fd, td_pool_reply_fn *reply,
                      void *user) {
    struct td_err err;
    frame->seq = ++s->pool->seq;
    push_pending(s, frame->seq, reply, user);
    if (td_ipc_send(s->conn, frame, &fd, fd >= 0, &err) != TD_OK) {
        td_pool_kill(s->pool, s->index, err.msg); // it would never be answered
    }
    watch_writes(s);
}

static void slot_up(struct slot *s, const Tandem__Worker__Status *status) {
    s->state = SLOT_UP;
    s->up_ms = now_of(s);
    s->pool->config.fns.up(s->pool->config.user, s->index, status);
}

static void slot_attach(struct slot *s) {
    Tandem__Worker__Attach body = TANDEM__WORKER__ATTACH__INIT;
    body.protocol = TD_IPC_PROTOCOL;
    body.controller = s->pool->config.controller;
    body.job = s->pool->config.job;
    body.journal_id = s->pool->config.journal_id;
    td_frame frame = TANDEM__WORKER__FRAME__INIT;
    frame.body_case = TANDEM__WORKER__FRAME__BODY_ATTACH;
    frame.attach = &body;
    slot_send(s, &frame, -1, NULL, NULL);
}

static void on_setup_reply(void *user, int worker, const td_frame *f, const int *fds) {
    struct slot *s = user;
    (void)worker;
    (void)fds;
    if (!f) {
        return;
    }
    if (f->body_case == TANDEM__WORKER__FRAME__BODY_ERROR) {
        struct td_err err;
        (void)td_fail(&err, (enum td_rc)f->error->code, "worker %s-%d: %s", s->pool->config.name,
                      s->index, f->error->message);
        slot_failed(s, &err);
        return;
    }
    slot_attach(s); // once more, for the status after Setup
}

static void slot_attached(struct slot *s, const Tandem__Worker__Status *status) {
    if (!status) {
        slot_down(s, "it attached without telling what it holds");
        return;
    }
    if (status->set_up) {
        slot_up(s, status);
        return;
    }
    s->state = SLOT_SETTING_UP;
    Tandem__Worker__Setup setup = *s->pool->config.setup;
    setup.rank = (uint32_t)s->index;
    td_frame frame = TANDEM__WORKER__FRAME__INIT;
    frame.body_case = TANDEM__WORKER__FRAME__BODY_SETUP;
    frame.setup = &setup;
    slot_send(s, &frame, -1, on_setup_reply, s);
}

// −1 when it has ended. Its listener ends with it, and the connection with that: while the
// connection holds, the pid is still the worker's.
static int open_process(const struct td_ipc_conn *conn, pid_t *pid) {
    struct ucred peer = {0};
    socklen_t len = sizeof peer;
    getsockopt(td_ipc_fd(conn), SOL_SOCKET, SO_PEERCRED, &peer, &len);
    int process = peer.pid > 0 ? pidfd_open(peer.pid, 0) : -1;
    struct pollfd p = {.fd = td_ipc_fd(conn), .events = POLLIN};
    if (process >= 0 && poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR))) {
        close(process);
        process = -1;
    }
    *pid = peer.pid;
    return process;
}

static void not_connected(struct slot *s, enum td_rc rc, struct td_err *err) {
    const struct td_pool_config *c = &s->pool->config;
    bool late = now_of(s) - s->started_ms > c->start_ms;
    if (s->child) {
        if (late && td_children_signal(c->children, s->child, SIGKILL, NULL) != TD_OK) {
            s->child = 0;
        }
    } else if (rc == TD_ENOENT || rc == TD_ECLOSED) {
        slot_spawn(s);
    } else if (rc == TD_ETIMEOUT) { // stopped, by its look
        try_later(s);
    } else {
        (void)td_err_in(err, "worker %s-%d", c->name, s->index);
        slot_failed(s, err);
        s->next_ms = now_of(s) + BACKOFF_MAX_MS;
    }
}

static void slot_connect(struct slot *s) {
    struct td_err err;
    enum td_rc rc = td_ipc_connect(s->path, &s->conn, &err);
    if (rc != TD_OK) {
        not_connected(s, rc, &err);
        return;
    }
    s->process = open_process(s->conn, &s->pid);
    s->child = 0;
    s->heard_ms = now_of(s);
    if (td_watch_fd(s->pool->config.loop, td_ipc_fd(s->conn), TD_LOOP_READ, slot_read, s,
                    &s->watch) != TD_OK) {
        slot_down(s, "its socket cannot be watched");
        return;
    }
    s->state = SLOT_ATTACHING;
    slot_attach(s);
}

static void take_reply(struct slot *s, const td_frame *f, const int *fds) {
    struct pending *p = s->first;
    if (!p || p->seq != f->reply_to) {
        slot_down(s, "it answered a request that was not sent");
        return;
    }
    s->first = p->next;
    if (!s->first) {
        s->last = &s->first;
    }
    s->pending_count--;
    if (s->first) {
        s->first->since_ms = now_of(s);
    }
    if (p->reply) {
        p->reply(p->user, s->index, f, fds);
    }
    td_free(p);
}

static void take_heartbeat(struct slot *s, const Tandem__Worker__Heartbeat *m) {
    if (strcmp(s->doing, m->doing) != 0) {
        snprintf(s->doing, sizeof s->doing, "%s", m->doing);
    }
    s->doing_since_ms = (int64_t)m->since_ms;
}

static void take_frame(struct slot *s, const td_frame *f, const int *fds) {
    s->heard_ms = now_of(s);
    if (f->body_case == TANDEM__WORKER__FRAME__BODY_HEARTBEAT) {
        take_heartbeat(s, f->heartbeat);
        return;
    }
    if (f->body_case == TANDEM__WORKER__FRAME__BODY_GENERATED) {
        if (s->state == SLOT_UP) {
            s->pool->config.fns.generated(s->pool->config.user, s->index, f->generated);
        }
        return;
    }
    if (f->body_case == TANDEM__WORKER__FRAME__BODY_ERROR && f->reply_to == 0) {
        if (f->error->code == TD_ECONFLICT && s->state == SLOT_ATTACHING && s->process >= 0) {
            close(s->process); // it serves another controller: not ours to end
            s->process = -1;
        }
        slot_down(s, f->error->message);
        return;
    }
    bool attached = f->body_case == TANDEM__WORKER__FRAME__BODY_ATTACHED;
    bool refused = f->body_case == TANDEM__WORKER__FRAME__BODY_ERROR && s->state == SLOT_ATTACHING;
    take_reply(s, f, fds);
    if (refused) {
        slot_down(s, f->error->message); // of another job, or of another build
    } else if (attached && s->conn && s->state != SLOT_UP) {
        slot_attached(s, f->attached->status);
    }
}

static void slot_read(void *user, int fd, unsigned events) {
    struct slot *s = user;
    (void)fd;
    if (events & TD_LOOP_WRITE) {
        watch_writes(s);
    }
    // Until there is none: frames that were read ahead do not make the socket readable again.
    while (s->conn) {
        td_frame *f = NULL;
        int fds[TD_FRAME_FDS_MAX];
        struct td_err err;
        if (td_ipc_recv(s->conn, &f, fds, &err) != TD_OK) {
            slot_down(s, err.msg);
            return;
        }
        if (!f) {
            return;
        }
        int nfds = (int)f->fds;
        take_frame(s, f, fds);
        for (int i = 0; i < nfds; i++) {
            close(fds[i]);
        }
        td_frame_free(f);
    }
}

static void slot_check(struct slot *s) {
    const struct td_pool_config *c = &s->pool->config;
    int64_t now = now_of(s);
    if (s->doomed) {
        slot_read(s, -1, TD_LOOP_READ); // what it said last may be why: then it is down by that
    }
    if (s->doomed) {
        char *cause = s->doomed;
        s->doomed = NULL;
        slot_down(s, cause);
        td_free(cause);
        return;
    }
    if (s->state == SLOT_CONNECTING) {
        if (!has_ended(s)) {
            return; // two must not work at one place
        }
        if (s->failures > FAILURES_MAX) {
            struct td_err err;
            (void)td_fail(&err, TD_ECLOSED,
                          "worker %s-%d failed %d times in a row, at last: %s; its messages are "
                          "above",
                          c->name, s->index, s->failures, s->last_cause);
            s->failures = 0;
            s->next_ms = now + BACKOFF_MAX_MS;
            slot_failed(s, &err);
            return;
        }
        if (now >= s->next_ms) {
            slot_connect(s);
        }
        return;
    }
    if (s->state == SLOT_GONE) {
        return;
    }
    char cause[96];
    // A worker that is in the middle of an update attaches when it is done.
    int64_t silent_ms = s->state == SLOT_ATTACHING ? c->start_ms : c->silent_ms;
    if (now - s->heard_ms > silent_ms) {
        snprintf(cause, sizeof cause, "no heartbeat for %lld ms", (long long)(now - s->heard_ms));
        slot_down(s, cause);
    } else if (s->first && now - s->first->since_ms > c->request_ms) {
        snprintf(cause, sizeof cause, "no answer for %lld ms", (long long)c->request_ms);
        slot_down(s, cause);
    }
}

// A worker that was killed could not remove its socket files. One that was started twice for this
// place, by an earlier controller, may listen there instead, and nobody wants it.
static void remove_dead_socket(const struct slot *s) {
    struct td_ipc_conn *conn = NULL;
    struct td_err err;
    if (td_ipc_connect(s->path, &conn, &err) == TD_OK) {
        Tandem__Worker__Stop body = TANDEM__WORKER__STOP__INIT;
        td_frame frame = TANDEM__WORKER__FRAME__INIT;
        frame.body_case = TANDEM__WORKER__FRAME__BODY_STOP;
        frame.stop = &body;
        if (td_ipc_send(conn, &frame, NULL, 0, &err) != TD_OK) { // it ends after its grace time
            td_trace_info("stop not sent", "cause=\"%s\"", err.msg);
        }
        td_ipc_conn_free(conn);
    } else {
        td_ipc_unlink(s->path, NULL);
    }
}

static void finish_stop(struct td_pool *p) {
    int64_t now = td_loop_now_ms(p->config.loop);
    bool all = true;
    for (int i = 0; i < p->config.count; i++) {
        struct slot *s = &p->slots[i];
        if (s->child > 0 &&
            td_children_signal(p->config.children, s->child, SIGKILL, NULL) != TD_OK) {
            s->child = 0; // started, never attached; child_exited tells else
        }
        if (now >= p->stop_until_ms) {
            end_process(s);
        }
        all = has_ended(s) && s->child == 0 && all;
    }
    if (all) {
        for (int i = 0; i < p->config.count; i++) {
            remove_dead_socket(&p->slots[i]);
        }
        td_loop_defer(p->config.loop, p->stopped, p->stopped_user);
    } else {
        td_timer_start(p->timer, CONNECT_POLL_MS);
    }
}

// After this process was stopped, or the machine asleep, heartbeats lie unread: a worker is silent
// only by the time in which it could be heard.
static void forgive_stall(struct td_pool *p) {
    int64_t stall = p->tick_ms ? td_loop_now_ms(p->config.loop) - p->tick_ms : 0;
    for (int i = 0; stall > STALL_MS && i < p->config.count; i++) {
        struct slot *s = &p->slots[i];
        s->heard_ms += stall;
        s->started_ms += stall;
        if (s->first) {
            s->first->since_ms += stall;
        }
    }
}

static void on_tick(void *user) {
    struct td_pool *p = user;
    if (p->stopping) {
        finish_stop(p);
        return;
    }
    forgive_stall(p);
    int64_t delay = TICK_MS;
    for (int i = 0; i < p->config.count; i++) {
        slot_check(&p->slots[i]);
        if (p->slots[i].state == SLOT_CONNECTING) {
            delay = CONNECT_POLL_MS;
        }
    }
    p->tick_ms = td_loop_now_ms(p->config.loop) + delay;
    td_timer_start(p->timer, delay);
}

static void give_late_replies(void *user) {
    struct td_pool *p = user;
    struct late_reply *l = p->late;
    p->late = NULL;
    p->late_tail = &p->late;
    while (l) {
        struct late_reply *next = l->next;
        l->reply(l->user, l->worker, NULL, NULL);
        td_free(l);
        l = next;
    }
}

struct td_pool *td_pool_new(const struct td_pool_config *config) {
    td_assert(config->count >= 1 && config->count <= TD_POOL_WORKERS_MAX);
    struct td_pool *p = td_alloc(sizeof *p);
    p->config = *config;
    p->slots = td_alloc_array((size_t)config->count, sizeof *p->slots);
    for (int i = 0; i < config->count; i++) {
        struct slot *s = &p->slots[i];
        s->pool = p;
        s->index = i;
        s->path = td_asprintf("%s/%s-%d.sock", config->dir, config->name, i);
        s->last = &s->first;
        s->process = -1;
        s->backoff_ms = BACKOFF_FIRST_MS;
    }
    p->late_tail = &p->late;
    p->late_timer = td_timer_new(config->loop, give_late_replies, p);
    p->timer = td_timer_new(config->loop, on_tick, p);
    td_timer_start(p->timer, 0);
    return p;
}

void td_pool_stop(struct td_pool *p, int64_t stop_ms, td_loop_fn *done, void *user) {
    p->stopping = true;
    p->stopped = done;
    p->stopped_user = user;
    p->stop_until_ms = td_loop_now_ms(p->config.loop) + stop_ms;
    for (int i = 0; i < p->config.count; i++) {
        struct slot *s = &p->slots[i];
        if (!s->conn) {
            s->state = SLOT_GONE;
            continue;
        }
        Tandem__Worker__Stop body = TANDEM__WORKER__STOP__INIT;
        td_frame frame = TANDEM__WORKER__FRAME__INIT;
        frame.body_case = TANDEM__WORKER__FRAME__BODY_STOP;
        frame.stop = &body;
        slot_send(s, &frame, -1, NULL, NULL);
    }
    td_timer_start(p->timer, 0);
}

void td_pool_free(struct td_pool *p) {
    if (!p) {
        return;
    }
    td_timer_close(p->timer);
    for (int i = 0; i < p->config.count; i++) {
        struct slot *s = &p->slots[i];
        s->state = SLOT_GONE;
        td_children_forget(p->config.children, s);
        td_watch_close(s->watch);
        td_ipc_conn_free(s->conn);
        end_pending(s);
        if (s->process >= 0) {
            close(s->process);
        }
        td_free(s->doomed);
        td_free(s->path);
    }
    while (p->late) {
        give_late_replies(p);
    }
    td_timer_close(p->late_timer);
    td_free(p->slots);
    td_free(p);
}

bool td_pool_is_up(const struct td_pool *p, int worker) {
    return p->slots[worker].state == SLOT_UP;
}

void td_pool_send(struct td_pool *p, int worker, td_frame *frame, int fd, td_pool_reply_fn *reply,
                  void *user) {
    struct slot *s = &p->slots[worker];
    if (s->state == SLOT_UP && s->pending_count < TD_POOL_PENDING_MAX) {
        slot_send(s, frame, fd, reply, user);
        return;
    }
    if (s->state == SLOT_UP) {
        td_pool_kill(p, worker, "it leaves too many requests unanswered");
    }
    if (reply) {
        struct late_reply *l = td_alloc(sizeof *l);
        *l = (struct late_reply){.reply = reply, .user = user, .worker = worker};
        *p->late_tail = l;
        p->late_tail = &l->next;
        td_timer_start(p->late_timer, 0);
    }
}

// Later: it is called while a machine's effects are carried out, and down is an event for it.
void td_pool_kill(struct td_pool *p, int worker, const char *cause) {
    struct slot *s = &p->slots[worker];
    if (s->conn && !s->doomed && !p->stopping) {
        s->doomed = td_strdup(cause);
        p->tick_ms = td_loop_now_ms(p->config.loop);
        td_timer_start(p->timer, 0);
    }
}

static void slot_state(const struct slot *s, Tandem__Sync__WorkerState *out) {
    static const char *const states[] = {[SLOT_CONNECTING] = "starting",
                                         [SLOT_ATTACHING] = "setting up",
                                         [SLOT_SETTING_UP] = "setting up",
                                         [SLOT_UP] = "ready",
                                         [SLOT_GONE] = "gone"};
    int64_t since_ms = s->state == SLOT_UP ? s->doing_since_ms : s->down_ms;
    tandem__sync__worker_state__init(out);
    out->pid = (uint32_t)(s->process >= 0 ? s->pid : s->child);
    out->state = (char *)states[s->state];
    out->doing = (char *)(s->state == SLOT_UP ? s->doing : s->last_cause);
    out->for_ms = since_ms ? now_of(s) - since_ms : 0;
}

size_t td_pool_states(const struct td_pool *p, Tandem__Sync__WorkerState out[TD_POOL_WORKERS_MAX]) {
    if (!p) {
        return 0;
    }
    for (int i = 0; i < p->config.count; i++) {
        slot_state(&p->slots[i], &out[i]);
    }
    return (size_t)p->config.count;
}
