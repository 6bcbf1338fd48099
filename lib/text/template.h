// The built-in chat templates, until there is an interpreter for a model folder's own.
//   plain   the contents, one after another, nothing added; an assistant's turn ends with the eos
//           token.
//   chatml  <|im_start|>role\ncontent<|im_end|>\n for each message, and the opening of an
//           assistant's turn where a prompt ends. No system message is added.
// Each message is encoded by itself, as verl's MultiTurnSFTDataset does. Pure, any thread.
#ifndef TD_TEXT_TEMPLATE_H
#define TD_TEXT_TEMPLATE_H

#include "lib/base/buf.h"
#include "lib/base/err.h"
#include "lib/text/tokenizer.h"

enum td_template { TD_TEMPLATE_PLAIN, TD_TEMPLATE_CHATML, TD_TEMPLATE_COUNT };

struct td_message {
    const char *role, *content; // borrowed; role: system, user, assistant
};

struct td_dialog {
    const struct td_message *messages; // borrowed
    size_t n;
    bool open_turn; // ends where an assistant's answer begins
};

// By name; TD_EINVAL names the known ones.
enum td_rc td_template_parse(const char *name, enum td_template *out,
                             struct td_err *err) TD_MUST_CHECK;
// Of the template's definition, for the data index.
uint64_t td_template_digest(enum td_template t);

// Whether messages may be rendered with this model folder: TD_EUNSUPPORTED when it has a chat
// template of its own (named), TD_EINVAL when the tokenizer lacks a token that the template writes.
enum td_rc td_template_check(enum td_template t, const struct td_tokenizer *tk,
                             struct td_err *err) TD_MUST_CHECK;

// Appends the ids of a dialog to *ids and, where mask is not NULL, one byte per id to *mask: 1
// where an assistant wrote it (its content and what ends its turn). Errors: those of
// td_tokenizer_encode, and TD_EINVAL for an unknown role; plain with an assistant's turn needs an
// eos token.
enum td_rc td_template_encode(enum td_template t, const struct td_tokenizer *tk,
                              const struct td_dialog *dialog, struct td_ids *ids,
                              struct td_buf *mask, struct td_err *err) TD_MUST_CHECK;

#endif
