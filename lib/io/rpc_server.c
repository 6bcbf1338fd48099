// The gRPC server: see rpc.h. Methods and addresses first, then start; a stop tells health, lets
// the core refuse connections, and cancels what is left after the grace time. All is done when the
// core has no connection and no call is left here. A server that is freed earlier ends by itself in
// the background: its memory goes with its last call.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/check.h"
#include "lib/base/mem.h"
#include "lib/io/rpc_int.h"

// ---- methods ----

static enum td_rc fill_entries(struct td_rpc_server *server, const struct td_rpc_server_opts *opts,
                               struct td_err *err) {
    size_t n = opts->method_count;
    server->entries = td_alloc_array(n + TD_RPC_HEALTH_METHODS + TD_RPC_REFLECTION_METHODS,
                                     sizeof *server->entries);
    for (size_t i = 0; i < n; i++) {
        const struct td_rpc_method *method = &opts->methods[i];
        server->entries[i] = (struct td_rpc_entry){
            .method = *method, .user = method->user ? method->user : opts->user};
    }
    server->health = td_rpc_health_new(&server->entries[n]);
    server->entry_count = n + TD_RPC_HEALTH_METHODS;
    if (!opts->descriptors) {
        return TD_OK;
    }
    struct td_rpc_entry *next = &server->entries[server->entry_count];
    server->entry_count += TD_RPC_REFLECTION_METHODS;
    return td_rpc_reflection_new(server, next, opts, err);
}

static void register_entries(struct td_rpc_server *server) {
    for (size_t i = 0; i < server->entry_count; i++) {
        struct td_rpc_entry *entry = &server->entries[i];
        entry->server = server;
        entry->registered = grpc_server_register_method(
            server->core, entry->method.path, NULL,
            entry->reads ? GRPC_SRM_PAYLOAD_NONE : GRPC_SRM_PAYLOAD_READ_INITIAL_BYTE_BUFFER, 0);
        td_assert(entry->registered); // else the path is there twice
    }
    server->unknown.server = server;
}

// ---- making and ending ----

static grpc_arg int_arg(const char *key, int value) {
    return (grpc_arg){.type = GRPC_ARG_INTEGER, .key = (char *)key, .value.integer = value};
}

static grpc_server *new_core(void) {
    grpc_arg args[] = {
        int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, TD_RPC_MESSAGE_MAX),
        int_arg(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, TD_RPC_MESSAGE_MAX),
        int_arg(GRPC_ARG_MAX_METADATA_SIZE, TD_RPC_METADATA_MAX),
        int_arg(GRPC_ARG_MAX_CONCURRENT_STREAMS, TD_RPC_CALLS_MAX),
        int_arg(GRPC_ARG_ALLOW_REUSEPORT, 0), // else a second server takes the same port silently
        int_arg(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10000),
        int_arg(GRPC_ARG_KEEPALIVE_TIME_MS, TD_RPC_KEEPALIVE_MS),
        int_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, TD_RPC_KEEPALIVE_TIMEOUT_MS),
        int_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        // Below half of what clients ping with, else they are thrown out for it.
        int_arg(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, TD_RPC_KEEPALIVE_MS / 4),
    };
    grpc_channel_args all = {sizeof args / sizeof *args, args};
    return grpc_server_create(&all, NULL);
}

static void on_down(struct td_rpc_tag *tag, bool ok);
static void on_timer(void *user);

static void release_parts(struct td_rpc_server *server) {
    if (server->credentials) {
        grpc_server_credentials_release(server->credentials);
    }
    td_rpc_health_free(server->health);
    td_rpc_reflection_free(server->reflection);
    td_free(server->entries);
}

static void destroy(struct td_rpc_server *server) {
    grpc_server_destroy(server->core);
    release_parts(server);
    td_free(server);
}

enum td_rc td_rpc_server_new(const struct td_rpc_server_opts *opts, struct td_rpc_server **out,
                             struct td_err *err) {
    td_loop_assert(opts->rpc->loop);
    struct td_rpc_server *server = td_alloc(sizeof *server);
    *server = (struct td_rpc_server){
        .rpc = opts->rpc, .tls = opts->tls != NULL, .down = {.fn = on_down, .owner = server}};
    enum td_rc rc = td_rpc_server_credentials(opts->tls, &server->credentials, err);
    rc = rc != TD_OK ? rc : fill_entries(server, opts, err);
    if (rc != TD_OK) {
        release_parts(server);
        td_free(server);
        return rc;
    }
    server->core = new_core();
    server->timer = td_timer_new(server->rpc->loop, on_timer, server);
    grpc_server_register_completion_queue(server->core, server->rpc->queue, NULL);
    register_entries(server);
    server->rpc->servers++;
    *out = server;
    return TD_OK;
}

void td_rpc_server_start(struct td_rpc_server *server) {
    td_loop_assert(server->rpc->loop);
    td_assert(!server->started && !server->stopping);
    server->started = true;
    grpc_server_start(server->core);
    for (int i = 0; i < TD_RPC_ARMED_PER_METHOD; i++) {
        for (size_t m = 0; m < server->entry_count; m++) {
            td_rpc_call_arm(&server->entries[m]);
        }
    }
    td_rpc_call_arm(&server->unknown);
}

void td_rpc_server_health(struct td_rpc_server *server, const char *service, bool serving) {
    td_loop_assert(server->rpc->loop);
    td_rpc_health_set(server->health, service, serving);
}

// The last call and the last connection end in either order.
static void ended(struct td_rpc_server *server) {
    if (!server->is_down || server->calls > 0) {
        return;
    }
    if (server->freed) {
        destroy(server);
    } else {
        td_timer_start(server->timer, 0); // done may free anything, so it gets a turn of its own
    }
}

void td_rpc_server_call_ended(struct td_rpc_server *server) {
    server->calls--;
    ended(server);
}

static void on_down(struct td_rpc_tag *tag, bool ok) {
    (void)ok;
    struct td_rpc_server *server = tag->owner;
    server->is_down = true;
    ended(server);
}

static void on_timer(void *user) {
    struct td_rpc_server *server = user;
    if (!server->is_down || server->calls > 0) {
        grpc_server_cancel_all_calls(server->core); // the grace time is over
    } else {
        server->done(server->done_user);
    }
}

static void stop(struct td_rpc_server *server) {
    server->stopping = true;
    td_rpc_health_stop(server->health);
    td_rpc_calls_stop(server);
    td_rpc_tag_begin(server->rpc, &server->down);
    grpc_server_shutdown_and_notify(server->core, server->rpc->queue, &server->down);
}

void td_rpc_server_stop(struct td_rpc_server *server, int64_t grace_ms, td_loop_fn *done,
                        void *user) {
    td_loop_assert(server->rpc->loop);
    td_assert(!server->stopping);
    server->done = done;
    server->done_user = user;
    stop(server);
    td_timer_start(server->timer, grace_ms);
}

void td_rpc_server_free(struct td_rpc_server *server) {
    if (!server) {
        return;
    }
    td_loop_assert(server->rpc->loop);
    td_assert(!server->freed);
    if (!server->stopping) {
        stop(server);
    }
    td_rpc_calls_drop(server);
    td_timer_close(server->timer);
    for (size_t i = 0; i < server->lock_count; i++) {
        close(server->locks[i]);
    }
    server->rpc->servers--;
    server->freed = true;
    if (server->is_down && server->calls == 0) {
        destroy(server);
    } else {
        grpc_server_cancel_all_calls(server->core);
    }
}

// ---- addresses ----

// The core says nothing of why it could not listen, and takes a UNIX socket that is in use, so
// both are found out before.
static enum td_rc try_bind(const struct addrinfo *to, const char *address, struct td_err *err) {
    int fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return td_fail_errno(err, errno, "cannot make a socket for %s", address);
    }
    int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on); // as the core does
    int errnum = bind(fd, to->ai_addr, to->ai_addrlen) == 0 ? 0 : errno;
    close(fd);
    if (errnum == EADDRINUSE) {
        return td_fail(err, TD_ECONFLICT,
                       "%s is in use: stop what listens there or take another port", address);
    }
    return errnum == 0 ? TD_OK : td_fail_errno(err, errnum, "cannot listen at %s", address);
}

static bool is_port(const char *text) {
    size_t n = strspn(text, "0123456789");
    return n >= 1 && n <= 5 && text[n] == '\0' && strtol(text, NULL, 10) <= UINT16_MAX;
}

static enum td_rc check_port(const char *address, struct td_err *err) {
    const char *colon = strrchr(address, ':');
    size_t n = colon ? (size_t)(colon - address) : 0;
    if (n == 0 || !is_port(colon + 1)) {
        return td_fail(err, TD_EINVAL, "%s is no address: write HOST:PORT or unix:PATH", address);
    }
    bool brackets = address[0] == '[' && address[n - 1] == ']';
    char *host = brackets ? td_strndup(address + 1, n - 2) : td_strndup(address, n);
    struct addrinfo want = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    int gai = getaddrinfo(host, colon + 1, &want, &found);
    td_free(host);
    if (gai != 0) {
        return td_fail(err, TD_EINVAL, "%s: %s", address, gai_strerror(gai));
    }
    enum td_rc rc = TD_OK;
    for (struct addrinfo *to = found; to && rc == TD_OK; to = to->ai_next) {
        rc = try_bind(to, address, err);
    }
    freeaddrinfo(found);
    return rc;
}

static enum td_rc lock_path(struct td_rpc_server *server, const char *path, struct td_err *err) {
    char *name = td_asprintf("%s.lock", path);
    int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    enum td_rc rc = TD_OK;
    if (fd < 0) {
        rc = td_fail_errno(err, errno, "cannot open %s", name);
    } else if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        rc = errno == EWOULDBLOCK
                 ? td_fail(err, TD_ECONFLICT, "%s is in use by another server", path)
                 : td_fail_errno(err, errno, "cannot lock %s", name);
        close(fd);
    } else {
        server->locks[server->lock_count++] = fd;
    }
    td_free(name);
    return rc;
}

enum td_rc td_rpc_server_listen(struct td_rpc_server *server, const char *address, int *port,
                                struct td_err *err) {
    td_loop_assert(server->rpc->loop);
    td_assert(!server->started && !server->stopping);
    if (server->address_count == TD_RPC_ADDRESSES_MAX) {
        return td_fail(err, TD_ELIMIT, "more than %d addresses", TD_RPC_ADDRESSES_MAX);
    }
    bool is_unix = strncmp(address, "unix:", 5) == 0;
    enum td_rc rc = is_unix ? lock_path(server, address + 5, err) : check_port(address, err);
    if (rc != TD_OK) {
        return rc;
    }
    int got = grpc_server_add_http2_port(server->core, address, server->credentials);
    if (got == 0 && server->tls) {
        return td_fail(err, TD_EINVAL,
                       "cannot listen at %s: key, certificate and CA do not fit "
                       "together or are damaged (or the address is)",
                       address);
    }
    if (got == 0) {
        return td_fail(err, TD_EIO, "cannot listen at %s", address);
    }
    server->address_count++;
    if (port) {
        *port = is_unix ? 0 : got;
    }
    return TD_OK;
}
