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

enum {
    TD_KV_OUTSTANDING_MAX = 1024,
    TD_KV_OUTSTANDING_BYTES_MAX = 64 << 20, // of keys and values under way
    TD_KV_VALUE_MAX = 1 << 20,
    TD_KV_LIST_MAX = 1 << 16, // keys of one list
    TD_KV_LIST_BYTES_MAX = 64 << 20,
};
// The one key that a store of kind redis keeps for itself: while it is there with the same value,
// so are the others. It goes by itself a while after the last client.
#define TD_KV_MARK "tandem:mark"

struct td_kv_redis_opts {      // copied
    const char *address;       // "host:port" or "unix:PATH"
    const char *password_file; // NULL: none; read at each connect
    int64_t timeout_ms;        // connecting, and each call
};
// Never blocks; connects in the background and for ever again, with growing pauses.
struct td_kv *td_kv_new_redis(struct td_loop *loop, const struct td_kv_redis_opts *opts);
struct td_kv *td_kv_new_memory(struct td_loop *loop);
// Unanswered calls get TD_ESTOPPED now; their callbacks make no new ones. May be called from a
// callback of the store. Accepts NULL. Waits for a name lookup under way, if there is one.
void td_kv_free(struct td_kv *kv);

// TD_OK, TD_ETIMEOUT, TD_ECLOSED (not connected, or cut off; err says why), TD_EIO (the server's
// error, or an answer that makes no sense), TD_ELIMIT (one of the limits above). After TD_ETIMEOUT
// and TD_ECLOSED the call may have had its effect, or have it later.
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
// Arguments are copied. done may be NULL, except where it brings a value.
void td_kv_set(struct td_kv *kv, const struct td_kv_set *set, td_kv_done_fn *done, void *user);
void td_kv_get(struct td_kv *kv, const char *key, td_kv_value_fn *done, void *user);
void td_kv_delete(struct td_kv *kv, const char *key, td_kv_done_fn *done, void *user);
// All keys that start with prefix, with their values, each once; order is not told. Keys that come
// or go meanwhile may be there or not.
void td_kv_list(struct td_kv *kv, const char *prefix, td_kv_list_fn *done, void *user);

// For /readyz and /status.
bool td_kv_connected(const struct td_kv *kv);
int64_t td_kv_since_ms(const struct td_kv *kv); // when that last changed, as td_loop_now_ms
// The server's run id changed or its data is gone since the last call of this (wiped, restarted):
// whoever has a view there writes it again. True once after the first connect. A wipe shows within
// seconds.
bool td_kv_renewed(struct td_kv *kv);
// Tests, kind memory only: everything is gone.
void td_kv_memory_wipe(struct td_kv *kv);

#endif
