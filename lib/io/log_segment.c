// Reading one partition of a file log: see log_segment.h. The mutex guards the index: for each
// segment the place of every record walked so far. Only records below the durable end are indexed,
// and those never change.
#include "lib/io/log_segment.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/check.h"
#include "lib/base/crc.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"

struct segment {
    int64_t base;
    uint32_t *at; // of the frames of records base …; 0: damaged
    size_t count, cap;
    uint32_t tail; // where the frame of the next one is, or is to be searched from
};

struct td_segments {
    char *folder;
    uint64_t id;
    uint32_t partition;
    int marks_fd;
    pthread_mutex_t mutex;
    struct segment *segments; // guarded; ascending
    size_t count, cap;        // guarded
};

const char *td_segments_folder(const struct td_segments *segments) {
    return segments->folder;
}

char *td_segments_path(const struct td_segments *segments, int64_t base) {
    return td_asprintf("%s/%020lld.seg", segments->folder, (long long)base);
}

enum td_rc td_segments_damaged(const struct td_segments *segments, const struct td_place *place,
                               const char *why, struct td_err *err) {
    char *path = td_segments_path(segments, place->base);
    enum td_rc rc = td_fail(err, TD_ECORRUPT, "%s: damaged at offset %lld (byte %u): %s", path,
                            (long long)place->offset, place->at, why);
    td_free(path);
    return rc;
}

int td_segments_marks_fd(const struct td_segments *segments) {
    return segments->marks_fd;
}

// ---- marks

static enum td_rc read_mark(const struct td_segments *s, enum td_mark which, int64_t *offset,
                            struct td_err *err) {
    // A read beside a write could in theory see half of it; that does not happen three times.
    for (int i = 0; i < 3; i++) {
        uint64_t word;
        enum td_rc rc = td_pread_all(s->marks_fd, &word, sizeof word,
                                     TD_LOG_HEADER_BYTES + (uint64_t)which * TD_MARK_BYTES, err);
        if (rc != TD_OK) {
            return td_err_in(err, "%s/marks", s->folder);
        }
        if (td_mark_decode(word, s->id, s->partition, which, offset)) {
            return TD_OK;
        }
    }
    return td_fail(err, TD_ECORRUPT, "%s/marks: the %s mark is damaged", s->folder,
                   which == TD_MARK_START ? "start" : "end");
}

enum td_rc td_segments_marks(const struct td_segments *segments, int64_t *start, int64_t *end,
                             struct td_err *err) {
    // End first: the start never passes it, so start <= end holds whatever happens in between.
    int64_t first = 0, last = 0;
    enum td_rc rc = read_mark(segments, TD_MARK_END, &last, err);
    if (rc == TD_OK) {
        rc = read_mark(segments, TD_MARK_START, &first, err);
    }
    if (rc == TD_OK) {
        *start = first;
        *end = last > first ? last : first;
    }
    return rc;
}

enum td_rc td_segments_set_mark(struct td_segments *segments, enum td_mark which, int64_t offset,
                                struct td_err *err) {
    uint64_t word = td_mark_encode(segments->id, segments->partition, which, offset);
    ssize_t n = pwrite(segments->marks_fd, &word, sizeof word,
                       TD_LOG_HEADER_BYTES + (off_t)which * TD_MARK_BYTES);
    if (n != sizeof word) {
        return td_fail_errno(err, n < 0 ? errno : ENOSPC, "%s/marks", segments->folder);
    }
    return TD_OK;
}

// ---- files

// Opens a file of the log and checks that its header is of the type, log and partition.
static enum td_rc open_checked(const struct td_segments *s, const char *path, int flags,
                               const struct td_log_header *want, int *out, struct td_err *err) {
    int fd = open(path, flags | O_CLOEXEC);
    if (fd < 0) {
        return td_fail_errno(err, errno, "%s", path);
    }
    uint8_t bytes[TD_LOG_HEADER_BYTES];
    struct td_log_header got = {0};
    enum td_rc rc = td_pread_all(fd, bytes, sizeof bytes, 0, err);
    rc = rc == TD_OK ? td_log_header_decode(bytes, &got, err) : rc;
    if (rc == TD_OK && (got.type != want->type || got.id != s->id ||
                        got.partition != s->partition || got.base != want->base)) {
        rc = td_fail(err, TD_ECORRUPT, "belongs to another log or place (log %016llx, offset %lld)",
                     (unsigned long long)got.id, (long long)got.base);
    }
    if (rc != TD_OK) {
        close(fd);
        return td_err_in(err, "%s: damaged at offset %lld", path, (long long)want->base);
    }
    *out = fd;
    return TD_OK;
}

enum td_rc td_segments_file(const struct td_segments *segments, int64_t base, int flags, int *fd,
                            struct td_err *err) {
    char *path = td_segments_path(segments, base);
    struct td_log_header want = {.type = TD_LOG_FILE_SEGMENT, .base = base};
    enum td_rc rc = open_checked(segments, path, flags, &want, fd, err);
    td_free(path);
    return rc;
}

enum td_rc td_segments_open(const char *folder, uint64_t id, uint32_t partition,
                            struct td_segments **out, struct td_err *err) {
    struct td_segments *s = td_alloc(sizeof *s);
    s->folder = td_strdup(folder);
    s->id = id;
    s->partition = partition;
    s->marks_fd = -1;
    pthread_mutex_init(&s->mutex, NULL);
    char *path = td_asprintf("%s/marks", folder);
    struct td_log_header want = {.type = TD_LOG_FILE_MARKS};
    enum td_rc rc = open_checked(s, path, O_RDWR, &want, &s->marks_fd, err);
    td_free(path);
    if (rc != TD_OK) {
        td_segments_free(s);
        return rc;
    }
    *out = s;
    return TD_OK;
}

static void segment_fini(struct segment *segment) {
    td_free(segment->at);
}

void td_segments_free(struct td_segments *segments) {
    if (!segments) {
        return;
    }
    for (size_t i = 0; i < segments->count; i++) {
        segment_fini(&segments->segments[i]);
    }
    td_free(segments->segments);
    if (segments->marks_fd >= 0) {
        close(segments->marks_fd);
    }
    pthread_mutex_destroy(&segments->mutex);
    td_free(segments->folder);
    td_free(segments);
}

// ---- the list of segments

static bool parse_name(const char *name, int64_t *base) {
    size_t digits = strspn(name, "0123456789");
    if (digits != 20 || strcmp(name + digits, ".seg") != 0) {
        return false;
    }
    *base = strtoll(name, NULL, 10);
    return true;
}

static int compare_bases(const void *a, const void *b) {
    int64_t x = ((const struct segment *)a)->base, y = ((const struct segment *)b)->base;
    return (x > y) - (x < y);
}

static void add_segment(struct td_segments *s, int64_t base) {
    TD_GROW(s->segments, s->cap, s->count + 1);
    s->segments[s->count++] = (struct segment){.base = base, .tail = TD_LOG_HEADER_BYTES};
}

// Index of base, or count.
static size_t position(const struct td_segments *s, int64_t base) {
    size_t i = 0;
    while (i < s->count && s->segments[i].base != base) {
        i++;
    }
    return i;
}

static enum td_rc list(struct td_segments *s, struct td_err *err) {
    DIR *dir = opendir(s->folder);
    if (!dir) {
        return td_fail_errno(err, errno, "%s", s->folder);
    }
    struct td_segments now = {0};
    int64_t base;
    for (struct dirent *e; (e = readdir(dir));) {
        if (parse_name(e->d_name, &base)) {
            add_segment(&now, base);
        }
    }
    closedir(dir);
    for (size_t i = 0; i < s->count; i++) { // what is known of those still there moves over
        size_t at = position(&now, s->segments[i].base);
        if (at < now.count) {
            now.segments[at] = s->segments[i];
        } else {
            segment_fini(&s->segments[i]);
        }
    }
    if (now.count) {
        qsort(now.segments, now.count, sizeof *now.segments, compare_bases);
    }
    td_free(s->segments);
    s->segments = now.segments;
    s->count = now.count;
    s->cap = now.cap;
    return TD_OK;
}

enum td_rc td_segments_list(struct td_segments *segments, int64_t after, int64_t *next,
                            int64_t *last, struct td_err *err) {
    pthread_mutex_lock(&segments->mutex);
    enum td_rc rc = list(segments, err);
    if (rc == TD_OK) {
        *last = segments->count ? segments->segments[segments->count - 1].base : -1;
        int64_t lowest = -1;
        for (size_t i = segments->count; i-- > 0;) {
            lowest = segments->segments[i].base > after ? segments->segments[i].base : lowest;
        }
        if (next) {
            *next = lowest;
        }
    }
    pthread_mutex_unlock(&segments->mutex);
    return rc;
}

static void remove_half_made(const struct td_segments *s) {
    DIR *dir = opendir(s->folder);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (strstr(e->d_name, ".seg.tmp.") && unlinkat(dirfd(dir), e->d_name, 0) != 0) {
            break; // only litter: the next one tries again
        }
    }
    if (dir) {
        closedir(dir);
    }
}

enum td_rc td_segments_delete(struct td_segments *segments, int64_t start, struct td_err *err) {
    remove_half_made(segments);
    pthread_mutex_lock(&segments->mutex);
    enum td_rc rc = list(segments, err);
    size_t gone = 0;
    while (rc == TD_OK && gone + 1 < segments->count &&
           segments->segments[gone + 1].base <= start) {
        char *path = td_segments_path(segments, segments->segments[gone].base);
        if (unlink(path) != 0 && errno != ENOENT) {
            rc = td_fail_errno(err, errno, "%s", path);
        } else {
            segment_fini(&segments->segments[gone++]);
        }
        td_free(path);
    }
    if (gone) {
        segments->count -= gone;
        memmove(segments->segments, segments->segments + gone,
                segments->count * sizeof *segments->segments);
    }
    pthread_mutex_unlock(&segments->mutex);
    return rc;
}

// ---- records

static int64_t indexed(const struct segment *seg) { // the first record not indexed
    return seg->base + (int64_t)seg->count;
}

static void add_record(struct segment *seg, uint32_t at) {
    TD_GROW(seg->at, seg->cap, seg->count + 1);
    seg->at[seg->count++] = at;
}

// The frame at byte `at`, if it is one and its record lies within size.
static bool frame_at(const struct td_segments *s, int fd, uint64_t at, uint64_t size,
                     struct td_frame *frame) {
    uint8_t bytes[TD_FRAME_BYTES];
    return at + TD_FRAME_BYTES <= size &&
           td_pread_all(fd, bytes, sizeof bytes, at, NULL) == TD_OK &&
           td_frame_decode(bytes, s->id, frame) && at + TD_FRAME_BYTES + frame->length <= size;
}

// The record at seg->tail is damaged, its length with it: goes on at the next frame whose own
// checksum holds. Those skipped are marked; without another frame, all of them up to `until`.
static void skip_damage(const struct td_segments *s, int fd, struct segment *seg, uint64_t size,
                        int64_t until) {
    uint64_t at = seg->tail + 1u;
    size_t n = at < size ? size - at : 0;
    uint8_t *bytes = td_try_alloc(n);
    bool readable = bytes && td_pread_all(fd, bytes, n, at, NULL) == TD_OK;
    int64_t found = until;
    for (size_t i = 0; readable && i < n; i++) {
        struct td_frame frame;
        i += td_frame_search(bytes + i, n - i);
        if (i < n && frame_at(s, fd, at + i, size, &frame) && frame.offset > indexed(seg)) {
            if (frame.offset <= until) {
                found = frame.offset;
                seg->tail = (uint32_t)(at + i);
            }
            break;
        }
    }
    td_free(bytes);
    while (indexed(seg) < found) {
        add_record(seg, 0);
    }
}

// Indexes records of the segment up to `until`, or to the end of the file.
static enum td_rc walk(struct td_segments *s, struct segment *seg, int64_t until,
                       struct td_err *err) {
    int fd = -1;
    enum td_rc rc = td_segments_file(s, seg->base, O_RDONLY, &fd, err);
    if (rc != TD_OK) {
        return rc;
    }
    struct stat st;
    if (fstat(fd, &st) != 0) {
        rc = td_fail_errno(err, errno, "%s", s->folder);
        goto out;
    }
    uint64_t size = (uint64_t)st.st_size;
    while (indexed(seg) < until && seg->tail < size) {
        struct td_frame frame;
        if (frame_at(s, fd, seg->tail, size, &frame) && frame.offset == indexed(seg)) {
            add_record(seg, seg->tail);
            seg->tail += TD_FRAME_BYTES + frame.length;
        } else {
            skip_damage(s, fd, seg, size, until);
        }
    }
out:
    close(fd);
    return rc;
}

static struct segment *holding(struct td_segments *s, int64_t offset) {
    struct segment *found = NULL;
    for (size_t i = 0; i < s->count && s->segments[i].base <= offset; i++) {
        found = &s->segments[i];
    }
    return found;
}

// `until`, or the begin of the segment behind seg if that comes first.
static int64_t limit_of(const struct td_segments *s, const struct segment *seg, int64_t until) {
    const struct segment *after = seg + 1;
    return after < s->segments + s->count && after->base < until ? after->base : until;
}

static enum td_rc find(struct td_segments *s, int64_t offset, int64_t until, struct td_place *place,
                       struct td_err *err) {
    *place = (struct td_place){.offset = offset, .base = offset};
    for (int tries = 0; tries < 2; tries++) {
        struct segment *seg = holding(s, offset);
        enum td_rc rc = TD_OK;
        if (seg && indexed(seg) <= offset) {
            rc = walk(s, seg, limit_of(s, seg, until), err);
        }
        if (rc != TD_OK && rc != TD_ENOENT) {
            return rc;
        }
        place->base = seg ? seg->base : offset;
        if (rc == TD_OK && seg && offset < indexed(seg)) {
            place->at = seg->at[offset - seg->base];
            return place->at ? TD_OK
                             : td_segments_damaged(s, place, "no frame of this record", err);
        }
        rc = list(s, err); // it may lie in a segment made since, or its segment be trimmed
        if (rc != TD_OK) {
            return rc;
        }
    }
    return td_segments_damaged(s, place, "the record is missing", err);
}

enum td_rc td_segments_find(struct td_segments *segments, int64_t offset, int64_t until,
                            struct td_place *place, struct td_err *err) {
    td_assert_op(offset, <, until);
    pthread_mutex_lock(&segments->mutex);
    enum td_rc rc = find(segments, offset, until, place, err);
    pthread_mutex_unlock(&segments->mutex);
    return rc;
}

enum td_rc td_segments_frame(const struct td_segments *segments, int fd, struct td_place *place,
                             struct td_err *err) {
    struct stat st;
    struct td_frame frame = {0};
    if (fstat(fd, &st) != 0 || !frame_at(segments, fd, place->at, (uint64_t)st.st_size, &frame) ||
        frame.offset != place->offset) {
        return td_segments_damaged(segments, place, "no frame of this record", err);
    }
    place->length = frame.length;
    place->crc = frame.crc;
    return TD_OK;
}

// Writes the bytes at place behind those of out; out->len stays.
static enum td_rc read_record(const struct td_segments *s, int fd, struct td_place *place,
                              struct td_buf *out, struct td_err *err) {
    enum td_rc rc = td_segments_frame(s, fd, place, err);
    if (rc != TD_OK) {
        return rc;
    }
    uint8_t *to = td_buf_room(out, place->length);
    rc = td_pread_all(fd, to, place->length, (uint64_t)place->at + TD_FRAME_BYTES, err);
    if (rc != TD_OK) {
        return td_segments_damaged(s, place, "the record cannot be read", err);
    }
    uint32_t crc = td_crc32c(0, to, place->length);
    if (crc != place->crc) {
        char why[128];
        snprintf(why, sizeof why, "the record has CRC %08x, expected %08x", crc, place->crc);
        return td_segments_damaged(s, place, why, err);
    }
    return TD_OK;
}

// Reads one record; *fd is the open segment of *base and is changed as needed (−1: none).
static enum td_rc read_next(struct td_segments *s, int *fd, int64_t *base, struct td_place *place,
                            struct td_log_batch *batch) {
    if (*fd < 0 || place->base != *base) {
        if (*fd >= 0) {
            close(*fd);
            *fd = -1;
        }
        *base = place->base;
        enum td_rc rc = td_segments_file(s, *base, O_RDONLY, fd, &batch->err);
        if (rc != TD_OK) {
            return rc;
        }
    }
    return read_record(s, *fd, place, &batch->bytes, &batch->err);
}

static void fetch_records(struct td_segments *s, int64_t end, struct td_log_batch *batch) {
    int fd = -1;
    int64_t base = -1;
    enum td_rc rc = TD_OK;
    for (int64_t next = batch->first;
         next < end && batch->count < TD_LOG_BATCH_RECORDS && batch->bytes.len < TD_LOG_BATCH_BYTES;
         next++) {
        struct td_place place = {0};
        int64_t ahead = next + TD_LOG_BATCH_RECORDS;
        rc = td_segments_find(s, next, ahead < end ? ahead : end, &place, &batch->err);
        rc = rc == TD_OK ? read_next(s, &fd, &base, &place, batch) : rc;
        if (rc != TD_OK) {
            break;
        }
        td_log_batch_add(batch, place.length, place.crc);
    }
    if (fd >= 0) {
        close(fd);
    }
    // Records before the fault are delivered first; the next fetch meets it again.
    rc = rc == TD_ENOENT ? TD_ECORRUPT : rc;
    batch->rc = batch->count ? TD_OK : rc;
    batch->damaged = batch->rc == TD_ECORRUPT;
}

void td_segments_fetch(struct td_segments *segments, int64_t from, struct td_log_batch *batch) {
    int64_t start = 0, end = 0;
    batch->rc = td_segments_marks(segments, &start, &end, &batch->err);
    if (batch->rc != TD_OK) {
        return;
    }
    bool anywhere = from == TD_LOG_FROM_START;
    batch->gap = !anywhere && (from < start || from > end);
    batch->first = anywhere || batch->gap ? start : from;
    fetch_records(segments, end, batch);
    if (batch->rc != TD_OK && td_segments_marks(segments, &start, &end, NULL) == TD_OK &&
        start > batch->first) { // trimmed while we looked
        batch->rc = TD_OK;
        batch->damaged = false;
        batch->gap = !anywhere;
        batch->first = start;
    }
}

static enum td_rc read_at(struct td_segments *s, struct td_place *place, int64_t offset,
                          struct td_buf *out, struct td_err *err) {
    int fd = -1;
    enum td_rc rc = td_segments_find(s, offset, offset + 1, place, err);
    if (rc == TD_OK) {
        rc = td_segments_file(s, place->base, O_RDONLY, &fd, err);
    }
    if (rc == TD_OK) {
        rc = read_record(s, fd, place, out, err);
        close(fd);
    }
    return rc;
}

enum td_rc td_segments_read_one(struct td_segments *segments, int64_t offset, uint32_t crc,
                                struct td_buf *out, struct td_err *err) {
    int64_t start = 0, end = 0;
    struct td_place place = {0};
    enum td_rc rc = td_segments_marks(segments, &start, &end, err);
    if (rc != TD_OK) {
        return rc;
    }
    td_buf_clear(out);
    if (offset >= start && offset < end) {
        rc = read_at(segments, &place, offset, out, err);
    }
    int64_t now = start;
    if (rc != TD_OK && td_segments_marks(segments, &now, &end, NULL) == TD_OK) {
        start = now; // trimmed while we looked?
    }
    if (offset < start || offset >= end) {
        return td_fail(err, TD_ENOENT, "%s: no record at offset %lld: it has %lld to %lld",
                       segments->folder, (long long)offset, (long long)start, (long long)end - 1);
    }
    if (rc == TD_OK && place.crc != crc) {
        return td_fail(err, TD_ECORRUPT,
                       "%s: the record at offset %lld has CRC %08x, expected %08x",
                       segments->folder, (long long)offset, place.crc, crc);
    }
    if (rc == TD_OK) {
        out->len = place.length;
    }
    return rc;
}
