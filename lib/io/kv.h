// Shared metadata that may be lost at any moment: discovery, members, the live view. Nothing is
// decided by it (docs/architecture.md). Kinds: redis (async, reconnects by itself), memory (tests).
// Loop thread; every call is answered once, in a later turn, also when it is dropped: within the
// store's timeout, or by td_kv_free.
#ifndef TD_IO_KV_H
#define TD_IO_KV_H

#include <stddef.h>
#include <stdint.h>

#include "lib/io/loop.h"

struct td_kv;

enum { TD_KV_OUTSTANDING_MAX = 1024, TD_KV_VALUE_MAX = 1 << 20 };

struct td_kv_redis_opts {
    const char *address;       // "host:port" or "unix:PATH"
    const char *password_file; // NULL: none
    int64_t timeout_ms;        // connecting, and each call
};
// Never blocks; connects in the background and for ever again, with growing pauses.
struct td_kv *td_kv_new_redis(struct td_loop *loop, const struct td_kv_redis_opts *opts);
struct td_kv *td_kv_new_memory(struct td_loop *loop);
void td_kv_free(struct td_kv *kv); // accepts NULL; unanswered calls get TD_ESTOPPED now

// TD_OK, TD_ETIMEOUT, TD_ECLOSED (not connected), TD_EIO (the server's error, in err).
typedef void td_kv_done_fn(void *user, enum td_rc rc, const struct td_err *err);
// value NULL with TD_OK: no such key. Borrowed.
typedef void td_kv_value_fn(void *user, enum td_rc rc, const void *value, size_t n,
                            const struct td_err *err);
struct td_kv_pair {
    const char *key;
    const void *value;
    size_t n;
};
typedef void td_kv_list_fn(void *user, enum td_rc rc, const struct td_kv_pair *pairs, size_t count,
                           const struct td_err *err);

struct td_kv_set {
    const char *key;
    const void *value;
    size_t n;
    int64_t ttl_ms; // 0: for good
};
// done may be NULL.
void td_kv_set(struct td_kv *kv, const struct td_kv_set *set, td_kv_done_fn *done, void *user);
void td_kv_get(struct td_kv *kv, const char *key, td_kv_value_fn *done, void *user);
void td_kv_delete(struct td_kv *kv, const char *key, td_kv_done_fn *done, void *user);
// All keys that start with prefix, with their values (SCAN, MGET); order is not told.
void td_kv_list(struct td_kv *kv, const char *prefix, td_kv_list_fn *done, void *user);

// For /readyz and /status.
bool td_kv_connected(const struct td_kv *kv);
int64_t td_kv_since_ms(const struct td_kv *kv); // when that last changed
// The server's run id changed or its data is gone since the last call of this (wiped, restarted):
// whoever has a view there writes it again.
bool td_kv_renewed(struct td_kv *kv);

#endif
