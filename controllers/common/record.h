// The rollout record: a group's samples as one record of the rollout log (design §4). The only
// codec of it.
//
// Layout, little-endian: 16 bytes {"TDRR", u32 format, u32 header length, u32 header CRC-32C}, the
// header (proto/rollout.proto), then the columns it names, each at a multiple of 64 bytes from the
// columns' start, which is itself at a multiple of 64, with zero bytes between. Every column has a
// CRC-32C; the record ends with its last column. Required: tok i32 and logp f32 and loss_mask u8
// per token, reward f64 (or f32) per sample and component: one without names, else as many as
// header.reward_components. Columns of other names are kept as they are. A group may lie in several
// records, its parts: those of one attempt of one producer (journal.md A12).
#ifndef TD_CONTROLLERS_COMMON_RECORD_H
#define TD_CONTROLLERS_COMMON_RECORD_H

#include <stdint.h>

#include "lib/base/buf.h"
#include "lib/base/err.h"
#include "proto/rollout.pb-c.h"

enum {
    TD_ROLLOUT_BYTES_MAX = 64 << 20,
    TD_ROLLOUT_SAMPLES_MAX = 4096,
    TD_ROLLOUT_SEQUENCES_MAX = 65536,
    TD_ROLLOUT_EXTRA_MAX = 32,
    TD_ROLLOUT_COLUMNS_MAX = 4 + TD_ROLLOUT_EXTRA_MAX,
};

struct td_rollout_column {   // one that the codec does not know
    const char *name, *type; // i32 f32 u8 f64
    const void *data;
    uint64_t count;
};

struct td_rollout_record {
    Tandem__Rollout__Header *header; // decode: owned; encode: borrowed, its columns are ignored
    uint64_t tokens, samples;
    uint64_t components; // of the reward; encode: 0 counts as 1
    const int32_t
        *tok; // tokens: prompt and response of each sequence, in the order of header->sequences
    const float *logp;        // tokens: under the policy that generated, 0 elsewhere
    const uint8_t *loss_mask; // tokens: 1 where trained
    const double *reward;     // (samples, components): final; the first component is trained on
    struct td_rollout_column extra[TD_ROLLOUT_EXTRA_MAX];
    size_t extra_count;
    uint8_t *bytes;      // decode: owned; the columns lie in it
    double *reward_copy; // decode: owned; of f32 rewards
};

// Appends the record to out. The record must be well-formed (asserted by decoding in tests).
void td_rollout_record_encode(const struct td_rollout_record *r, struct td_buf *out);
// TD_ECORRUPT with what and where: wrong magic, format, CRC, length, column, range or count, a
// token that is trained outside a MODEL segment, a number that is not finite. TD_ELIMIT: larger
// than a maximum above. TD_ENOMEM.
enum td_rc td_rollout_record_decode(const void *bytes, size_t n, struct td_rollout_record **out,
                                    struct td_err *err) TD_MUST_CHECK;
void td_rollout_record_free(struct td_rollout_record *r); // of decode; accepts NULL
// Trainable tokens and the sum over the samples of the reward's first component.
void td_rollout_record_sums(const struct td_rollout_record *r, uint64_t *trainable,
                            double *reward_sum);

#endif
