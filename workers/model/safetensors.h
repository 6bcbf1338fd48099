// safetensors files: u64 header length, JSON header, data. The reader is strict: no hole, overlap,
// alias, duplicate name or unknown key is accepted. Source of the format: the README of
// huggingface/safetensors. Any thread, one per handle.
#ifndef TD_WORKERS_MODEL_SAFETENSORS_H
#define TD_WORKERS_MODEL_SAFETENSORS_H

#include <stdint.h>

#include "lib/base/err.h"
#include "workers/backend/backend.h"

enum { TD_SAFETENSORS_DIMS_MAX = 8, TD_SAFETENSORS_HEADER_MAX = 100 * 1000 * 1000 };

struct td_safetensors_entry {
    const char *name;  // borrowed from the handle
    const char *dtype; // as in the file: "F32", "BF16", "F16", "I64"...
    int dims;
    int64_t shape[TD_SAFETENSORS_DIMS_MAX];
    uint64_t begin, end; // bytes from the start of the data
};

struct td_safetensors;

// Opens and checks a file. TD_ECORRUPT names path and tensor.
enum td_rc td_safetensors_open(const char *path, struct td_safetensors **out,
                               struct td_err *err) TD_MUST_CHECK;
void td_safetensors_close(struct td_safetensors *st); // accepts NULL
int td_safetensors_count(const struct td_safetensors *st);
// Entries in the order of their data. Borrowed.
const struct td_safetensors_entry *td_safetensors_entry(const struct td_safetensors *st, int i);
const char *td_safetensors_path(const struct td_safetensors *st);
// Elements [first, first + n) of entry i as floats. TD_EUNSUPPORTED unless F32, BF16 or F16.
enum td_rc td_safetensors_read(struct td_safetensors *st, int i, int64_t first, int64_t n,
                               float *out, struct td_err *err) TD_MUST_CHECK;

struct td_safetensors_item {
    const char *name;
    int dims; // 1 or 2
    int64_t shape[2];
};

struct td_safetensors_source {
    enum td_dtype dtype; // of the file: F32, BF16, F16
    const struct td_safetensors_item *items;
    int count;
    // Gives elements [first, first + n) of an item.
    void (*read)(void *user, int item, int64_t first, int64_t n, float *out);
    void *user;
};

// Writes a file that is there whole and durable, or not at all. Tensors are ordered by name. A
// number that is not finite in dtype is TD_EINVAL naming the tensor.
enum td_rc td_safetensors_write(const char *path, const struct td_safetensors_source *source,
                                struct td_err *err) TD_MUST_CHECK;

#endif
