// The store in memory, for tests: always connected. Loop thread.
#include <string.h>

#include "lib/base/mem.h"
#include "lib/io/kv_int.h"

struct item {
    char *key;
    void *value;
    size_t n;
    int64_t expires_ms; // 0: never
};

struct memory {
    struct td_loop *loop;
    struct item *items;
    size_t count, cap;
    int64_t since_ms;
    bool renewed;
};

static void drop(struct memory *memory, struct item *item) {
    td_free(item->key);
    td_free(item->value);
    *item = memory->items[--memory->count];
}

static void expire(struct memory *memory) {
    int64_t now = td_loop_now_ms(memory->loop);
    for (size_t i = memory->count; i-- > 0;) {
        if (memory->items[i].expires_ms && now >= memory->items[i].expires_ms) {
            drop(memory, &memory->items[i]);
        }
    }
}

static struct item *find(struct memory *memory, const char *key) {
    for (size_t i = 0; i < memory->count; i++) {
        if (strcmp(memory->items[i].key, key) == 0) {
            return &memory->items[i];
        }
    }
    return NULL;
}

static void set(struct memory *memory, const struct td_kv_request *request) {
    struct item *item = find(memory, request->key);
    if (!item) {
        TD_GROW(memory->items, memory->cap, memory->count + 1);
        item = &memory->items[memory->count++];
        *item = (struct item){.key = td_strdup(request->key)};
    }
    td_free(item->value);
    item->value = td_memdup(request->n ? request->value : "", request->n);
    item->n = request->n;
    item->expires_ms = request->ttl_ms ? td_loop_now_ms(memory->loop) + request->ttl_ms : 0;
}

static enum td_rc list(struct memory *memory, struct td_kv_call *call, const char *prefix,
                       struct td_err *err) {
    enum td_rc rc = TD_OK;
    for (size_t i = 0; i < memory->count && rc == TD_OK; i++) {
        const struct item *item = &memory->items[i];
        if (strncmp(item->key, prefix, strlen(prefix)) == 0) {
            rc = td_kv_add_pair(call, item->key, item->value, item->n, err);
        }
    }
    return rc;
}

static void memory_start(void *backend, struct td_kv_call *call,
                         const struct td_kv_request *request) {
    struct memory *memory = backend;
    struct td_err err;
    enum td_rc rc = TD_OK;
    expire(memory);
    struct item *item = find(memory, request->key);
    switch (call->op) {
    case TD_KV_SET:
        set(memory, request);
        break;
    case TD_KV_GET:
        call->found = item != NULL;
        if (item) {
            td_buf_put(&call->value, item->value, item->n);
        }
        break;
    case TD_KV_DELETE:
        if (item) {
            drop(memory, item);
        }
        break;
    case TD_KV_LIST:
        rc = list(memory, call, request->key, &err);
        break;
    }
    td_kv_finish(call, rc, &err);
}

static bool memory_connected(const void *backend) {
    (void)backend;
    return true;
}

static int64_t memory_since_ms(const void *backend) {
    return ((const struct memory *)backend)->since_ms;
}

static bool memory_renewed(void *backend) {
    struct memory *memory = backend;
    bool renewed = memory->renewed;
    memory->renewed = false;
    return renewed;
}

static void wipe(struct memory *memory) {
    while (memory->count) {
        drop(memory, &memory->items[memory->count - 1]);
    }
    memory->renewed = true;
}

static void memory_free(void *backend) {
    struct memory *memory = backend;
    wipe(memory);
    td_free(memory->items);
    td_free(memory);
}

void td_kv_memory_wipe(struct td_kv *kv) {
    wipe(td_kv_backend(kv));
}

struct td_kv *td_kv_new_memory(struct td_loop *loop) {
    static const struct td_kv_kind kind = {memory_start, memory_connected, memory_since_ms,
                                           memory_renewed, memory_free};
    struct memory *memory = td_alloc(sizeof *memory);
    memory->loop = loop;
    memory->since_ms = td_loop_now_ms(loop);
    memory->renewed = true;
    return td_kv_new(loop, &kind, memory);
}
