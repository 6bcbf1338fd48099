// The store in Redis: see kv.h. Loop thread; names are looked up on a thread of a work queue.
// Resting → looking up → greeting → ready, and back to resting whenever anything is wrong with the
// connection: an answer that makes no sense, or one that does not come in time. What was under way
// then ends with an error; nothing is sent twice. Replies come in the order of commands, so a queue
// says what each one is.
#include <hiredis/hiredis.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "lib/base/address.h"
#include "lib/base/check.h"
#include "lib/base/clock.h"
#include "lib/base/file.h"
#include "lib/base/map.h"
#include "lib/base/rng.h"
#include "lib/base/trace.h"
#include "lib/io/kv_int.h"
#include "lib/io/resp_int.h"
#include "lib/io/workq.h"

enum {
    PAUSE_MS = 100, // the first; doubles
    PAUSE_MAX_MS = 5000,
    CHECK_MS = 2000, // between looks at the mark
    WORD_MAX = 64,   // bytes of a run id or a mark
    PASSWORD_MAX = 1024,
    SCAN_COUNT = 512,
    MGET_KEYS = 32, // so that a reply holds that many values of TD_KV_VALUE_MAX
};
#define MARK_TTL_MS "600000"
#define UNIX_PREFIX "unix:"

_Static_assert(MGET_KEYS *(size_t)TD_KV_VALUE_MAX < TD_RESP_REPLY_BYTES_MAX, "a reply fits");

enum state { RESTING, LOOKING_UP, GREETING, READY };

enum expected { // of a reply
    OF_AUTH,
    OF_INFO,
    OF_MARK_SET, // errors do not matter: the read decides
    OF_MARK_GET,
    OF_SET,
    OF_GET,
    OF_DELETE,
    OF_SCAN,
    OF_MGET,
};

struct command {
    struct command *next;
    enum expected expected;
    struct td_kv_call *call; // NULL: ours
    size_t first, count;     // MGET: which pairs
    int64_t deadline_ms;
};

struct target {
    struct sockaddr_storage address;
    socklen_t n;
    struct td_err err; // .code TD_OK: good
};

struct redis {
    struct td_kv *kv;
    struct td_loop *loop;
    char *address, *password_file;
    int64_t timeout_ms;
    enum state state;
    struct td_resp *resp;
    struct td_workq *workq; // NULL until a name must be looked up
    struct target target;   // LOOKING_UP: the other thread's
    struct td_timer *timer; // RESTING: the next attempt; else the earliest deadline
    int64_t timer_ms;       // when that is
    struct td_timer *check;
    struct command *commands, **commands_tail;
    struct td_kv_call *calls;
    unsigned failures; // since it was ready
    struct td_rng rng;
    struct td_err why; // not connected
    int64_t since_ms;
    char run_id[WORD_MAX], mark[WORD_MAX];
    bool renewed, closing;
};

static void drop(struct redis *redis, const struct td_err *err);

// ---- commands out

static void send_command(struct redis *redis, const struct command *like, size_t argc,
                         const char *const *argv, const size_t *lengths) {
    struct command *command = td_memdup(like, sizeof *like);
    command->deadline_ms =
        like->call ? like->call->deadline_ms : td_loop_now_ms(redis->loop) + redis->timeout_ms;
    *redis->commands_tail = command;
    redis->commands_tail = &command->next;
    if (redis->commands == command || command->deadline_ms < redis->timer_ms) {
        int64_t left = command->deadline_ms - td_loop_now_ms(redis->loop);
        redis->timer_ms = command->deadline_ms;
        td_timer_start(redis->timer, left > 0 ? left : 0);
    }
    td_resp_command(redis->resp, argc, argv, lengths);
}

// Words without zero bytes.
static void send_words(struct redis *redis, const struct command *like, size_t argc,
                       const char *const *argv) {
    size_t lengths[8];
    td_assert_op(argc, <=, 8);
    for (size_t i = 0; i < argc; i++) {
        lengths[i] = strlen(argv[i]);
    }
    send_command(redis, like, argc, argv, lengths);
}

#define SEND(redis, like, ...)                                                                     \
    send_words(redis, &(struct command)like,                                                       \
               sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *),                        \
               (const char *const[]){__VA_ARGS__})
#define OF(...)                                                                                    \
    { __VA_ARGS__ }

// The mark says which data this is: whoever finds none sets a new one.
static void look_at_mark(struct redis *redis) {
    char fresh[WORD_MAX];
    snprintf(fresh, sizeof fresh, "%016" PRIx64 "%016" PRIx64, td_rng_next(&redis->rng),
             td_rng_next(&redis->rng));
    SEND(redis, OF(.expected = OF_MARK_SET), "SET", TD_KV_MARK, fresh, "NX", "PX", MARK_TTL_MS);
    SEND(redis, OF(.expected = OF_MARK_SET), "PEXPIRE", TD_KV_MARK, MARK_TTL_MS);
    SEND(redis, OF(.expected = OF_MARK_GET), "GET", TD_KV_MARK);
}

static void on_check(void *user) {
    struct redis *redis = user;
    if (redis->state == READY) {
        look_at_mark(redis);
        td_timer_start(redis->check, CHECK_MS);
    }
}

static void send_scan(struct redis *redis, struct td_kv_call *call) {
    char count[16];
    snprintf(count, sizeof count, "%d", SCAN_COUNT);
    call->pending++;
    SEND(redis, OF(.expected = OF_SCAN, .call = call), "SCAN", td_buf_str(&call->cursor), "MATCH",
         td_buf_str(&call->pattern), "COUNT", count);
}

static void send_mgets(struct redis *redis, struct td_kv_call *call, size_t first) {
    const char *argv[MGET_KEYS + 1] = {"MGET"};
    size_t lengths[MGET_KEYS + 1] = {4};
    while (first < call->count) {
        size_t n = call->count - first < MGET_KEYS ? call->count - first : MGET_KEYS;
        for (size_t i = 0; i < n; i++) {
            argv[i + 1] = call->pairs[first + i].key;
            lengths[i + 1] = strlen(argv[i + 1]);
        }
        call->pending++;
        send_command(
            redis,
            &(struct command)OF(.expected = OF_MGET, .call = call, .first = first, .count = n),
            n + 1, argv, lengths);
        first += n;
    }
}

// ---- calls

static void finish(struct redis *redis, struct td_kv_call *call, enum td_rc rc,
                   const struct td_err *err) {
    if (call->next) {
        call->next->prev = call->prev;
    }
    if (call->prev) {
        call->prev->next = call->next;
    } else {
        redis->calls = call->next;
    }
    td_kv_finish(call, rc, err);
}

// Glob characters of the prefix mean themselves.
static void print_pattern(const char *prefix, struct td_buf *out) {
    for (const char *p = prefix; *p; p++) {
        td_buf_puts(out, strchr("*?[]\\", *p) ? "\\" : "");
        td_buf_put(out, p, 1);
    }
    td_buf_puts(out, "*");
}

static void send_set(struct redis *redis, struct td_kv_call *call,
                     const struct td_kv_request *request) {
    char ttl[24];
    snprintf(ttl, sizeof ttl, "%" PRId64, request->ttl_ms);
    const char *argv[] = {"SET", request->key, request->n ? request->value : "", "PX", ttl};
    const size_t lengths[] = {3, strlen(request->key), request->n, 2, strlen(ttl)};
    send_command(redis, &(struct command)OF(.expected = OF_SET, .call = call),
                 request->ttl_ms ? 5 : 3, argv, lengths);
}

static void redis_start(void *backend, struct td_kv_call *call,
                        const struct td_kv_request *request) {
    struct redis *redis = backend;
    if (redis->state != READY) {
        struct td_err err;
        (void)td_fail(&err, TD_ECLOSED, "redis %s: not connected: %s", redis->address,
                      redis->why.msg);
        td_kv_finish(call, TD_ECLOSED, &err);
        return;
    }
    call->deadline_ms = td_loop_now_ms(redis->loop) + redis->timeout_ms;
    call->next = redis->calls;
    if (call->next) {
        call->next->prev = call;
    }
    redis->calls = call;
    switch (call->op) {
    case TD_KV_SET:
        send_set(redis, call, request);
        break;
    case TD_KV_GET:
        SEND(redis, OF(.expected = OF_GET, .call = call), "GET", request->key);
        break;
    case TD_KV_DELETE:
        SEND(redis, OF(.expected = OF_DELETE, .call = call), "DEL", request->key);
        break;
    case TD_KV_LIST:
        print_pattern(request->key, &call->pattern);
        td_buf_puts(&call->cursor, "0");
        call->seen = td_map_new();
        send_scan(redis, call);
        break;
    }
}

// ---- replies in

static bool is_word(const redisReply *reply, const char *word) {
    return reply->type == REDIS_REPLY_STATUS && strcmp(reply->str, word) == 0;
}

static enum td_rc server_error(const redisReply *reply, struct td_err *err) {
    return td_fail(err, TD_EIO, "%.300s", reply->str);
}

static enum td_rc nonsense(struct td_err *err) {
    return td_fail(err, TD_EIO, "an answer that does not fit the question");
}

// Keys with zero bytes are not ours.
static enum td_rc take_keys(struct td_kv_call *call, const redisReply *keys, struct td_err *err) {
    enum td_rc rc = TD_OK;
    for (size_t i = 0; i < keys->elements && rc == TD_OK; i++) {
        const redisReply *key = keys->element[i];
        if (key->type != REDIS_REPLY_STRING) {
            return nonsense(err);
        }
        if (strlen(key->str) == key->len && td_map_put(call->seen, key->str, key->len, 1)) {
            rc = td_kv_add_pair(call, key->str, NULL, 0, err);
        }
    }
    return rc;
}

static enum td_rc take_scan(struct redis *redis, struct td_kv_call *call, const redisReply *reply,
                            struct td_err *err) {
    size_t first = call->count;
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
        reply->element[0]->type != REDIS_REPLY_STRING ||
        reply->element[1]->type != REDIS_REPLY_ARRAY) {
        return nonsense(err);
    }
    td_buf_clear(&call->cursor);
    td_buf_put(&call->cursor, reply->element[0]->str, reply->element[0]->len);
    enum td_rc rc = take_keys(call, reply->element[1], err);
    if (rc == TD_OK) {
        send_mgets(redis, call, first);
    }
    return rc;
}

static enum td_rc take_values(const struct command *command, const redisReply *reply,
                              struct td_err *err) {
    struct td_kv_call *call = command->call;
    enum td_rc rc = TD_OK;
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != command->count) {
        return nonsense(err);
    }
    for (size_t i = 0; i < command->count && rc == TD_OK; i++) {
        const redisReply *value = reply->element[i];
        if (value->type == REDIS_REPLY_STRING) {
            rc =
                td_kv_set_pair(call, &call->pairs[command->first + i], value->str, value->len, err);
        } else if (value->type != REDIS_REPLY_NIL) {
            return nonsense(err);
        }
    }
    return rc;
}

// Gone between SCAN and MGET, or no string.
static void leave_out_valueless(struct td_kv_call *call) {
    size_t kept = 0;
    for (size_t i = 0; i < call->count; i++) {
        if (call->pairs[i].value) {
            call->pairs[kept++] = call->pairs[i];
        }
    }
    call->count = kept;
}

// TD_EIO: the server has lost its place.
static enum td_rc take_list_reply(struct redis *redis, const struct command *command,
                                  const redisReply *reply, struct td_err *err) {
    struct td_kv_call *call = command->call;
    bool error = reply->type == REDIS_REPLY_ERROR;
    enum td_rc rc = TD_OK;
    call->pending--;
    if (call->rc == TD_OK) { // else it waits for its other replies only
        rc = error                          ? server_error(reply, err)
             : command->expected == OF_SCAN ? take_scan(redis, call, reply, err)
                                            : take_values(command, reply, err);
        call->rc = rc;
        call->err = *err;
    }
    rc = rc == TD_EIO && !error ? TD_EIO : TD_OK;
    if (call->pending > 0) {
        return rc;
    }
    if (call->rc == TD_OK && strcmp(td_buf_str(&call->cursor), "0") != 0) {
        send_scan(redis, call);
    } else {
        leave_out_valueless(call);
        finish(redis, call, call->rc, &call->err);
    }
    return rc;
}

static enum td_rc take_reply_of(const struct command *command, const redisReply *reply,
                                struct td_err *err) {
    struct td_kv_call *call = command->call;
    if (reply->type == REDIS_REPLY_ERROR) {
        return server_error(reply, err);
    }
    switch (command->expected) {
    case OF_SET:
        return is_word(reply, "OK") ? TD_OK : nonsense(err);
    case OF_GET:
        call->found = reply->type == REDIS_REPLY_STRING;
        if (call->found) {
            td_buf_put(&call->value, reply->str, reply->len);
        }
        return call->found || reply->type == REDIS_REPLY_NIL ? TD_OK : nonsense(err);
    default:
        return reply->type == REDIS_REPLY_INTEGER ? TD_OK : nonsense(err);
    }
}

static void ready(struct redis *redis) {
    redis->state = READY;
    redis->failures = 0;
    redis->since_ms = td_loop_now_ms(redis->loop);
    td_timer_start(redis->check, CHECK_MS);
    td_trace_info("redis connected", "address=%s", redis->address);
}

// Remembers the word; another one than before: the data may be others.
static void compare(struct redis *redis, char *known, const char *word, size_t n) {
    n = n < WORD_MAX ? n : WORD_MAX - 1;
    if (strlen(known) != n || memcmp(known, word, n) != 0) {
        redis->renewed = true;
        memcpy(known, word, n);
        known[n] = 0;
    }
}

static enum td_rc take_info(struct redis *redis, const redisReply *reply, struct td_err *err) {
    const char *at = reply->type == REDIS_REPLY_STRING ? strstr(reply->str, "\nrun_id:") : NULL;
    if (!at) {
        return nonsense(err);
    }
    at += strlen("\nrun_id:");
    compare(redis, redis->run_id, at, strcspn(at, "\r\n"));
    return TD_OK;
}

static enum td_rc take_own_reply(struct redis *redis, const struct command *command,
                                 const redisReply *reply, struct td_err *err) {
    bool error = reply->type == REDIS_REPLY_ERROR;
    switch (command->expected) {
    case OF_AUTH:
        return is_word(reply, "OK") ? TD_OK
               : error ? td_fail(err, TD_EPERM, "%.300s: check the file %.300s", reply->str,
                                 redis->password_file)
                       : nonsense(err);
    case OF_INFO:
        return error && strncmp(reply->str, "NOAUTH", 6) == 0
                   ? td_fail(err, TD_EPERM, "%.300s: set redis.password_file", reply->str)
               : error ? server_error(reply, err)
                       : take_info(redis, reply, err);
    case OF_MARK_SET:
        return reply->type == REDIS_REPLY_ARRAY ? nonsense(err) : TD_OK;
    default:
        if (reply->type != REDIS_REPLY_STRING && reply->type != REDIS_REPLY_NIL) {
            return error ? server_error(reply, err) : nonsense(err);
        }
        compare(redis, redis->mark, reply->str ? reply->str : "", reply->len);
        if (redis->state == GREETING) {
            ready(redis);
        }
        return TD_OK;
    }
}

static void on_reply(void *user, const struct redisReply *reply) {
    struct redis *redis = user;
    struct command *command = redis->commands;
    struct td_err err = {0};
    if (!command) { // a server that is full, or is none
        (void)(reply->type == REDIS_REPLY_ERROR ? server_error(reply, &err)
                                                : td_fail(&err, TD_EIO, "an answer to nothing"));
        drop(redis, &err);
        return;
    }
    redis->commands = command->next;
    if (!redis->commands) {
        redis->commands_tail = &redis->commands;
    }
    struct td_kv_call *call = command->call;
    enum td_rc rc = TD_OK;
    if (!call) {
        rc = take_own_reply(redis, command, reply, &err);
    } else if (call->op == TD_KV_LIST) {
        rc = take_list_reply(redis, command, reply, &err);
    } else {
        rc = take_reply_of(command, reply, &err);
        finish(redis, call, rc, &err);
        // The server may say no to one call; one that talks of other things has lost its place.
        rc = reply->type == REDIS_REPLY_ERROR ? TD_OK : rc;
    }
    td_free(command);
    if (rc != TD_OK) {
        drop(redis, &err);
    }
}

// ---- connecting

static void fail_all(struct redis *redis, const struct td_err *err) {
    int64_t now = td_loop_now_ms(redis->loop);
    while (redis->calls) {
        struct td_kv_call *call = redis->calls;
        struct td_err own;
        if (now >= call->deadline_ms) {
            (void)td_fail(&own, TD_ETIMEOUT, "redis %s: no answer within %" PRId64 " ms",
                          redis->address, redis->timeout_ms);
        } else {
            (void)td_fail(&own, TD_ECLOSED, "redis %s: cut off: %s", redis->address, err->msg);
        }
        finish(redis, call, own.code, &own);
    }
    while (redis->commands) {
        struct command *next = redis->commands->next;
        td_free(redis->commands);
        redis->commands = next;
    }
    redis->commands_tail = &redis->commands;
}

// Half of the pause is by chance, so that clients of a server that was gone do not come together.
static int64_t next_pause(struct redis *redis) {
    int64_t pause = PAUSE_MS;
    for (unsigned i = 0; i < redis->failures && pause < PAUSE_MAX_MS; i++) {
        pause *= 2;
    }
    pause = pause < PAUSE_MAX_MS ? pause : PAUSE_MAX_MS;
    redis->failures++;
    return pause / 2 + td_rng_below(&redis->rng, (uint32_t)pause / 2);
}

static void drop(struct redis *redis, const struct td_err *err) {
    struct td_err cause = *err; // may be redis->why itself
    if (redis->state == READY) {
        redis->since_ms = td_loop_now_ms(redis->loop);
    }
    if (redis->state == READY || strcmp(cause.msg, redis->why.msg) != 0) {
        td_trace_warn("redis not connected", "address=%s error=\"%s\"", redis->address, cause.msg);
    }
    redis->state = RESTING;
    redis->why = cause;
    td_resp_free(redis->resp);
    redis->resp = NULL;
    fail_all(redis, &cause);
    td_timer_stop(redis->check);
    td_timer_start(redis->timer, next_pause(redis));
}

static void on_down(void *user, const struct td_err *err) {
    drop(user, err);
}

static enum td_rc send_auth(struct redis *redis, struct td_err *err) {
    struct td_buf password = {0};
    enum td_rc rc = td_file_read(redis->password_file, PASSWORD_MAX, &password, err);
    while (password.len && strchr("\r\n", password.data[password.len - 1])) {
        password.len--;
    }
    if (rc == TD_OK && password.len == 0) {
        rc = td_fail(err, TD_EINVAL, "%s: the password file is empty", redis->password_file);
    }
    if (rc == TD_OK) {
        const char *argv[] = {"AUTH", td_buf_str(&password)};
        const size_t lengths[] = {4, password.len};
        send_command(redis, &(struct command)OF(.expected = OF_AUTH), 2, argv, lengths);
    }
    td_buf_fini(&password);
    return rc;
}

static void greet(struct redis *redis) {
    struct td_resp_opts opts = {.loop = redis->loop,
                                .address = (const struct sockaddr *)&redis->target.address,
                                .address_n = redis->target.n,
                                .reply = on_reply,
                                .down = on_down,
                                .user = redis};
    struct td_err err = redis->target.err;
    redis->state = GREETING;
    enum td_rc rc = err.code ? err.code : td_resp_new(&opts, &redis->resp, &err);
    if (rc == TD_OK && redis->password_file) {
        rc = send_auth(redis, &err);
    }
    if (rc != TD_OK) {
        drop(redis, &err);
        return;
    }
    SEND(redis, OF(.expected = OF_INFO), "INFO", "server");
    look_at_mark(redis);
}

// Fills target, or says in target->err why not. flags: AI_NUMERICHOST: without asking anybody.
static void look_up(const char *text, struct target *target, int flags) {
    struct td_address address;
    struct addrinfo *list = NULL, hints = {.ai_flags = flags, .ai_socktype = SOCK_STREAM};
    char port[8];
    *target = (struct target){0};
    if (td_address_parse(text, &address, &target->err) != TD_OK) {
        return;
    }
    snprintf(port, sizeof port, "%d", address.port);
    int failed = getaddrinfo(address.host, port, &hints, &list);
    if (failed) {
        (void)td_fail(&target->err, TD_ENOENT, "%s: %s", address.host, gai_strerror(failed));
        return;
    }
    memcpy(&target->address, list->ai_addr, list->ai_addrlen);
    target->n = list->ai_addrlen;
    freeaddrinfo(list);
}

static void look_up_unix(const char *path, struct target *target) {
    struct sockaddr_un *address = (struct sockaddr_un *)&target->address;
    *target = (struct target){.n = sizeof *address};
    if (strlen(path) >= sizeof address->sun_path) {
        (void)td_fail(&target->err, TD_EINVAL, "the path of a socket has at most %zu bytes",
                      sizeof address->sun_path - 1);
        return;
    }
    address->sun_family = AF_UNIX;
    memcpy(address->sun_path, path, strlen(path));
}

static void run_look_up(void *user) {
    struct redis *redis = user;
    look_up(redis->address, &redis->target, 0);
}

static void looked_up(void *user) {
    struct redis *redis = user;
    if (!redis->closing) {
        greet(redis);
    }
}

static void attempt(struct redis *redis) {
    if (strncmp(redis->address, UNIX_PREFIX, strlen(UNIX_PREFIX)) == 0) {
        look_up_unix(redis->address + strlen(UNIX_PREFIX), &redis->target);
    } else {
        look_up(redis->address, &redis->target, AI_NUMERICHOST);
        if (redis->target.err.code == TD_ENOENT) {
            struct td_err err;
            redis->state = LOOKING_UP;
            if (!redis->workq &&
                td_workq_new(redis->loop, "td-redis-name", 1, 1, &redis->workq, &err) != TD_OK) {
                drop(redis, &err);
                return;
            }
            bool queued = td_workq_submit(redis->workq, run_look_up, looked_up, redis);
            td_assert(queued);
            return;
        }
    }
    greet(redis);
}

static void on_timer(void *user) {
    struct redis *redis = user;
    if (redis->state == RESTING) {
        attempt(redis);
        return;
    }
    int64_t now = td_loop_now_ms(redis->loop), earliest = INT64_MAX;
    for (const struct command *c = redis->commands; c; c = c->next) {
        earliest = c->deadline_ms < earliest ? c->deadline_ms : earliest;
    }
    if (earliest <= now) {
        struct td_err err;
        (void)td_fail(&err, TD_ETIMEOUT, "no answer within %" PRId64 " ms", redis->timeout_ms);
        drop(redis, &err);
    } else if (earliest != INT64_MAX) {
        redis->timer_ms = earliest;
        td_timer_start(redis->timer, earliest - now);
    }
}

// ---- the kind

static bool redis_connected(const void *backend) {
    return ((const struct redis *)backend)->state == READY;
}

static int64_t redis_since_ms(const void *backend) {
    return ((const struct redis *)backend)->since_ms;
}

static bool redis_renewed(void *backend) {
    struct redis *redis = backend;
    bool renewed = redis->renewed && redis->state == READY;
    redis->renewed = redis->renewed && !renewed;
    return renewed;
}

static void redis_free(void *backend) {
    struct redis *redis = backend;
    redis->closing = true;
    td_workq_free(redis->workq);
    td_resp_free(redis->resp);
    fail_all(redis, &(struct td_err){.code = TD_ESTOPPED});
    td_timer_close(redis->timer);
    td_timer_close(redis->check);
    td_free(redis->address);
    td_free(redis->password_file);
    td_free(redis);
}

struct td_kv *td_kv_new_redis(struct td_loop *loop, const struct td_kv_redis_opts *opts) {
    static const struct td_kv_kind kind = {redis_start, redis_connected, redis_since_ms,
                                           redis_renewed, redis_free};
    td_assert(opts->timeout_ms > 0);
    struct redis *redis = td_alloc(sizeof *redis);
    redis->loop = loop;
    redis->address = td_strdup(opts->address);
    redis->password_file = td_strdup(opts->password_file);
    redis->timeout_ms = opts->timeout_ms;
    redis->commands_tail = &redis->commands;
    redis->timer = td_timer_new(loop, on_timer, redis);
    redis->check = td_timer_new(loop, on_check, redis);
    redis->rng.state = (uint64_t)td_clock_ns() ^ td_mix64((uint64_t)getpid());
    redis->since_ms = td_loop_now_ms(loop);
    (void)td_fail(&redis->why, TD_ECLOSED, "not tried yet");
    td_timer_start(redis->timer, 0);
    redis->kv = td_kv_new(loop, &kind, redis);
    return redis->kv;
}
