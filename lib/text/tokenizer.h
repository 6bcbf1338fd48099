// Byte-level BPE tokenizers as Hugging Face writes them (tokenizer.json): GPT-2, Llama-3, SmolLM2
// and Qwen2 patterns, and any other made of the same parts. Ids equal those of HF's tokenizers;
// a part that is not implemented is refused by name when the file is loaded, never ignored.
// Read-only after loading: any thread may encode and decode.
#ifndef TD_TEXT_TOKENIZER_H
#define TD_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/buf.h"
#include "lib/base/err.h"

enum {
    TD_TOKENIZER_BYTES_MAX = 64 << 20, // of tokenizer.json
    TD_TOKENIZER_IDS_MAX = 1 << 22,    // ids are below
    TD_TEXT_BYTES_MAX = 64 << 20       // of one text to encode
};

// A growable array of token ids.
struct td_ids {
    int32_t *v; // owned
    size_t n, cap;
};
void td_ids_fini(struct td_ids *ids);
void td_ids_put(struct td_ids *ids, int32_t id);

struct td_tokenizer;

// Loads folder/tokenizer.json, and the names of special tokens from folder/tokenizer_config.json
// (bos_token, eos_token: a string or an object with content) or, where that file is missing or
// names none, the numbers bos_token_id and eos_token_id (the first of a list) of
// folder/config.json. Messages name file and key: TD_ENOENT and other file errors, TD_EINVAL
// (malformed or contradictory), TD_EUNSUPPORTED (a part we do not have), TD_ELIMIT.
enum td_rc td_tokenizer_load(const char *folder, struct td_tokenizer **out,
                             struct td_err *err) TD_MUST_CHECK;
void td_tokenizer_free(struct td_tokenizer *tk);

// Appends the ids of n bytes of text to *out; no special token is added, but those written in the
// text are recognised, as HF does. *out is untouched on failure. TD_EINVAL: not UTF-8 (with the
// offset), or a byte the vocabulary has no token for; TD_ELIMIT: longer than TD_TEXT_BYTES_MAX, or
// more backtracking than the pattern's match limit.
enum td_rc td_tokenizer_encode(const struct td_tokenizer *tk, const char *text, size_t n,
                               struct td_ids *out, struct td_err *err) TD_MUST_CHECK;

// Appends the text of ids[n] to *out; ids without a token are left out, bytes that are no UTF-8
// become U+FFFD, both as HF does. No white space is cleaned up.
void td_tokenizer_decode(const struct td_tokenizer *tk, const int32_t *ids, size_t n,
                         bool skip_special, struct td_buf *out);

// The id of the token written so (a vocabulary key or an added token's content); -1: none.
int32_t td_tokenizer_id(const struct td_tokenizer *tk, const char *content);
bool td_tokenizer_is_special(const struct td_tokenizer *tk, int32_t id);
// -1: the model folder names none.
int32_t td_tokenizer_eos(const struct td_tokenizer *tk);
int32_t td_tokenizer_bos(const struct td_tokenizer *tk);
// 1 + the largest id with a token.
int32_t td_tokenizer_size(const struct td_tokenizer *tk);
// Writes known[i] = 1 where id i has a token, else 0, for i < n (the model's vocabulary size, which
// is often larger): sampling is masked to these.
void td_tokenizer_known_ids(const struct td_tokenizer *tk, uint8_t *known, size_t n);
// Of the bytes of tokenizer.json (td_file_digest) and the eos id.
uint64_t td_tokenizer_digest(const struct td_tokenizer *tk);
// The file of the model folder that has a chat template of its own ("tokenizer_config.json" or
// "chat_template.jinja"); NULL: none.
const char *td_tokenizer_chat_template(const struct td_tokenizer *tk);

#endif
