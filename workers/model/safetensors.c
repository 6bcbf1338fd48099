// Reader of safetensors: see safetensors.h. The writer is in safetensors_write.c.
#include "workers/model/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/check.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "workers/model/convert.h"

struct td_safetensors {
    int fd;
    char *path;
    json_t *header; // owns the names
    struct td_safetensors_entry *entries;
    int count;
    uint64_t data; // offset of the data
};

static const struct {
    const char *name;
    unsigned bits;
} dtypes[] = {{"BOOL", 8},        {"F4", 4},         {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
              {"I8", 8},          {"F8_E5M2", 8},    {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"I16", 16},
              {"U16", 16},        {"F16", 16},       {"BF16", 16},   {"I32", 32},    {"U32", 32},
              {"F32", 32},        {"C64", 64},       {"F64", 64},    {"I64", 64},    {"U64", 64},
              {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}};

static unsigned dtype_bits(const char *name) {
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        if (strcmp(name, dtypes[i].name) == 0) {
            return dtypes[i].bits;
        }
    }
    return 0;
}

// A JSON array of n non-negative integers.
static bool read_counts(const json_t *array, size_t n, int64_t *out) {
    if (!json_is_array(array) || json_array_size(array) != n) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(array, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0) {
            return false;
        }
        out[i] = json_integer_value(v);
    }
    return true;
}

// Whether shape and dtype need exactly the bytes that the offsets give.
static bool size_fits(const struct td_safetensors_entry *e) {
    uint64_t bits = dtype_bits(e->dtype);
    for (int i = 0; i < e->dims; i++) {
        if (__builtin_mul_overflow(bits, (uint64_t)e->shape[i], &bits)) {
            return false;
        }
    }
    return bits % 8 == 0 && bits / 8 == e->end - e->begin;
}

static enum td_rc read_entry(const struct td_safetensors *st, const char *name, json_t *v,
                             struct td_safetensors_entry *e, struct td_err *err) {
    const json_t *shape = json_object_get(v, "shape");
    int64_t offsets[2] = {0, 0};
    *e = (struct td_safetensors_entry){.name = name,
                                       .dtype = json_string_value(json_object_get(v, "dtype"))};
    if (!e->dtype || json_object_size(v) != 3 ||
        !read_counts(json_object_get(v, "data_offsets"), 2, offsets)) {
        return td_fail(err, TD_ECORRUPT,
                       "%s: tensor %s: must be an object of dtype, shape and data_offsets",
                       st->path, name);
    }
    if (dtype_bits(e->dtype) == 0) {
        return td_fail(err, TD_ECORRUPT, "%s: tensor %s: unknown dtype \"%s\"", st->path, name,
                       e->dtype);
    }
    size_t dims = json_array_size(shape);
    if (dims > TD_SAFETENSORS_DIMS_MAX || !read_counts(shape, dims, e->shape)) {
        return td_fail(err, TD_ECORRUPT, "%s: tensor %s: shape must be a list of at most %d sizes",
                       st->path, name, TD_SAFETENSORS_DIMS_MAX);
    }
    e->dims = (int)dims;
    e->begin = (uint64_t)offsets[0];
    e->end = (uint64_t)offsets[1];
    if (e->end < e->begin || !size_fits(e)) {
        return td_fail(err, TD_ECORRUPT,
                       "%s: tensor %s: data_offsets [%" PRIu64 ", %" PRIu64
                       "] do not fit its dtype and shape",
                       st->path, name, e->begin, e->end);
    }
    return TD_OK;
}

static int by_offset(const void *a, const void *b) {
    const struct td_safetensors_entry *x = a, *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    if (x->end != y->end) { // empty tensors share a place with their neighbour
        return x->end < y->end ? -1 : 1;
    }
    return strcmp(x->name, y->name);
}

// Tensors must lie one behind the other and fill the data.
static enum td_rc check_cover(const struct td_safetensors *st, uint64_t data_bytes,
                              struct td_err *err) {
    uint64_t at = 0;
    for (int i = 0; i < st->count; i++) {
        const struct td_safetensors_entry *e = &st->entries[i];
        if (e->begin != at) {
            return td_fail(err, TD_ECORRUPT,
                           "%s: tensor %s begins at byte %" PRIu64 " of the data, expected %" PRIu64
                           " (hole or overlap)",
                           st->path, e->name, e->begin, at);
        }
        at = e->end;
    }
    if (at != data_bytes) {
        return td_fail(err, TD_ECORRUPT,
                       "%s: the tensors need %" PRIu64 " bytes of data, the file has %" PRIu64
                       " (truncated or overlong)",
                       st->path, at, data_bytes);
    }
    return TD_OK;
}

static enum td_rc check_metadata(const struct td_safetensors *st, json_t *metadata,
                                 struct td_err *err) {
    const char *key;
    json_t *v;
    bool strings = json_is_object(metadata);
    json_object_foreach(metadata, key, v) {
        strings &= json_is_string(v);
    }
    return strings ? TD_OK
                   : td_fail(err, TD_ECORRUPT, "%s: __metadata__ must map strings to strings",
                             st->path);
}

static enum td_rc read_entries(struct td_safetensors *st, uint64_t data_bytes, struct td_err *err) {
    const char *name;
    json_t *v;
    st->entries = td_alloc_array(json_object_size(st->header) + 1, sizeof *st->entries);
    json_object_foreach(st->header, name, v) {
        bool metadata = strcmp(name, "__metadata__") == 0;
        enum td_rc rc = metadata ? check_metadata(st, v, err)
                                 : read_entry(st, name, v, &st->entries[st->count], err);
        if (rc != TD_OK) {
            return rc;
        }
        st->count += !metadata;
    }
    qsort(st->entries, (size_t)st->count, sizeof *st->entries, by_offset);
    return check_cover(st, data_bytes, err);
}

static enum td_rc read_header(struct td_safetensors *st, struct td_err *err) {
    struct stat sb;
    uint64_t n = 0;
    if (fstat(st->fd, &sb) != 0) {
        return td_fail_errno(err, errno, "%s", st->path);
    }
    uint64_t size = (uint64_t)sb.st_size;
    if (size < sizeof n) {
        return td_fail(err, TD_ECORRUPT, "%s: %" PRIu64 " bytes are too few for a header", st->path,
                       size);
    }
    enum td_rc rc = td_pread_all(st->fd, &n, sizeof n, 0, err);
    if (rc != TD_OK) {
        return td_err_in(err, "%s", st->path);
    }
    if (n > TD_SAFETENSORS_HEADER_MAX || n > size - sizeof n) {
        return td_fail(err, TD_ECORRUPT,
                       "%s: a header of %" PRIu64 " bytes in a file of %" PRIu64
                       " (truncated, or no safetensors file)",
                       st->path, n, size);
    }
    char *text = td_try_alloc(n + 1);
    if (!text) {
        return td_fail(err, TD_ENOMEM, "%s: header of %" PRIu64 " bytes", st->path, n);
    }
    rc = td_pread_all(st->fd, text, n, sizeof n, err);
    if (rc != TD_OK) {
        rc = td_err_in(err, "%s", st->path);
        td_free(text);
        return rc;
    }
    json_error_t where;
    st->header = json_loadb(text, n, JSON_REJECT_DUPLICATES, &where);
    td_free(text);
    if (!json_is_object(st->header)) {
        return td_fail(err, TD_ECORRUPT, "%s: header: %s", st->path,
                       st->header ? "must be a JSON object" : where.text);
    }
    st->data = sizeof n + n;
    return read_entries(st, size - st->data, err);
}

enum td_rc td_safetensors_open(const char *path, struct td_safetensors **out, struct td_err *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return td_fail_errno(err, errno, "%s", path);
    }
    struct td_safetensors *st = td_alloc(sizeof *st);
    st->fd = fd;
    st->path = td_strdup(path);
    enum td_rc rc = read_header(st, err);
    if (rc != TD_OK) {
        td_safetensors_close(st);
        return rc;
    }
    *out = st;
    return TD_OK;
}

void td_safetensors_close(struct td_safetensors *st) {
    if (st) {
        close(st->fd);
        json_decref(st->header);
        td_free(st->entries);
        td_free(st->path);
        td_free(st);
    }
}

int td_safetensors_count(const struct td_safetensors *st) {
    return st->count;
}

const struct td_safetensors_entry *td_safetensors_entry(const struct td_safetensors *st, int i) {
    td_assert(i >= 0 && i < st->count);
    return &st->entries[i];
}

const char *td_safetensors_path(const struct td_safetensors *st) {
    return st->path;
}

enum td_rc td_safetensors_read(struct td_safetensors *st, int i, int64_t first, int64_t n,
                               float *out, struct td_err *err) {
    enum { PIECE = 8192 };
    const struct td_safetensors_entry *e = td_safetensors_entry(st, i);
    enum td_dtype dtype = strcmp(e->dtype, "F32") == 0    ? TD_F32
                          : strcmp(e->dtype, "BF16") == 0 ? TD_BF16
                                                          : TD_F16;
    if (dtype == TD_F16 && strcmp(e->dtype, "F16") != 0) {
        return td_fail(err, TD_EUNSUPPORTED,
                       "%s: tensor %s: dtype %s cannot be read as weights; supported: F32, BF16, "
                       "F16",
                       st->path, e->name, e->dtype);
    }
    int64_t width = dtype == TD_F32 ? 4 : 2;
    td_assert(first >= 0 && n >= 0);
    td_assert_op((first + n) * width, <=, e->end - e->begin);
    uint8_t raw[PIECE * sizeof(float)];
    for (int64_t at = 0; at < n; at += PIECE) {
        int64_t count = n - at < PIECE ? n - at : PIECE;
        uint64_t from = st->data + e->begin + (uint64_t)((first + at) * width);
        enum td_rc rc = td_pread_all(st->fd, raw, (size_t)(count * width), from, err);
        if (rc != TD_OK) {
            return td_err_in(err, "%s: tensor %s", st->path, e->name);
        }
        td_convert_to_f32(dtype, raw, count, out + at);
    }
    return TD_OK;
}
