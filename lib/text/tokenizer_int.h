// The parts of a tokenizer, shared by the files of lib/text only.
#ifndef TD_TEXT_TOKENIZER_INT_H
#define TD_TEXT_TOKENIZER_INT_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <jansson.h>
#include <pcre2.h>

#include "lib/base/map.h"
#include "lib/base/mem.h"
#include "lib/text/tokenizer.h"

enum { TD_SPLITS_MAX = 8 };

struct td_token {
    const uint8_t *bytes; // what it decodes to; NULL: the id has no token
    uint32_t n;
    bool special;
};

struct td_added {
    const char *content;
    size_t n;
    int32_t id;
};

// Tokens that are cut out of a text before it is split: sorted by first byte, then longest first;
// those that begin with byte b are v[first[b]] .. v[first[b + 1]].
struct td_added_set {
    struct td_added *v;
    size_t n, cap;
    size_t first[257];
};

struct td_tokenizer {
    struct td_arena *arena; // token bytes and contents
    struct td_token *tokens;
    int32_t size;
    struct td_map *names;  // as written in the file → id
    struct td_map *pieces; // bytes → id; NULL unless the model ignores merges for whole tokens
    struct td_map *merges; // td_bpe_key(left, right) → rank << 32 | id
    int32_t byte_id[256];  // -1: none
    bool nfc, byte_level, byte_decoder;
    struct td_added_set raw, normalized; // matched before and after normalization
    pcre2_code *splits[TD_SPLITS_MAX];   // applied one after another, each to the pieces so far
    int split_count;
    pcre2_match_context *limits;
    int32_t eos, bos;
    uint64_t digest;
    const char *chat_template;
};

// ---- pattern.c

// Compiles a pre-tokenizer's pattern for UTF-8 with HF's meaning of \s; literal: the text itself.
// TD_EINVAL with offset and reason.
enum td_rc td_pattern_compile(const char *pattern, bool literal, pcre2_code **out,
                              struct td_err *err) TD_MUST_CHECK;

struct td_span {
    const uint8_t *p;
    size_t n;
};
struct td_spans {
    struct td_span *v; // owned
    size_t n, cap;
};
void td_spans_put(struct td_spans *spans, const uint8_t *p, size_t n);

// Appends the pieces of one span: matches and the gaps between them, empty ones left out.
enum td_rc td_pattern_split(const pcre2_code *code, pcre2_match_context *limits,
                            struct td_span whole, struct td_spans *out,
                            struct td_err *err) TD_MUST_CHECK;

// ---- bpe.c

struct td_bpe_symbol {
    int32_t id; // -1: merged into its left neighbour
    int32_t prev, next;
};
struct td_bpe_pair {
    uint32_t rank;
    int32_t pos, id;
};
// Reused from piece to piece.
struct td_bpe {
    struct td_bpe_symbol *symbols;
    struct td_bpe_pair *heap;
    size_t symbols_cap, heap_n, heap_cap;
};
void td_bpe_fini(struct td_bpe *bpe);
uint64_t td_bpe_key(int32_t left, int32_t right);
// Appends the ids of one piece. TD_EINVAL: a byte without a token.
enum td_rc td_bpe_encode(const struct td_tokenizer *tk, struct td_bpe *bpe, struct td_span piece,
                         struct td_ids *out, struct td_err *err) TD_MUST_CHECK;

// ---- tokenizer_parts.c, tokenizer_model.c: what tokenizer_load.c calls

// Reads normalizer, pre_tokenizer, post_processor and decoder. Messages begin with the key.
enum td_rc td_tokenizer_read_parts(struct td_tokenizer *tk, const json_t *root,
                                   struct td_err *err) TD_MUST_CHECK;
// Reads model (vocab, merges) and added_tokens. Messages begin with the key.
enum td_rc td_tokenizer_read_model(struct td_tokenizer *tk, const json_t *root,
                                   struct td_err *err) TD_MUST_CHECK;

#endif
