// The page allocator of the key/value cache: reference counts, chains of pages, copy on write.
// Pure: it knows page numbers, not their memory. Owned by the generator.
#ifndef TD_WORKERS_ENGINE_KV_H
#define TD_WORKERS_ENGINE_KV_H

#include <stdbool.h>
#include <stdint.h>

struct td_kv;

// The pages of one sequence: page[i] holds tokens [i*page_tokens, (i+1)*page_tokens). Zero is
// empty.
struct td_kv_chain {
    int32_t *page; // owned
    int32_t count, cap;
};

// Page `from` must be copied to page `to` before `to` is written or read.
struct td_kv_copy {
    int32_t from, to;
};

// pages ≥ 1 pages of page_tokens ≥ 1 tokens each, all free.
struct td_kv *td_kv_new(int32_t pages, int32_t page_tokens);
void td_kv_free(struct td_kv *kv); // accepts NULL; every chain must have been released
int32_t td_kv_pages(const struct td_kv *kv);
int32_t td_kv_pages_free(const struct td_kv *kv);
int32_t td_kv_refs(const struct td_kv *kv, int32_t page);
// Pages that n tokens fill.
int32_t td_kv_pages_of(const struct td_kv *kv, int64_t n);

// Free pages it takes to write tokens [from, upto) of chain, whose tokens below from are kept: the
// missing ones, and one more if the page that holds from is shared.
int32_t td_kv_need(const struct td_kv *kv, const struct td_kv_chain *chain, int32_t from,
                   int32_t upto);
// Takes them; there must be as many. Returns whether *copy has to be done.
bool td_kv_extend(struct td_kv *kv, struct td_kv_chain *chain, int32_t from, int32_t upto,
                  struct td_kv_copy *copy);
// chain (empty) shares the pages of the first n tokens of other: full ones for good, a last partial
// one until either side writes to it.
void td_kv_share(struct td_kv *kv, struct td_kv_chain *chain, const struct td_kv_chain *other,
                 int32_t n);
// Drops all references; pages without one are free again. The chain is empty then.
void td_kv_release(struct td_kv *kv, struct td_kv_chain *chain);
// As release, and frees the chain's own array.
void td_kv_chain_fini(struct td_kv *kv, struct td_kv_chain *chain);

#endif
