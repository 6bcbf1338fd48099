// What the kinds of the store give to kv.c, and how a call travels: kv.c makes it, the kind
// finishes it, kv.c delivers it in a later turn.
#ifndef TD_IO_KV_INT_H
#define TD_IO_KV_INT_H

#include "lib/base/buf.h"
#include "lib/base/mem.h"
#include "lib/io/kv.h"

enum td_kv_op { TD_KV_SET, TD_KV_GET, TD_KV_DELETE, TD_KV_LIST };

struct td_kv_call {
    struct td_kv_call *next, *prev; // the kind's, then kv.c's
    struct td_kv *kv;
    enum td_kv_op op;
    union {
        td_kv_done_fn *done;
        td_kv_value_fn *value;
        td_kv_list_fn *list;
    } fn;
    void *user;
    size_t cost; // bytes it counts for
    // the result; rc and err are set by td_kv_finish
    enum td_rc rc;
    struct td_err err;
    bool found;             // GET
    struct td_buf value;    // GET
    struct td_arena *arena; // LIST: keys and values
    struct td_kv_pair *pairs;
    size_t count, cap, bytes;
    // the kind's
    int64_t deadline_ms;
    unsigned pending;      // LIST: commands under way
    struct td_buf cursor;  // LIST
    struct td_buf pattern; // LIST
    struct td_map *seen;   // LIST
};

struct td_kv_request {
    const char *key; // LIST: the prefix
    const void *value;
    size_t n;
    int64_t ttl_ms;
};

struct td_kv_kind {
    // Takes over the call; finishes it now or later.
    void (*start)(void *backend, struct td_kv_call *call, const struct td_kv_request *request);
    bool (*connected)(const void *backend);
    int64_t (*since_ms)(const void *backend);
    bool (*renewed)(void *backend);
    void (*free)(void *backend); // finishes all calls it has, in any way
};

// backend_take is the kind's.
struct td_kv *td_kv_new(struct td_loop *loop, const struct td_kv_kind *kind, void *backend_take);
void *td_kv_backend(struct td_kv *kv);
// The call is in no list of the kind any more. err: NULL with TD_OK.
void td_kv_finish(struct td_kv_call *call, enum td_rc rc, const struct td_err *err);
// LIST: adds a pair; value NULL: comes later, into call->pairs. TD_ELIMIT.
enum td_rc td_kv_add_pair(struct td_kv_call *call, const char *key, const void *value, size_t n,
                          struct td_err *err) TD_MUST_CHECK;
// Copies a value for a pair of the list. TD_ELIMIT.
enum td_rc td_kv_set_pair(struct td_kv_call *call, struct td_kv_pair *pair, const void *value,
                          size_t n, struct td_err *err) TD_MUST_CHECK;

#endif
