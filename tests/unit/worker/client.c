// A controller's end of a real tandem-worker process: see client.h.
#include "tests/unit/worker/client.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"

enum { CONTROLLER = 0x5eed, JOURNAL = 0x10f };

static void spawn(struct client *c, int grace_s) {
    char grace[16];
    snprintf(grace, sizeof grace, "%d", grace_s);
    c->pid = fork();
    assert_true(c->pid >= 0);
    if (c->pid == 0) {
        execl(TD_TEST_WORKER, TD_TEST_WORKER, "--socket", c->socket, "--grace-s", grace, NULL);
        _exit(127);
    }
}

void client_start_at(struct client *c, const struct tiny_job *job, const char *name, int grace_s) {
    *c = (struct client){.job = job, .socket = tiny_job_path(job, name), .reply_fd = -1, .seq = 1};
    spawn(c, grace_s);
    client_connect(c);
}

void client_start(struct client *c, const struct tiny_job *job, int grace_s) {
    client_start_at(c, job, "w.sock", grace_s);
}

void client_connect(struct client *c) {
    int64_t until = td_clock_ms() + CLIENT_WAIT_MS;
    struct td_err err;
    while (td_ipc_connect(c->socket, &c->conn, &err) != TD_OK) {
        if (td_clock_ms() > until) {
            fail_msg("%s", err.msg);
        }
        (void)poll(NULL, 0, 5);
    }
}

static void drop_reply(struct client *c) {
    td_frame_free(c->reply);
    c->reply = NULL;
    if (c->reply_fd >= 0) {
        close(c->reply_fd);
    }
    c->reply_fd = -1;
}

void client_disconnect(struct client *c) {
    drop_reply(c);
    td_ipc_conn_free(c->conn);
    c->conn = NULL;
}

void client_expect_exit(struct client *c, int status) {
    int64_t until = td_clock_ms() + CLIENT_WAIT_MS;
    int found = -1;
    while (waitpid(c->pid, &found, WNOHANG) == 0) {
        assert_true(td_clock_ms() < until);
        (void)poll(NULL, 0, 5);
    }
    c->pid = 0;
    assert_int_equal(found, status);
    assert_false(td_file_exists(c->socket));
    char *weights = td_asprintf("%s" TD_IPC_WEIGHTS_SUFFIX, c->socket);
    assert_false(td_file_exists(weights));
    td_free(weights);
}

void client_end(struct client *c) {
    if (c->pid && c->conn) {
        Tandem__Worker__Stop stop = TANDEM__WORKER__STOP__INIT;
        client_get(c, FRAME(stop, STOP, &stop), -1, TANDEM__WORKER__FRAME__BODY_DONE);
        client_expect_exit(c, 0);
    } else if (c->pid) {
        kill(c->pid, SIGKILL);
        waitpid(c->pid, NULL, 0);
    }
    client_disconnect(c);
    td_free(c->socket);
}

void client_send(struct client *c, td_frame *frame, int fd) {
    struct td_err err;
    frame->seq = ++c->seq;
    if (td_ipc_send(c->conn, frame, &fd, fd >= 0, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
}

static void take_result(struct client *c, const Tandem__Worker__Generated *m) {
    assert_true(c->result_count < CLIENT_RESULTS_MAX && m->n_ids <= CLIENT_IDS_MAX);
    assert_int_equal(m->n_ids, m->n_logp);
    struct result *r = &c->results[c->result_count++];
    *r = (struct result){.sequence = m->sequence,
                         .n = (int)m->n_ids,
                         .finish = (int)m->finish,
                         .lineage = m->version->lineage,
                         .step = m->version->step};
    memcpy(r->ids, m->ids, m->n_ids * sizeof *r->ids);
    memcpy(r->logp, m->logp, m->n_logp * sizeof *r->logp);
}

// One frame; true when it is a reply, which is then kept.
static bool take_frame(struct client *c) {
    int64_t until = td_clock_ms() + CLIENT_WAIT_MS;
    td_frame *f = NULL;
    int fds[TD_FRAME_FDS_MAX];
    struct td_err err;
    for (;;) {
        bool pending = false;
        if (td_ipc_recv(c->conn, &f, fds, &err) != TD_OK ||
            td_ipc_flush(c->conn, &pending, &err) != TD_OK) {
            fail_msg("%s", err.msg);
        }
        if (f) {
            break;
        }
        assert_true(td_clock_ms() < until);
        struct pollfd p = {.fd = td_ipc_fd(c->conn), .events = pending ? POLLIN | POLLOUT : POLLIN};
        (void)poll(&p, 1, 100);
    }
    bool reply = false;
    if (f->body_case == TANDEM__WORKER__FRAME__BODY_HEARTBEAT) {
        c->beats++;
        c->open_sequences = f->heartbeat->open_sequences;
        snprintf(c->doing, sizeof c->doing, "%s", f->heartbeat->doing);
    } else if (f->body_case == TANDEM__WORKER__FRAME__BODY_GENERATED) {
        take_result(c, f->generated);
    } else {
        reply = true;
        drop_reply(c);
        c->reply = f;
        c->reply_fd = f->fds ? fds[0] : -1;
        return reply;
    }
    assert_int_equal(f->fds, 0);
    td_frame_free(f);
    return reply;
}

const td_frame *client_reply(struct client *c) {
    while (!take_frame(c)) {
    }
    assert_int_equal(c->reply->reply_to, c->seq);
    return c->reply;
}

void client_wait_beats(struct client *c, int more) {
    int want = c->beats + more;
    while (c->beats < want) {
        assert_false(take_frame(c));
    }
}

void client_wait_results(struct client *c, int count) {
    while (c->result_count < count) {
        assert_false(take_frame(c));
    }
}

const td_frame *client_ask(struct client *c, td_frame *frame, int fd) {
    client_send(c, frame, fd);
    return client_reply(c);
}

void client_refused(struct client *c, td_frame *frame, int fd, enum td_rc code, const char *part) {
    const td_frame *f = client_ask(c, frame, fd);
    assert_int_equal(f->body_case, TANDEM__WORKER__FRAME__BODY_ERROR);
    if (f->error->code != (uint32_t)code || !strstr(f->error->message, part)) {
        fail_msg("expected %s \"%s\", got %s: %s", td_rc_name(code), part,
                 td_rc_name((enum td_rc)f->error->code), f->error->message);
    }
}

const td_frame *client_get(struct client *c, td_frame *frame, int fd,
                           Tandem__Worker__Frame__BodyCase body) {
    const td_frame *f = client_ask(c, frame, fd);
    if (f->body_case == TANDEM__WORKER__FRAME__BODY_ERROR) {
        fail_msg("refused: %s", f->error->message);
    }
    assert_int_equal(f->body_case, body);
    return f;
}

const Tandem__Worker__Status *client_attach(struct client *c) {
    Tandem__Worker__Attach m = TANDEM__WORKER__ATTACH__INIT;
    m.protocol = TD_IPC_PROTOCOL;
    m.controller = CONTROLLER;
    m.job = TINY_JOB_ID;
    m.journal_id = JOURNAL;
    const td_frame *f =
        client_get(c, FRAME(attach, ATTACH, &m), -1, TANDEM__WORKER__FRAME__BODY_ATTACHED);
    assert_non_null(f->attached->status);
    return f->attached->status;
}

void client_setup(struct client *c, const char *role, uint32_t size) {
    static int32_t stop_ids[] = {TINY_JOB_EOS};
    uint8_t allowed[TINY_JOB_VOCAB];
    memset(allowed, 1, sizeof allowed);
    Tandem__Worker__Setup m = TANDEM__WORKER__SETUP__INIT;
    char *model = tiny_job_path(c->job, "model");
    m.job = TINY_JOB_ID;
    m.spec.data = c->job->canonical.data;
    m.spec.len = c->job->canonical.len;
    m.role = (char *)role;
    m.size = size;
    m.threads = 1;
    m.model_dir = model;
    m.total_steps = 100;
    if (strcmp(role, "rollout") == 0) {
        m.allowed_ids.data = allowed;
        m.allowed_ids.len = sizeof allowed;
        m.stop_ids = stop_ids;
        m.n_stop_ids = 1;
    }
    client_get(c, FRAME(setup, SETUP, &m), -1, TANDEM__WORKER__FRAME__BODY_DONE);
    td_free(model);
}
