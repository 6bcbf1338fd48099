// A round's rows in a memfd: see batch.h. One header, then the arrays of struct td_batch in its
// order, each at a multiple of 64 bytes, host byte order (writer and reader share a machine).
#include "lib/ipc/batch.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/crc.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"

#define BATCH_MAGIC 0x31686374616254ull // "Tbatch1"
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)

enum { ALIGN = 64, ARRAYS = 8 };

struct header {
    uint64_t magic;
    uint32_t rows, tokens, updates, crc; // CRC-32C of what is before it
};

// Offsets of the arrays; at[ARRAYS] is the size of all.
struct layout {
    uint64_t at[ARRAYS + 1];
    uint64_t bytes[ARRAYS];
};

static void lay_out(uint32_t rows, uint32_t tokens, uint32_t updates, struct layout *l) {
    uint64_t r = rows, t = tokens, u = updates;
    const uint64_t bytes[ARRAYS] = {
        (r + 1) * sizeof(uint32_t), t * sizeof(int32_t), t,
        t * sizeof(float),          r * sizeof(double),  2 * u * sizeof(uint32_t),
        u * sizeof(double),         u * sizeof(double)};
    memcpy(l->bytes, bytes, sizeof bytes);
    l->at[0] = ALIGN;
    for (int i = 0; i < ARRAYS; i++) {
        l->at[i + 1] = (l->at[i] + bytes[i] + ALIGN - 1) / ALIGN * ALIGN;
    }
}

enum td_rc td_batch_write(const struct td_batch *b, int *fd, struct td_err *err) {
    const void *arrays[ARRAYS] = {b->row_start, b->ids,  b->loss_mask,   b->rollout_logp,
                                  b->advantage, b->mini, b->token_count, b->sequence_count};
    struct header h = {
        .magic = BATCH_MAGIC, .rows = b->rows, .tokens = b->tokens, .updates = b->updates};
    struct layout l;
    h.crc = td_crc32c(0, &h, offsetof(struct header, crc));
    lay_out(b->rows, b->tokens, b->updates, &l);
    int out = memfd_create("td-batch", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (out < 0) {
        return td_fail_errno(err, errno, "memfd of a batch");
    }
    enum td_rc rc = TD_OK;
    if (ftruncate(out, (off_t)l.at[ARRAYS]) != 0) {
        rc = td_fail_errno(err, errno, "memfd of %llu bytes", (unsigned long long)l.at[ARRAYS]);
    }
    rc = rc ? rc : td_write_all(out, &h, sizeof h, err);
    for (int i = 0; rc == TD_OK && i < ARRAYS; i++) {
        if (lseek(out, (off_t)l.at[i], SEEK_SET) < 0) {
            rc = td_fail_errno(err, errno, "seek in a memfd");
        }
        rc = rc ? rc : td_write_all(out, arrays[i], l.bytes[i], err);
    }
    if (rc == TD_OK && fcntl(out, F_ADD_SEALS, SEALS | F_SEAL_SEAL) != 0) {
        rc = td_fail_errno(err, errno, "seals of a memfd");
    }
    if (rc != TD_OK) {
        close(out);
        return rc;
    }
    *fd = out;
    return TD_OK;
}

static enum td_rc check_rows(const struct td_batch *b, struct td_err *err) {
    for (uint32_t r = 0; r < b->rows; r++) {
        if (b->row_start[r] >= b->row_start[r + 1] || b->row_start[r + 1] > b->tokens) {
            return td_fail(err, TD_ECORRUPT, "batch: row %u: tokens [%u, %u) of %u", r,
                           b->row_start[r], b->row_start[r + 1], b->tokens);
        }
        // Nothing predicts the first token of a sequence.
        if (b->loss_mask[b->row_start[r]] != 0) {
            return td_fail(err, TD_ECORRUPT, "batch: row %u: its first token is marked as trained",
                           r);
        }
        if (!isfinite(b->advantage[r])) {
            return td_fail(err, TD_ECORRUPT, "batch: row %u: advantage %g", r, b->advantage[r]);
        }
    }
    if (b->row_start[0] != 0 || b->row_start[b->rows] != b->tokens) {
        return td_fail(err, TD_ECORRUPT, "batch: rows hold tokens [%u, %u) of %u", b->row_start[0],
                       b->row_start[b->rows], b->tokens);
    }
    return TD_OK;
}

static enum td_rc check_tokens(const struct td_batch *b, struct td_err *err) {
    for (uint32_t i = 0; i < b->tokens; i++) {
        if (b->loss_mask[i] > 1 || !isfinite(b->rollout_logp[i])) {
            return td_fail(err, TD_ECORRUPT, "batch: token %u: mask %u, rollout log-prob %g", i,
                           b->loss_mask[i], (double)b->rollout_logp[i]);
        }
    }
    return TD_OK;
}

static enum td_rc check_updates(const struct td_batch *b, struct td_err *err) {
    for (uint32_t u = 0; u < b->updates; u++) {
        uint32_t first = b->mini[2 * u], end = b->mini[2 * u + 1];
        if (first > end || end > b->rows) {
            return td_fail(err, TD_ECORRUPT, "batch: update %u: rows [%u, %u) of %u", u + 1, first,
                           end, b->rows);
        }
        if (!(b->token_count[u] >= 0) || !isfinite(b->token_count[u]) ||
            !(b->sequence_count[u] >= 0) || !isfinite(b->sequence_count[u])) {
            return td_fail(err, TD_ECORRUPT, "batch: update %u: %g tokens, %g sequences", u + 1,
                           b->token_count[u], b->sequence_count[u]);
        }
    }
    return TD_OK;
}

// Points into a mapping whose size is known to fit.
static void point(struct td_batch *b, const struct layout *l) {
    const char *base = b->map;
    b->row_start = (const void *)(base + l->at[0]);
    b->ids = (const void *)(base + l->at[1]);
    b->loss_mask = (const void *)(base + l->at[2]);
    b->rollout_logp = (const void *)(base + l->at[3]);
    b->advantage = (const void *)(base + l->at[4]);
    b->mini = (const void *)(base + l->at[5]);
    b->token_count = (const void *)(base + l->at[6]);
    b->sequence_count = (const void *)(base + l->at[7]);
}

static enum td_rc check_map(struct td_batch *b, struct td_err *err) {
    struct header h;
    struct layout l;
    memcpy(&h, b->map, sizeof h);
    if (h.magic != BATCH_MAGIC || h.crc != td_crc32c(0, &h, offsetof(struct header, crc))) {
        return td_fail(err, TD_ECORRUPT, "batch: not a batch");
    }
    lay_out(h.rows, h.tokens, h.updates, &l);
    if (l.at[ARRAYS] != b->map_bytes) {
        return td_fail(err, TD_ECORRUPT,
                       "batch: %u rows, %u tokens, %u updates need %llu bytes, it has %llu", h.rows,
                       h.tokens, h.updates, (unsigned long long)l.at[ARRAYS],
                       (unsigned long long)b->map_bytes);
    }
    b->rows = h.rows;
    b->tokens = h.tokens;
    b->updates = h.updates;
    point(b, &l);
    enum td_rc rc = check_rows(b, err);
    rc = rc ? rc : check_tokens(b, err);
    return rc ? rc : check_updates(b, err);
}

enum td_rc td_batch_map(int fd, struct td_batch **out, struct td_err *err) {
    struct stat sb;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS) {
        // One that may shrink would end us by SIGBUS.
        return td_fail(err, TD_ECORRUPT, "batch: the descriptor is no sealed memfd");
    }
    if (fstat(fd, &sb) != 0) {
        return td_fail_errno(err, errno, "batch");
    }
    if (sb.st_size < (off_t)sizeof(struct header)) {
        return td_fail(err, TD_ECORRUPT, "batch: %lld bytes are too few", (long long)sb.st_size);
    }
    struct td_batch *b = td_alloc(sizeof *b);
    b->map_bytes = (uint64_t)sb.st_size;
    b->map = mmap(NULL, b->map_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (b->map == MAP_FAILED) {
        td_free(b);
        return td_fail_errno(err, errno, "batch: map");
    }
    enum td_rc rc = check_map(b, err);
    if (rc != TD_OK) {
        td_batch_free(b);
        return rc;
    }
    *out = b;
    return TD_OK;
}

void td_batch_free(struct td_batch *b) {
    if (b) {
        munmap(b->map, b->map_bytes);
        td_free(b);
    }
}
