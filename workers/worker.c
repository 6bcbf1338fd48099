// A worker's command thread: accepts one controller, takes its frames in order, answers each, and
// between frames lets a rollout seat generate. No loop library: it polls two descriptors.
#include "workers/worker.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "lib/base/random.h"
#include "lib/base/trace.h"
#include "lib/spec/build_id.h"
#include "workers/worker_int.h"

enum { POLL_MS = 200 };

// The stop flag: the second of the two mutable globals that the style allows.
static volatile sig_atomic_t stop_flag;

static void on_stop_signal(int signo) {
    (void)signo;
    stop_flag = 1;
}

void td_reply_done(struct td_reply *r) {
    tandem__worker__done__init(&r->done);
    r->frame.body_case = TANDEM__WORKER__FRAME__BODY_DONE;
    r->frame.done = &r->done;
}

static void reply_attached(struct td_worker *w, struct td_reply *r) {
    tandem__worker__attached__init(&r->attached);
    Tandem__Worker__Status *s = &r->status;
    tandem__worker__status__init(s);
    s->worker = w->id;
    s->pid = getpid();
    s->job = w->job;
    s->set_up = w->set_up;
    s->role = w->role;
    s->build = (char *)td_build_id();
    s->device = "cpu";
    s->ref_offset = s->finished_ref_offset = -1;
    if (w->train.trainer) {
        td_train_seat_status(w, r);
    }
    if (w->rollout.generator) {
        td_rollout_seat_status(w, r);
    }
    r->attached.status = s;
    r->frame.body_case = TANDEM__WORKER__FRAME__BODY_ATTACHED;
    r->frame.attached = &r->attached;
}

static void send_error(struct td_ipc_conn *conn, uint64_t reply_to, const struct td_err *cause) {
    Tandem__Worker__Error body = TANDEM__WORKER__ERROR__INIT;
    body.code = (uint32_t)cause->code;
    body.message = (char *)cause->msg;
    td_frame frame = TANDEM__WORKER__FRAME__INIT;
    frame.reply_to = reply_to;
    frame.body_case = TANDEM__WORKER__FRAME__BODY_ERROR;
    frame.error = &body;
    struct td_err err;
    if (td_ipc_send(conn, &frame, NULL, 0, &err) != TD_OK) {
        td_trace_info("error not sent", "cause=\"%s\"", err.msg);
    }
}

// Its sequences go with it: another one would not know them.
static void drop_controller(struct td_worker *w, const char *cause) {
    td_trace_info("controller gone", "attached=%d cause=\"%s\"", (int)w->attached, cause);
    if (w->attached) {
        td_heartbeat_attach(w->heartbeat, NULL);
    }
    if (w->rollout.generator) {
        td_generator_close_all(w->rollout.generator);
    }
    td_ipc_conn_free(w->conn);
    w->conn = NULL;
    w->attached = false;
}

static enum td_rc check_attach(struct td_worker *w, const Tandem__Worker__Attach *m,
                               struct td_err *err) {
    if (m->protocol != TD_IPC_PROTOCOL) {
        return td_fail(err, TD_EUNSUPPORTED, "protocol %u, this worker speaks %d", m->protocol,
                       TD_IPC_PROTOCOL);
    }
    if (w->set_up && w->job != m->job) {
        return td_fail(err, TD_ECONFLICT, "worker belongs to job %llu, not %llu",
                       (unsigned long long)w->job, (unsigned long long)m->job);
    }
    w->attached = true;
    w->attached_job = m->job;
    td_heartbeat_attach(w->heartbeat, w->conn);
    if (w->rollout.generator) {
        td_generator_close_all(w->rollout.generator);
    }
    return TD_OK;
}

static enum td_rc handle(struct td_worker *w, const td_frame *f, const int *fds, struct td_reply *r,
                         struct td_err *err) {
    if (f->body_case == TANDEM__WORKER__FRAME__BODY_ATTACH) {
        enum td_rc rc = check_attach(w, f->attach, err);
        if (rc == TD_OK) {
            reply_attached(w, r);
        }
        return rc;
    }
    if (f->body_case == TANDEM__WORKER__FRAME__BODY_STOP) {
        w->stopping = true;
        td_reply_done(r);
        return TD_OK;
    }
    if (!w->attached) {
        return td_fail(err, TD_ECONFLICT, "the first frame must be Attach");
    }
    if (f->body_case == TANDEM__WORKER__FRAME__BODY_SETUP) {
        td_heartbeat_doing(w->heartbeat, TD_DOING_SETUP);
        td_reply_done(r);
        return td_seat_setup(w, f->setup, err);
    }
    if (w->train.trainer) {
        return td_train_seat_handle(w, f, fds, r, err);
    }
    if (w->rollout.generator) {
        return td_rollout_seat_handle(w, f, r, err);
    }
    return td_fail(err, TD_ECONFLICT, "no Setup yet");
}

static void serve_frame(struct td_worker *w, td_frame *f, int *fds) {
    struct td_reply r = {.fd = -1};
    tandem__worker__frame__init(&r.frame);
    struct td_err err = {0};
    enum td_rc rc = handle(w, f, fds, &r, &err);
    td_heartbeat_doing(w->heartbeat, TD_DOING_NOTHING);
    if (rc != TD_OK) {
        td_trace_info("frame refused", "body=%d cause=\"%s\"", (int)f->body_case, err.msg);
        send_error(w->conn, f->seq, &err);
    } else {
        r.frame.reply_to = f->seq;
        if (td_ipc_send(w->conn, &r.frame, &r.fd, r.fd >= 0, &err) != TD_OK) {
            td_trace_info("reply not sent", "cause=\"%s\"", err.msg);
            send_error(w->conn, f->seq, &err); // when the connection is over, recv tells
        }
    }
    if (r.close_fd) {
        close(r.fd);
    }
    td_free(r.scores);
}

static void serve_frames(struct td_worker *w) {
    // Until there is none: frames that were read ahead do not make the socket readable again.
    while (w->conn && !w->stopping) {
        td_frame *f = NULL;
        int fds[TD_FRAME_FDS_MAX];
        struct td_err err;
        if (td_ipc_recv(w->conn, &f, fds, &err) != TD_OK) {
            drop_controller(w, err.msg);
            return;
        }
        if (!f) {
            return;
        }
        int nfds = (int)f->fds;
        bool attach = f->body_case == TANDEM__WORKER__FRAME__BODY_ATTACH;
        serve_frame(w, f, fds);
        for (int i = 0; i < nfds; i++) {
            close(fds[i]);
        }
        td_frame_free(f);
        if (attach && !w->attached) {
            drop_controller(w, "it may not attach");
        }
    }
}

static void accept_controller(struct td_worker *w) {
    struct td_ipc_conn *conn = NULL;
    struct td_err err;
    enum td_rc rc = td_ipc_accept(w->listener, &conn, &err);
    if (rc != TD_OK) {
        if (rc != TD_ETIMEOUT) { // out of descriptors: the connection goes on waiting
            td_trace_warn("connection not accepted", "cause=\"%s\"", err.msg);
            poll(NULL, 0, POLL_MS);
        }
        return;
    }
    if (w->conn) {
        serve_frames(w); // perhaps the old one has ended meanwhile
    }
    if (w->conn && w->attached) {
        (void)td_fail(&err, TD_ECONFLICT, "this worker serves another controller");
        send_error(conn, 0, &err);
        td_ipc_conn_free(conn);
        return;
    }
    if (w->conn) {
        drop_controller(w, "it did not attach before another one came");
    }
    w->conn = conn;
}

static void wait_for_work(struct td_worker *w, bool busy) {
    struct pollfd p[2] = {{.fd = w->listener, .events = POLLIN}, {.fd = -1}};
    if (w->conn) {
        struct td_err err;
        bool pending = false;
        if (td_ipc_flush(w->conn, &pending, &err) != TD_OK) {
            drop_controller(w, err.msg);
            return;
        }
        p[1].fd = td_ipc_fd(w->conn);
        p[1].events = (short)(POLLIN | (pending ? POLLOUT : 0));
    }
    if (poll(p, 2, busy ? 0 : POLL_MS) <= 0) {
        return;
    }
    if (p[1].revents) {
        serve_frames(w);
    }
    if (p[0].revents) {
        accept_controller(w);
    }
}

static void command_loop(struct td_worker *w) {
    bool busy = false;
    while (!w->stopping && !stop_flag) {
        wait_for_work(w, busy);
        busy = false;
        if (w->rollout.generator && w->attached) {
            struct td_err err = {0};
            if (td_rollout_seat_turn(w, &busy, &err) != TD_OK) {
                td_trace_error("generation failed", "cause=\"%s\"", err.msg);
                if (w->conn) {
                    send_error(w->conn, 0, &err);
                }
                w->stopping = true; // the process is the unit of recovery
            }
        }
    }
}

static void flush_out(struct td_worker *w) {
    bool pending = true;
    struct td_err err;
    for (int i = 0; i < 20 && w->conn && pending; i++) {
        if (td_ipc_flush(w->conn, &pending, &err) != TD_OK) {
            return;
        }
        struct pollfd p = {.fd = td_ipc_fd(w->conn), .events = POLLOUT};
        if (pending) {
            (void)poll(&p, 1, 100);
        }
    }
}

enum td_rc td_worker_run(const struct td_worker_config *config, struct td_err *err) {
    struct sigaction act = {.sa_handler = on_stop_signal};
    sigaction(SIGTERM, &act, NULL);
    act.sa_handler = SIG_IGN;
    sigaction(SIGINT, &act, NULL); // the controller decides
    sigaction(SIGPIPE, &act, NULL);
    sigaction(SIGXFSZ, &act, NULL); // a file size limit is an error of the write
    struct td_worker w = {.config = config, .listener = -1};
    td_train_seat_init(&w.train);
    w.id = td_random_id();
    enum td_rc rc = td_ipc_listen(config->socket_path, &w.listener, err);
    if (rc != TD_OK) {
        return rc;
    }
    struct td_ipc_place place = td_ipc_place(config->socket_path);
    w.heartbeat = td_heartbeat_start(config->grace_ms, config->socket_path, w.listener);
    command_loop(&w);
    flush_out(&w);
    td_heartbeat_stop(w.heartbeat);
    if (w.rollout.generator) {
        td_trace_info("worker ends", "generated_tokens=%llu",
                      (unsigned long long)td_generator_tokens(w.rollout.generator));
    }
    // First of all: the controller takes the end of its connection for the end of the process.
    td_weights_server_free(w.train.server);
    w.train.server = NULL;
    td_ipc_unlink(config->socket_path, &place);
    close(w.listener);
    td_ipc_conn_free(w.conn);
    td_seat_fini(&w);
    return TD_OK;
}
