// A connection to a Redis server: see resp_int.h.
#include "lib/io/resp_int.h"

#include <errno.h>
#include <hiredis/hiredis.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/buf.h"
#include "lib/base/check.h"
#include "lib/base/mem.h"

enum { PIECE = 16384, PIECES_PER_TURN = 32 };

struct td_resp {
    struct td_resp_opts opts;
    int fd;
    struct td_watch *watch;
    unsigned events;
    redisReader *reader;
    redisReplyObjectFunctions fns; // the reader's, with a limit
    void *(*create_array)(const redisReadTask *task, int elements);
    size_t elements; // of the reply that is being read
    struct td_buf out;
    size_t sent; // of out
    bool connecting, busy, freed;
};

// ---- the end

static void close_socket(struct td_resp *resp) {
    td_watch_close(resp->watch);
    resp->watch = NULL;
    if (resp->fd >= 0) {
        close(resp->fd);
    }
    resp->fd = -1;
}

static void destroy(struct td_resp *resp) {
    redisReaderFree(resp->reader);
    td_buf_fini(&resp->out);
    td_free(resp);
}

void td_resp_free(struct td_resp *resp) {
    if (resp) {
        close_socket(resp);
        resp->freed = true;
        if (!resp->busy) {
            destroy(resp);
        }
    }
}

static void fail(struct td_resp *resp, const struct td_err *err) {
    close_socket(resp);
    resp->opts.down(resp->opts.user, err);
}

static void fail_errno(struct td_resp *resp, int errnum, const char *what) {
    struct td_err err;
    (void)td_fail_errno(&err, errnum, "%s", what);
    fail(resp, &err);
}

// ---- out

static void wait_for(struct td_resp *resp, unsigned events) {
    if (resp->events != events) {
        resp->events = events;
        td_watch_set(resp->watch, events);
    }
}

static void write_some(struct td_resp *resp) {
    while (resp->sent < resp->out.len) {
        ssize_t n =
            send(resp->fd, resp->out.data + resp->sent, resp->out.len - resp->sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0 && errno != EAGAIN) {
            fail_errno(resp, errno, "write");
            return;
        }
        if (n < 0) {
            wait_for(resp, TD_LOOP_READ | TD_LOOP_WRITE);
            return;
        }
        resp->sent += (size_t)n;
    }
    td_buf_fini(&resp->out);
    resp->sent = 0;
    wait_for(resp, TD_LOOP_READ);
}

void td_resp_command(struct td_resp *resp, size_t argc, const char *const *argv, const size_t *n) {
    char *bytes = NULL;
    int len = redisFormatCommandArgv(&bytes, (int)argc, (const char **)argv, n);
    td_assert_op(len, >, 0);
    td_buf_put(&resp->out, bytes, (size_t)len);
    redisFreeCommand(bytes);
    if (resp->watch && !resp->connecting) {
        wait_for(resp, TD_LOOP_READ | TD_LOOP_WRITE);
    }
}

// ---- in

static void *create_array(const redisReadTask *task, int elements) {
    struct td_resp *resp = task->privdata;
    resp->elements += (size_t)elements;
    return resp->elements <= TD_RESP_REPLY_ELEMENTS_MAX ? resp->create_array(task, elements) : NULL;
}

// Hands out the replies that are whole.
static void take_replies(struct td_resp *resp) {
    void *reply = NULL;
    int rc;
    while ((rc = redisReaderGetReply(resp->reader, &reply)) == REDIS_OK && reply) {
        resp->elements = 0;
        resp->opts.reply(resp->opts.user, reply);
        freeReplyObject(reply);
        if (!resp->watch) { // freed, or failed
            return;
        }
    }
    struct td_err err;
    if (resp->elements > TD_RESP_REPLY_ELEMENTS_MAX ||
        resp->reader->len > TD_RESP_REPLY_BYTES_MAX) {
        (void)td_fail(&err, TD_EIO, "a reply larger than %d bytes or %d elements",
                      TD_RESP_REPLY_BYTES_MAX, TD_RESP_REPLY_ELEMENTS_MAX);
        fail(resp, &err);
    } else if (rc != REDIS_OK) {
        (void)td_fail(&err, TD_EIO, "that is no Redis server: %s", resp->reader->errstr);
        fail(resp, &err);
    }
}

static void read_some(struct td_resp *resp) {
    char piece[PIECE];
    for (int i = 0; i < PIECES_PER_TURN && resp->watch; i++) {
        ssize_t n = recv(resp->fd, piece, sizeof piece, 0);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0 && errno == EAGAIN) {
            return;
        }
        if (n < 0) {
            fail_errno(resp, errno, "read");
            return;
        }
        if (n == 0) {
            struct td_err err;
            (void)td_fail(&err, TD_ECLOSED, "the server closed the connection");
            fail(resp, &err);
            return;
        }
        (void)redisReaderFeed(resp->reader, piece, (size_t)n); // its errors show at the next reply
        take_replies(resp);
    }
}

static void on_ready(void *user, int fd, unsigned events) {
    struct td_resp *resp = user;
    int errnum = 0;
    socklen_t n = sizeof errnum;
    resp->busy = true;
    if (resp->connecting && getsockopt(fd, SOL_SOCKET, SO_ERROR, &errnum, &n) == 0 && errnum) {
        fail_errno(resp, errnum, "connect");
    } else {
        resp->connecting = false;
        if (events & TD_LOOP_READ) {
            read_some(resp);
        }
        if (resp->watch) {
            write_some(resp);
        }
    }
    resp->busy = false;
    if (resp->freed) {
        destroy(resp);
    }
}

// ---- the beginning

static enum td_rc begin(struct td_resp *resp, struct td_err *err) {
    const struct sockaddr *address = resp->opts.address;
    int on = 1;
    resp->fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (resp->fd < 0) {
        return td_fail_errno(err, errno, "socket");
    }
    if (address->sa_family != AF_UNIX) {
        (void)setsockopt(resp->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); // only slower without
    }
    if (connect(resp->fd, address, (socklen_t)resp->opts.address_n) != 0 && errno != EINPROGRESS) {
        return td_fail_errno(err, errno, "connect");
    }
    resp->events = TD_LOOP_WRITE;
    resp->connecting = true;
    if (td_watch_fd(resp->opts.loop, resp->fd, resp->events, on_ready, resp, &resp->watch) !=
        TD_OK) {
        return td_fail(err, TD_EIO, "cannot watch a socket");
    }
    return TD_OK;
}

enum td_rc td_resp_new(const struct td_resp_opts *opts, struct td_resp **out, struct td_err *err) {
    struct td_resp *resp = td_alloc(sizeof *resp);
    resp->opts = *opts;
    resp->reader = redisReaderCreate();
    td_assert(resp->reader);
    resp->fns = *resp->reader->fn;
    resp->create_array = resp->fns.createArray;
    resp->fns.createArray = create_array;
    resp->reader->fn = &resp->fns;
    resp->reader->privdata = resp;
    enum td_rc rc = begin(resp, err);
    resp->opts.address = NULL; // was borrowed
    if (rc != TD_OK) {
        close_socket(resp);
        destroy(resp);
        return rc;
    }
    *out = resp;
    return TD_OK;
}
