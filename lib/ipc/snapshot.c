// A snapshot as a memfd: see snapshot.h. Any thread.
#include "lib/ipc/snapshot.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER_BYTES = 4096, SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL };

struct header {
    char magic[8];
    uint64_t lineage, step, digest, elements;
};

static const char snapshot_magic[8] = "TDSNAP1";

uint64_t td_snapshot_bytes(uint64_t elements) {
    return HEADER_BYTES + elements * sizeof(float);
}

enum td_rc td_snapshot_open(uint64_t bytes, int *fd, struct td_err *err) {
    int f = memfd_create("tandem-snapshot", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (f < 0) {
        return td_fail_errno(err, errno, "memfd for a snapshot");
    }
    if (ftruncate(f, (off_t)bytes) != 0) {
        enum td_rc rc =
            td_fail_errno(err, errno, "snapshot of %llu bytes", (unsigned long long)bytes);
        close(f);
        return rc;
    }
    *fd = f;
    return TD_OK;
}

enum td_rc td_snapshot_seal(int fd, struct td_err *err) {
    return fcntl(fd, F_ADD_SEALS, SEALS) == 0 ? TD_OK
                                              : td_fail_errno(err, errno, "sealing a snapshot");
}

enum td_rc td_snapshot_write(const struct td_snapshot *s, int *fd, struct td_err *err) {
    int f = -1;
    size_t bytes = td_snapshot_bytes(s->elements);
    enum td_rc rc = td_snapshot_open(bytes, &f, err);
    if (rc != TD_OK) {
        return rc;
    }
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, f, 0);
    if (map == MAP_FAILED) {
        rc = td_fail_errno(err, errno, "snapshot of %zu bytes", bytes);
        goto out;
    }
    struct header h = {
        .lineage = s->lineage, .step = s->step, .digest = s->digest, .elements = s->elements};
    memcpy(h.magic, snapshot_magic, sizeof h.magic);
    memcpy(map, &h, sizeof h);
    memcpy((char *)map + HEADER_BYTES, s->flat, s->elements * sizeof(float));
    munmap(map, bytes);
    rc = td_snapshot_seal(f, err);
out:
    if (rc != TD_OK) {
        close(f);
        return rc;
    }
    *fd = f;
    return TD_OK;
}

enum td_rc td_snapshot_map(int fd, struct td_snapshot *out, struct td_err *err) {
    struct stat st;
    if (fstat(fd, &st) != 0) {
        return td_fail_errno(err, errno, "snapshot");
    }
    // Else a reader could be changed, or cut off, under its feet.
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS) {
        return td_fail(err, TD_ECORRUPT, "snapshot: not a sealed memfd");
    }
    if (st.st_size < HEADER_BYTES) {
        return td_fail(err, TD_ECORRUPT, "snapshot of %lld bytes has no header",
                       (long long)st.st_size);
    }
    size_t bytes = (size_t)st.st_size;
    void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        return td_fail_errno(err, errno, "snapshot of %zu bytes", bytes);
    }
    struct header h;
    memcpy(&h, map, sizeof h);
    if (memcmp(h.magic, snapshot_magic, sizeof h.magic) != 0 ||
        h.elements != (bytes - HEADER_BYTES) / sizeof(float) ||
        HEADER_BYTES + h.elements * sizeof(float) != bytes) {
        munmap(map, bytes);
        return td_fail(err, TD_ECORRUPT, "snapshot header does not fit its %zu bytes", bytes);
    }
    *out = (struct td_snapshot){.lineage = h.lineage,
                                .step = h.step,
                                .digest = h.digest,
                                .elements = h.elements,
                                .flat = (const float *)((char *)map + HEADER_BYTES),
                                .map = map,
                                .map_bytes = bytes};
    return TD_OK;
}

void td_snapshot_unmap(struct td_snapshot *s) {
    if (s->map) {
        munmap(s->map, s->map_bytes);
    }
    *s = (struct td_snapshot){0};
}
