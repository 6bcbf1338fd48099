// Writer of safetensors: see safetensors.h. Rows are converted and written in pieces, so no copy of
// the model is made.
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/check.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "workers/model/convert.h"
#include "workers/model/safetensors.h"

enum { PIECE = 64 * 1024, HEADER_ALIGN = 8 };

// An item and its place in source->items.
struct ordered {
    const struct td_safetensors_item *item;
    int index;
};

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct ordered *)a)->item->name, ((const struct ordered *)b)->item->name);
}

static int64_t elements_of(const struct td_safetensors_item *item) {
    return item->shape[0] * (item->dims == 2 ? item->shape[1] : 1);
}

static const char *dtype_name(enum td_dtype dtype) {
    return dtype == TD_F32 ? "F32" : dtype == TD_BF16 ? "BF16" : "F16";
}

static json_t *build_header(const struct td_safetensors_source *s, const struct ordered *order) {
    json_t *header = json_object();
    // Loaders raise when __metadata__ is there without a format they know.
    json_object_set_new(header, "__metadata__", json_pack("{s:s}", "format", "pt"));
    json_int_t at = 0;
    for (int i = 0; i < s->count; i++) {
        const struct td_safetensors_item *item = order[i].item;
        td_assert(item->dims == 1 || item->dims == 2);
        json_int_t end = at + elements_of(item) * (s->dtype == TD_F32 ? 4 : 2);
        json_t *shape = json_array();
        for (int d = 0; d < item->dims; d++) {
            json_array_append_new(shape, json_integer(item->shape[d]));
        }
        json_t *entry = json_pack("{s:s, s:o, s:[I,I]}", "dtype", dtype_name(s->dtype), "shape",
                                  shape, "data_offsets", at, end);
        json_object_set_new(header, item->name, entry);
        at = end;
    }
    td_assert_op(json_object_size(header), ==, s->count + 1);
    return header;
}

static enum td_rc write_header(int fd, const struct td_safetensors_source *s,
                               const struct ordered *order, struct td_err *err) {
    json_t *header = build_header(s, order);
    size_t len = json_dumpb(header, NULL, 0, JSON_COMPACT);
    uint64_t padded = (len + HEADER_ALIGN - 1) / HEADER_ALIGN * HEADER_ALIGN;
    char *text = td_alloc(padded);
    json_dumpb(header, text, len, JSON_COMPACT);
    memset(text + len, ' ', padded - len);
    json_decref(header);
    enum td_rc rc = td_write_all(fd, &padded, sizeof padded, err);
    rc = rc ? rc : td_write_all(fd, text, padded, err);
    td_free(text);
    return rc;
}

static enum td_rc write_item(int fd, const struct td_safetensors_source *s, const struct ordered *o,
                             float *piece, struct td_err *err) {
    int64_t n = elements_of(o->item);
    size_t width = s->dtype == TD_F32 ? 4 : 2;
    for (int64_t at = 0; at < n; at += PIECE) {
        int64_t count = n - at < PIECE ? n - at : PIECE;
        s->read(s->user, o->index, at, count, piece);
        void *raw = piece + PIECE;
        int64_t bad = td_convert_from_f32(s->dtype, piece, count, raw);
        if (bad >= 0) {
            return td_fail(err, TD_EINVAL, "tensor %s: element %lld (%g) is not finite in %s",
                           o->item->name, (long long)(at + bad), piece[bad], dtype_name(s->dtype));
        }
        enum td_rc rc = td_write_all(fd, raw, (size_t)count * width, err);
        if (rc != TD_OK) {
            return rc;
        }
    }
    return TD_OK;
}

static enum td_rc write_to(int fd, const struct td_safetensors_source *s, struct td_err *err) {
    struct ordered *order = td_alloc_array((size_t)s->count + 1, sizeof *order);
    float *piece = td_alloc_array(PIECE, 2 * sizeof *piece);
    for (int i = 0; i < s->count; i++) {
        order[i] = (struct ordered){.item = &s->items[i], .index = i};
    }
    qsort(order, (size_t)s->count, sizeof *order, by_name);
    enum td_rc rc = write_header(fd, s, order, err);
    for (int i = 0; rc == TD_OK && i < s->count; i++) {
        rc = write_item(fd, s, &order[i], piece, err);
    }
    if (rc == TD_OK && fsync(fd) != 0) {
        rc = td_fail_errno(err, errno, "fsync");
    }
    td_free(order);
    td_free(piece);
    return rc;
}

enum td_rc td_safetensors_write(const char *path, const struct td_safetensors_source *source,
                                struct td_err *err) {
    char *temporary = td_asprintf("%s.tmp", path);
    char *dir = td_strdup(path);
    char *slash = strrchr(dir, '/');
    enum td_rc rc;
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        rc = td_fail_errno(err, errno, "%s", temporary);
        goto out;
    }
    rc = write_to(fd, source, err);
    if (close(fd) != 0 && rc == TD_OK) {
        rc = td_fail_errno(err, errno, "close");
    }
    if (rc == TD_OK && rename(temporary, path) != 0) {
        rc = td_fail_errno(err, errno, "rename");
    }
    if (rc != TD_OK) {
        rc = td_err_in(err, "%s", path);
        unlink(temporary);
        goto out;
    }
    if (slash) {
        *slash = 0;
    }
    rc = td_sync_dir(!slash ? "." : slash == dir ? "/" : dir, err);
out:
    td_free(temporary);
    td_free(dir);
    return rc;
}
