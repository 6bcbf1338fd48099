// A job small enough for tests: a folder with a model of two layers and 32 channels (random
// weights), a tokenizer of one token a byte, sums to learn, and the settings of an SFT or a GRPO
// job over them.
#ifndef TD_TESTS_JOB_TINY_JOB_H
#define TD_TESTS_JOB_TINY_JOB_H

#include <stdint.h>

#include "lib/base/buf.h"
#include "lib/base/err.h"
#include "lib/spec/job_spec.h"

enum {
    TINY_JOB_VOCAB = 98,
    TINY_JOB_EOS = 1,
    TINY_JOB_ROWS = 24,    // of train.jsonl
    TINY_JOB_VAL_ROWS = 6, // of val.jsonl (GRPO)
    TINY_JOB_ID = 77,
};

struct tiny_job {
    char *dir; // owned: DIR/model, DIR/train.jsonl, DIR/val.jsonl
    struct td_job_spec *spec;
    struct td_buf canonical; // of spec, as Setup and the journal have it
};

// overrides: "key=value", ended by NULL; NULL: none. Fails the test when anything does.
void tiny_job_new(struct tiny_job *j, enum td_job_kind kind, const char *const *overrides);
void tiny_job_free(struct tiny_job *j); // and the folder
// Replaces DIR/name.
void tiny_job_put(const struct tiny_job *j, const char *name, const char *text);
// DIR/name; the caller's.
char *tiny_job_path(const struct tiny_job *j, const char *name);
// The same folder under other settings.
void tiny_job_respec(struct tiny_job *j, enum td_job_kind kind, const char *const *overrides);

#endif
