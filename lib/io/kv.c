// The store of shared metadata: see kv.h. What the kinds have in common: limits, and that answers
// come in a later turn, in the order in which calls finish. Loop thread.
#include "lib/io/kv.h"

#include <string.h>

#include "lib/base/check.h"
#include "lib/base/map.h"
#include "lib/io/kv_int.h"

struct td_kv {
    struct td_loop *loop;
    const struct td_kv_kind *kind;
    void *backend;
    struct td_timer *turn;
    struct td_kv_call *finished, **finished_tail;
    size_t outstanding, bytes;
    bool freed, delivering;
};

// ---- answers

static void call_free(struct td_kv_call *call) {
    td_buf_fini(&call->value);
    td_buf_fini(&call->cursor);
    td_buf_fini(&call->pattern);
    td_map_free(call->seen);
    td_arena_free(call->arena);
    td_free(call->pairs);
    td_free(call);
}

static void deliver_one(struct td_kv_call *call) {
    bool good = call->rc == TD_OK;
    const struct td_err *err = good ? NULL : &call->err;
    switch (call->op) {
    case TD_KV_GET:
        call->fn.value(call->user, call->rc, good && call->found ? td_buf_str(&call->value) : NULL,
                       good ? call->value.len : 0, err);
        break;
    case TD_KV_LIST:
        call->fn.list(call->user, call->rc, good ? call->pairs : NULL, good ? call->count : 0, err);
        break;
    default:
        if (call->fn.done) {
            call->fn.done(call->user, call->rc, err);
        }
    }
}

static struct td_kv_call *shift(struct td_kv *kv) {
    struct td_kv_call *call = kv->finished;
    kv->finished = call->next;
    if (!kv->finished) {
        kv->finished_tail = &kv->finished;
    }
    kv->outstanding--;
    kv->bytes -= call->cost;
    return call;
}

static void destroy(struct td_kv *kv) {
    td_timer_close(kv->turn);
    td_free(kv);
}

// Those that finish meanwhile have their turn later.
static void deliver(void *user) {
    struct td_kv *kv = user;
    struct td_kv_call *stop = NULL;
    kv->delivering = true;
    for (struct td_kv_call *call = kv->finished; call; call = call->next) {
        stop = call;
    }
    for (bool more = kv->finished != NULL; more && !kv->freed;) {
        struct td_kv_call *call = shift(kv);
        more = call != stop;
        deliver_one(call);
        call_free(call);
    }
    kv->delivering = false;
    if (kv->freed) {
        destroy(kv);
    } else if (kv->finished) {
        td_timer_start(kv->turn, 0);
    }
}

void td_kv_finish(struct td_kv_call *call, enum td_rc rc, const struct td_err *err) {
    struct td_kv *kv = call->kv;
    call->rc = rc;
    if (rc != TD_OK) {
        call->err = *err;
    }
    call->next = NULL;
    *kv->finished_tail = call;
    kv->finished_tail = &call->next;
    if (!kv->delivering && !kv->freed) {
        td_timer_start(kv->turn, 0);
    }
}

// ---- the store

struct td_kv *td_kv_new(struct td_loop *loop, const struct td_kv_kind *kind, void *backend_take) {
    struct td_kv *kv = td_alloc(sizeof *kv);
    kv->loop = loop;
    kv->kind = kind;
    kv->backend = backend_take;
    kv->finished_tail = &kv->finished;
    kv->turn = td_timer_new(loop, deliver, kv);
    return kv;
}

void *td_kv_backend(struct td_kv *kv) {
    return kv->backend;
}

void td_kv_free(struct td_kv *kv) {
    if (!kv) {
        return;
    }
    td_loop_assert(kv->loop);
    td_assert(!kv->freed);
    kv->freed = true;
    kv->kind->free(kv->backend);
    struct td_err err;
    (void)td_fail(&err, TD_ESTOPPED, "the store was closed");
    while (kv->finished) {
        struct td_kv_call *call = shift(kv);
        call->rc = TD_ESTOPPED;
        call->err = err;
        deliver_one(call);
        call_free(call);
    }
    if (!kv->delivering) {
        destroy(kv);
    }
}

bool td_kv_connected(const struct td_kv *kv) {
    return kv->kind->connected(kv->backend);
}

int64_t td_kv_since_ms(const struct td_kv *kv) {
    return kv->kind->since_ms(kv->backend);
}

bool td_kv_renewed(struct td_kv *kv) {
    return kv->kind->renewed(kv->backend);
}

// ---- calls

static void start(struct td_kv *kv, const struct td_kv_call *like,
                  const struct td_kv_request *request) {
    td_loop_assert(kv->loop);
    td_assert(!kv->freed);
    td_assert(request->key && request->ttl_ms >= 0);
    struct td_kv_call *call = td_memdup(like, sizeof *like);
    call->kv = kv;
    call->cost = strlen(request->key) + request->n;
    kv->outstanding++;
    kv->bytes += call->cost;
    struct td_err err;
    if (request->n > TD_KV_VALUE_MAX) {
        (void)td_fail(&err, TD_ELIMIT, "%s: a value of %zu bytes, at most %d", request->key,
                      request->n, TD_KV_VALUE_MAX);
    } else if (kv->outstanding > TD_KV_OUTSTANDING_MAX) {
        (void)td_fail(&err, TD_ELIMIT, "more than %d calls under way", TD_KV_OUTSTANDING_MAX);
    } else if (kv->bytes > TD_KV_OUTSTANDING_BYTES_MAX) {
        (void)td_fail(&err, TD_ELIMIT, "more than %d bytes under way", TD_KV_OUTSTANDING_BYTES_MAX);
    } else {
        kv->kind->start(kv->backend, call, request);
        return;
    }
    td_kv_finish(call, TD_ELIMIT, &err);
}

void td_kv_set(struct td_kv *kv, const struct td_kv_set *set, td_kv_done_fn *done, void *user) {
    start(kv, &(struct td_kv_call){.op = TD_KV_SET, .fn.done = done, .user = user},
          &(struct td_kv_request){set->key, set->value, set->n, set->ttl_ms});
}

void td_kv_get(struct td_kv *kv, const char *key, td_kv_value_fn *done, void *user) {
    start(kv, &(struct td_kv_call){.op = TD_KV_GET, .fn.value = done, .user = user},
          &(struct td_kv_request){.key = key});
}

void td_kv_delete(struct td_kv *kv, const char *key, td_kv_done_fn *done, void *user) {
    start(kv, &(struct td_kv_call){.op = TD_KV_DELETE, .fn.done = done, .user = user},
          &(struct td_kv_request){.key = key});
}

void td_kv_list(struct td_kv *kv, const char *prefix, td_kv_list_fn *done, void *user) {
    start(kv, &(struct td_kv_call){.op = TD_KV_LIST, .fn.list = done, .user = user},
          &(struct td_kv_request){.key = prefix});
}

enum td_rc td_kv_set_pair(struct td_kv_call *call, struct td_kv_pair *pair, const void *value,
                          size_t n, struct td_err *err) {
    call->bytes += n;
    if (call->bytes > TD_KV_LIST_BYTES_MAX) {
        return td_fail(err, TD_ELIMIT, "a list of more than %d bytes", TD_KV_LIST_BYTES_MAX);
    }
    pair->value = td_arena_strndup(call->arena, value, n);
    pair->n = n;
    return TD_OK;
}

enum td_rc td_kv_add_pair(struct td_kv_call *call, const char *key, const void *value, size_t n,
                          struct td_err *err) {
    if (!call->arena) {
        call->arena = td_arena_new();
    }
    if (call->count == TD_KV_LIST_MAX) {
        return td_fail(err, TD_ELIMIT, "a list of more than %d keys", TD_KV_LIST_MAX);
    }
    size_t key_n = strlen(key);
    call->bytes += key_n;
    TD_GROW(call->pairs, call->cap, call->count + 1);
    struct td_kv_pair *pair = &call->pairs[call->count++];
    *pair = (struct td_kv_pair){.key = td_arena_strndup(call->arena, key, key_n)};
    return value ? td_kv_set_pair(call, pair, value, n, err) : TD_OK;
}
