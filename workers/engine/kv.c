// Page allocator: see kv.h. A stack of free pages, so the page used last is used first.
#include "workers/engine/kv.h"

#include <stddef.h>

#include "lib/base/check.h"
#include "lib/base/mem.h"

struct td_kv {
    int32_t pages, page_tokens;
    int32_t *refs; // per page
    int32_t *free; // stack
    int32_t free_count;
};

struct td_kv *td_kv_new(int32_t pages, int32_t page_tokens) {
    td_assert_op(pages, >=, 1);
    td_assert_op(page_tokens, >=, 1);
    struct td_kv *kv = td_alloc(sizeof *kv);
    kv->pages = kv->free_count = pages;
    kv->page_tokens = page_tokens;
    kv->refs = td_alloc_array((size_t)pages, sizeof *kv->refs);
    kv->free = td_alloc_array((size_t)pages, sizeof *kv->free);
    for (int32_t i = 0; i < pages; i++) {
        kv->free[i] = pages - 1 - i;
    }
    return kv;
}

void td_kv_free(struct td_kv *kv) {
    if (kv) {
        td_assert_op(kv->free_count, ==, kv->pages);
        td_free(kv->refs);
        td_free(kv->free);
        td_free(kv);
    }
}

int32_t td_kv_pages(const struct td_kv *kv) {
    return kv->pages;
}

int32_t td_kv_pages_free(const struct td_kv *kv) {
    return kv->free_count;
}

int32_t td_kv_refs(const struct td_kv *kv, int32_t page) {
    td_assert(page >= 0 && page < kv->pages);
    return kv->refs[page];
}

int32_t td_kv_pages_of(const struct td_kv *kv, int64_t n) {
    return (int32_t)((n + kv->page_tokens - 1) / kv->page_tokens);
}

// The page that holds token `from` is in the chain and others refer to it.
static bool first_is_shared(const struct td_kv *kv, const struct td_kv_chain *chain, int32_t from) {
    int32_t at = from / kv->page_tokens;
    return at < chain->count && kv->refs[chain->page[at]] > 1;
}

int32_t td_kv_need(const struct td_kv *kv, const struct td_kv_chain *chain, int32_t from,
                   int32_t upto) {
    int32_t missing = td_kv_pages_of(kv, upto) - chain->count;
    return (missing > 0 ? missing : 0) + first_is_shared(kv, chain, from);
}

static int32_t take(struct td_kv *kv) {
    td_assert_op(kv->free_count, >, 0);
    int32_t page = kv->free[--kv->free_count];
    td_assert_op(kv->refs[page], ==, 0);
    kv->refs[page] = 1;
    return page;
}

static void drop(struct td_kv *kv, int32_t page) {
    td_assert_op(kv->refs[page], >, 0);
    if (--kv->refs[page] == 0) {
        kv->free[kv->free_count++] = page;
    }
}

static void make_room(struct td_kv_chain *chain, int32_t count) {
    size_t cap = (size_t)chain->cap;
    TD_GROW(chain->page, cap, (size_t)count);
    chain->cap = (int32_t)cap;
}

bool td_kv_extend(struct td_kv *kv, struct td_kv_chain *chain, int32_t from, int32_t upto,
                  struct td_kv_copy *copy) {
    td_assert_op(from, <, upto);
    td_assert_op(from, <=, (int64_t)chain->count * kv->page_tokens);
    bool copies = first_is_shared(kv, chain, from);
    int32_t want = td_kv_pages_of(kv, upto), at = from / kv->page_tokens;
    for (int32_t i = at + 1; i < chain->count; i++) {
        td_assert_op(kv->refs[chain->page[i]], ==, 1); // nothing there is kept, so none shares it
    }
    if (copies) {
        copy->from = chain->page[at];
        copy->to = chain->page[at] = take(kv);
        drop(kv, copy->from);
    }
    if (want > chain->count) {
        make_room(chain, want);
        while (chain->count < want) {
            chain->page[chain->count++] = take(kv);
        }
    }
    return copies;
}

void td_kv_share(struct td_kv *kv, struct td_kv_chain *chain, const struct td_kv_chain *other,
                 int32_t n) {
    int32_t count = td_kv_pages_of(kv, n);
    td_assert_op(chain->count, ==, 0);
    td_assert_op(count, <=, other->count);
    make_room(chain, count);
    for (int32_t i = 0; i < count; i++) {
        chain->page[i] = other->page[i];
        kv->refs[chain->page[i]]++;
    }
    chain->count = count;
}

void td_kv_release(struct td_kv *kv, struct td_kv_chain *chain) {
    while (chain->count > 0) { // backwards, so that they are taken again in their old order
        drop(kv, chain->page[--chain->count]);
    }
}

void td_kv_chain_fini(struct td_kv *kv, struct td_kv_chain *chain) {
    td_kv_release(kv, chain);
    td_free(chain->page);
    *chain = (struct td_kv_chain){0};
}
