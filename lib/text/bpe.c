// Byte pair merging of one piece: the pair of lowest rank first, the leftmost of equals, until none
// is left. Symbols are a linked list, candidate pairs a heap; a candidate whose symbols have
// changed since is skipped (HF: models/bpe/word.rs). Linear-logarithmic, as a piece may be a whole
// document.
#include "lib/text/tokenizer_int.h"

void td_bpe_fini(struct td_bpe *bpe) {
    td_free(bpe->symbols);
    td_free(bpe->heap);
    *bpe = (struct td_bpe){0};
}

uint64_t td_bpe_key(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static bool before(struct td_bpe_pair a, struct td_bpe_pair b) {
    return a.rank != b.rank ? a.rank < b.rank : a.pos < b.pos;
}

static void push(struct td_bpe *bpe, struct td_bpe_pair pair) {
    TD_GROW(bpe->heap, bpe->heap_cap, bpe->heap_n + 1);
    size_t i = bpe->heap_n++;
    while (i > 0 && before(pair, bpe->heap[(i - 1) / 2])) {
        bpe->heap[i] = bpe->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    bpe->heap[i] = pair;
}

static struct td_bpe_pair pop(struct td_bpe *bpe) {
    struct td_bpe_pair *heap = bpe->heap;
    struct td_bpe_pair top = heap[0], last = heap[--bpe->heap_n];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child + 1 < bpe->heap_n && before(heap[child + 1], heap[child])) {
            child++;
        }
        if (child >= bpe->heap_n || !before(heap[child], last)) {
            break;
        }
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

static bool merge_of(const struct td_tokenizer *tk, const struct td_bpe *bpe, int32_t pos,
                     struct td_bpe_pair *out) {
    const struct td_bpe_symbol *left = &bpe->symbols[pos];
    uint64_t value;
    if (left->next < 0) {
        return false;
    }
    uint64_t key = td_bpe_key(left->id, bpe->symbols[left->next].id);
    if (!td_map_get(tk->merges, &key, sizeof key, &value)) {
        return false;
    }
    *out = (struct td_bpe_pair){.rank = (uint32_t)(value >> 32), .pos = pos, .id = (int32_t)value};
    return true;
}

static void push_at(const struct td_tokenizer *tk, struct td_bpe *bpe, int32_t pos) {
    struct td_bpe_pair pair;
    if (pos >= 0 && merge_of(tk, bpe, pos, &pair)) {
        push(bpe, pair);
    }
}

static void merge_all(const struct td_tokenizer *tk, struct td_bpe *bpe) {
    struct td_bpe_symbol *symbols = bpe->symbols;
    while (bpe->heap_n > 0) {
        struct td_bpe_pair pair = pop(bpe), now;
        struct td_bpe_symbol *left = &symbols[pair.pos];
        // a symbol only grows, so the same result means the same two symbols
        if (left->id < 0 || !merge_of(tk, bpe, pair.pos, &now) || now.id != pair.id) {
            continue;
        }
        struct td_bpe_symbol *right = &symbols[left->next];
        left->id = pair.id;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0) {
            symbols[left->next].prev = pair.pos;
        }
        push_at(tk, bpe, left->prev);
        push_at(tk, bpe, pair.pos);
    }
}

enum td_rc td_bpe_encode(const struct td_tokenizer *tk, struct td_bpe *bpe, struct td_span piece,
                         struct td_ids *out, struct td_err *err) {
    uint64_t whole;
    if (tk->pieces != NULL && td_map_get(tk->pieces, piece.p, piece.n, &whole)) {
        td_ids_put(out, (int32_t)whole);
        return TD_OK;
    }
    int32_t n = (int32_t)piece.n;
    TD_GROW(bpe->symbols, bpe->symbols_cap, piece.n);
    for (int32_t i = 0; i < n; i++) {
        int32_t id = tk->byte_id[piece.p[i]];
        if (id < 0) {
            return td_fail(err, TD_EINVAL, "byte 0x%02x (in '%.*s') has no token in the vocabulary",
                           piece.p[i], n < 64 ? (int)n : 64, (const char *)piece.p);
        }
        bpe->symbols[i] = (struct td_bpe_symbol){id, i - 1, i + 1 < n ? i + 1 : -1};
    }
    bpe->heap_n = 0;
    for (int32_t i = 0; i < n; i++) {
        push_at(tk, bpe, i);
    }
    merge_all(tk, bpe);
    for (int32_t i = 0; i >= 0; i = bpe->symbols[i].next) {
        td_ids_put(out, bpe->symbols[i].id);
    }
    return TD_OK;
}
