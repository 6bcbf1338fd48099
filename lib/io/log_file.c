// The file kind of the record log: creating, opening and the writing side. See README.md for the
// files. Runs on the log's thread; whoever changes anything holds the flock on FOLDER/lock.
#include "lib/io/log_file.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "lib/base/check.h"
#include "lib/base/crc.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/base/trace.h"
#include "lib/io/log_int.h"
#include "lib/io/log_segment.h"

enum { LOCK_POLL_MS = 2, SEGMENT_BYTES_LIMIT = 1 << 30 };

struct writer { // of one partition; where its last segment ends, as of the last look
    struct td_segments *segments;
    int fd; // of the last segment; −1: not looked yet
    int64_t base, next, published;
    uint64_t at; // byte behind record next − 1
    bool dirty;  // written since the last fsync
};

struct file_log {
    char *folder;
    uint64_t id;
    uint32_t partitions, segment_bytes_max;
    int lock_fd;
    bool no_fsync;
    struct writer *writers;
    void (*fatal)(void *user, const struct td_err *err);
    void *user;
    const struct td_log_hooks *hooks;
    atomic_int waits_for; // log thread → loop: holder of the lock
    atomic_bool stop;     // loop → log thread: give up waiting for the lock
};

// ---- small steps

// 0, or the errno with which a test wants the next step to fail.
static int step(const struct td_log_hooks *hooks, const char *name) {
    return hooks ? hooks->step(hooks->user, name) : 0;
}

// After a failed fsync the kernel may have dropped the pages and will not say so again: nobody can
// tell what is on the disk, so nobody may go on.
static _Noreturn void fatal(struct file_log *log, const struct td_err *err) {
    if (log->fatal) {
        log->fatal(log->user, err);
    }
    td_trace_error("the record log cannot be made durable", "folder=\"%s\" error=\"%s\"",
                   log->folder, err->msg);
    abort();
}

static void must_sync(struct file_log *log, int fd, const char *path) {
    struct td_err err;
    int errnum = log->no_fsync ? 0 : step(log->hooks, "fsync");
    if (errnum == 0 && !log->no_fsync && fsync(fd) != 0) {
        errnum = errno;
    }
    if (errnum != 0) {
        (void)td_fail_errno(&err, errnum, "fsync of %s", path);
        fatal(log, &err);
    }
}

static pid_t read_holder(int lock_fd) {
    char text[32] = {0};
    return pread(lock_fd, text, sizeof text - 1, 0) > 0 ? (pid_t)strtol(text, NULL, 10) : 0;
}

// For people only: a full disk must not keep anyone from the lock.
static void write_holder(int lock_fd) {
    char text[32];
    int n = snprintf(text, sizeof text, "%-11d\n", (int)getpid());
    ssize_t done = pwrite(lock_fd, text, (size_t)n, 0);
    (void)done;
}

static enum td_rc lock(struct file_log *log, struct td_err *err) {
    while (flock(log->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) {
            return td_fail_errno(err, errno, "%s/lock", log->folder);
        }
        pid_t holder = read_holder(log->lock_fd);
        atomic_store(&log->waits_for, holder);
        if (atomic_load(&log->stop)) {
            return td_fail(err, TD_ESTOPPED, "%s/lock is held by process %d", log->folder,
                           (int)holder);
        }
        poll(NULL, 0, LOCK_POLL_MS);
    }
    atomic_store(&log->waits_for, 0);
    write_holder(log->lock_fd);
    return TD_OK;
}

static void unlock(struct file_log *log) {
    flock(log->lock_fd, LOCK_UN);
}

static enum td_rc write_header(const char *path, const struct td_log_header *header,
                               const struct td_log_hooks *hooks, struct td_err *err) {
    uint8_t bytes[TD_LOG_HEADER_BYTES + 2 * TD_MARK_BYTES];
    size_t n = TD_LOG_HEADER_BYTES;
    td_log_header_encode(header, bytes);
    if (header->type == TD_LOG_FILE_MARKS) {
        for (uint32_t which = TD_MARK_START; which <= TD_MARK_END; which++) {
            uint64_t word = td_mark_encode(header->id, header->partition, which, 0);
            memcpy(bytes + n, &word, sizeof word);
            n += sizeof word;
        }
    }
    int errnum = step(hooks, "create");
    return errnum ? td_fail_errno(err, errnum, "%s", path) : td_file_write(path, bytes, n, err);
}

// ---- finding the end

static void forget(struct writer *w) {
    if (w->fd >= 0) {
        close(w->fd);
    }
    w->fd = -1;
}

// Whether nobody else has written since: then fd, base, next and at still hold.
static bool is_current(const struct writer *w, int64_t end) {
    struct stat st;
    if (w->fd < 0 || w->published != end || w->next != end || fstat(w->fd, &st) != 0 ||
        (uint64_t)st.st_size != w->at) {
        return false;
    }
    if (w->base == end) {
        return true;
    }
    char *path = td_segments_path(w->segments, end); // rolled, but nothing published yet?
    bool rolled = td_file_exists(path);
    td_free(path);
    return !rolled;
}

static enum td_rc roll(struct file_log *log, struct writer *w, struct td_err *err);

// Opens the last segment and finds the byte behind the last published record.
static enum td_rc seek_behind(struct writer *w, struct td_place *place, struct td_err *err) {
    int64_t end = w->next;
    enum td_rc rc = td_segments_find(w->segments, end - 1, end, place, err);
    rc = rc == TD_OK ? td_segments_file(w->segments, place->base, O_RDWR, &w->fd, err) : rc;
    rc = rc == TD_OK ? td_segments_frame(w->segments, w->fd, place, err) : rc;
    if (rc == TD_OK) {
        w->base = place->base;
        w->at = (uint64_t)place->at + TD_FRAME_BYTES + place->length;
    }
    return rc;
}

// Goes to the place behind the last published record. When damage hides it, a new segment begins
// there: readers tell what is damaged, and the log goes on.
static enum td_rc seek_end(struct file_log *log, struct writer *w, int64_t end,
                           struct td_err *err) {
    int64_t next = -1, last = -1;
    struct td_place place;
    w->next = w->published = end;
    enum td_rc rc = td_segments_list(w->segments, end - 1, &next, &last, err);
    if (rc == TD_OK && next == end) {
        w->base = end;
        w->at = TD_LOG_HEADER_BYTES;
        rc = td_segments_file(w->segments, end, O_RDWR, &w->fd, err);
    } else if (rc == TD_OK && end > 0) {
        rc = seek_behind(w, &place, err);
        if (rc == TD_ECORRUPT && next < 0) {
            forget(w);
            rc = roll(log, w, err);
        }
    } else if (rc == TD_OK) {
        rc = td_fail(err, TD_ECORRUPT, "%s: damaged at offset 0: the first segment is missing",
                     td_segments_folder(w->segments));
    }
    return rc;
}

// Whether a whole, valid record lies at w->at; if so steps over it.
static bool step_over(struct file_log *log, struct writer *w, uint64_t size) {
    uint8_t bytes[TD_FRAME_BYTES];
    struct td_frame frame;
    if (w->at + TD_FRAME_BYTES > size ||
        td_pread_all(w->fd, bytes, sizeof bytes, w->at, NULL) != TD_OK ||
        !td_frame_decode(bytes, log->id, &frame) || frame.offset != w->next ||
        w->at + TD_FRAME_BYTES + frame.length > size) {
        return false;
    }
    uint8_t *record = td_alloc(frame.length);
    bool valid = td_pread_all(w->fd, record, frame.length, w->at + TD_FRAME_BYTES, NULL) == TD_OK &&
                 td_crc32c(0, record, frame.length) == frame.crc;
    td_free(record);
    if (valid) {
        w->next++;
        w->at += TD_FRAME_BYTES + frame.length;
    }
    return valid;
}

// Steps over what writers left behind the published end: they ended before they could publish it,
// or the power went before the mark reached the disk. A segment is begun only after the one before
// it is whole and synced, so anything unreadable that is not at the very end is damage.
static enum td_rc read_tail(struct file_log *log, struct writer *w, struct td_err *err) {
    for (;;) {
        struct stat st;
        if (fstat(w->fd, &st) != 0) {
            return td_fail_errno(err, errno, "%s", log->folder);
        }
        while (step_over(log, w, (uint64_t)st.st_size)) {
        }
        int64_t next = -1, last = -1;
        enum td_rc rc = td_segments_list(w->segments, w->base, &next, &last, err);
        if (rc != TD_OK) {
            return rc;
        }
        if (next == w->next && (uint64_t)st.st_size == w->at) {
            forget(w);
            rc = td_segments_file(w->segments, next, O_RDWR, &w->fd, err);
            if (rc != TD_OK) {
                return rc;
            }
            w->base = next;
            w->at = TD_LOG_HEADER_BYTES;
        } else if (next >= 0) {
            struct td_place place = {.offset = w->next, .base = w->base, .at = (uint32_t)w->at};
            return td_segments_damaged(w->segments, &place, "later segments follow", err);
        } else {
            return TD_OK;
        }
    }
}

static enum td_rc cut_tail(struct file_log *log, struct writer *w, struct td_err *err) {
    struct stat st;
    if (fstat(w->fd, &st) != 0) {
        return td_fail_errno(err, errno, "%s", log->folder);
    }
    if ((uint64_t)st.st_size > w->at) {
        td_trace_warn("cut the torn tail of a log", "folder=\"%s\" offset=%lld bytes=%llu",
                      td_segments_folder(w->segments), (long long)w->next,
                      (unsigned long long)((uint64_t)st.st_size - w->at));
        int errnum = step(log->hooks, "cut");
        if (errnum != 0 || ftruncate(w->fd, (off_t)w->at) != 0) {
            return td_fail_errno(err, errnum ? errnum : errno, "%s",
                                 td_segments_folder(w->segments));
        }
        w->dirty = true;
    }
    return TD_OK;
}

static enum td_rc publish(struct file_log *log, struct writer *w, struct td_err *err) {
    if (w->dirty || w->published != w->next) {
        must_sync(log, w->fd, td_segments_folder(w->segments));
        w->dirty = false;
    }
    if (w->published == w->next) {
        return TD_OK;
    }
    int errnum = step(log->hooks, "publish");
    if (errnum != 0) {
        return td_fail_errno(err, errnum, "%s/marks", td_segments_folder(w->segments));
    }
    enum td_rc rc = td_segments_set_mark(w->segments, TD_MARK_END, w->next, err);
    if (rc == TD_OK) {
        w->published = w->next;
    }
    return rc;
}

// Under the lock, before any append: w is at the end, and nothing lies behind it.
static enum td_rc prepare(struct file_log *log, struct writer *w, struct td_err *err) {
    int64_t start = 0, end = 0;
    enum td_rc rc = td_segments_marks(w->segments, &start, &end, err);
    if (rc != TD_OK || is_current(w, end)) {
        return rc;
    }
    forget(w);
    w->dirty = false;
    rc = seek_end(log, w, end, err);
    rc = rc == TD_OK ? read_tail(log, w, err) : rc;
    rc = rc == TD_OK ? cut_tail(log, w, err) : rc;
    rc = rc == TD_OK ? publish(log, w, err) : rc;
    if (rc != TD_OK) {
        forget(w);
    }
    return rc;
}

// ---- appending

static enum td_rc roll(struct file_log *log, struct writer *w, struct td_err *err) {
    if (w->dirty) {
        must_sync(log, w->fd, td_segments_folder(w->segments));
        w->dirty = false;
    }
    char *path = td_segments_path(w->segments, w->next);
    struct td_log_header header = {.type = TD_LOG_FILE_SEGMENT,
                                   .id = log->id,
                                   .partition = (uint32_t)(w - log->writers),
                                   .base = w->next};
    enum td_rc rc = write_header(path, &header, log->hooks, err);
    td_free(path);
    int fd = -1;
    rc = rc == TD_OK ? td_segments_file(w->segments, w->next, O_RDWR, &fd, err) : rc;
    if (rc == TD_OK) {
        forget(w);
        w->fd = fd;
        w->base = w->next;
        w->at = TD_LOG_HEADER_BYTES;
    }
    return rc;
}

// 0, or an errno; a short write counts as a full disk.
static int write_frame(struct file_log *log, struct writer *w, struct td_log_op *op) {
    struct td_frame frame = {log->id, w->next, (uint32_t)op->n, op->crc};
    uint8_t bytes[TD_FRAME_BYTES];
    td_frame_encode(&frame, bytes);
    struct iovec parts[] = {{bytes, sizeof bytes}, {op->bytes, op->n}};
    int errnum = step(log->hooks, "write");
    if (errnum != 0) {
        return errnum;
    }
    ssize_t n;
    do {
        n = pwritev(w->fd, parts, 2, (off_t)w->at);
    } while (n < 0 && errno == EINTR);
    return n < 0 ? errno : (size_t)n == sizeof bytes + op->n ? 0 : ENOSPC;
}

static enum td_rc append(struct file_log *log, struct writer *w, struct td_log_op *op) {
    op->crc = td_crc32c(0, op->bytes, op->n);
    size_t need = TD_FRAME_BYTES + op->n;
    if (w->at > TD_LOG_HEADER_BYTES && (op->roll || w->at + need > log->segment_bytes_max)) {
        enum td_rc rc = roll(log, w, &op->err);
        if (rc != TD_OK) {
            return rc;
        }
    }
    w->dirty = true;
    int errnum = write_frame(log, w, op);
    if (errnum != 0) {
        // A part of it may be there. Should this cut fail too, the next prepare does it.
        if (ftruncate(w->fd, (off_t)w->at) != 0) {
            td_trace_warn("cannot cut a failed append", "folder=\"%s\"", log->folder);
        }
        return td_fail_errno(&op->err, errnum, "append to %s", td_segments_folder(w->segments));
    }
    op->offset = w->next++;
    w->at += need;
    return TD_OK;
}

static enum td_rc trim(struct file_log *log, struct writer *w, struct td_log_op *op) {
    int64_t start = 0, end = 0;
    enum td_rc rc = td_segments_marks(w->segments, &start, &end, &op->err);
    if (rc != TD_OK || op->below < start) {
        return rc;
    }
    if (op->below > end) {
        return td_fail(&op->err, TD_EINVAL, "%s: trim below %lld, but the log ends at %lld",
                       td_segments_folder(w->segments), (long long)op->below, (long long)end);
    }
    int errnum = step(log->hooks, "start");
    if (errnum != 0) {
        return td_fail_errno(&op->err, errnum, "%s/marks", td_segments_folder(w->segments));
    }
    rc = td_segments_set_mark(w->segments, TD_MARK_START, op->below, &op->err);
    if (rc != TD_OK) {
        return rc;
    }
    must_sync(log, td_segments_marks_fd(w->segments), td_segments_folder(w->segments));
    errnum = step(log->hooks, "delete");
    return errnum ? td_fail_errno(&op->err, errnum, "%s", td_segments_folder(w->segments))
                  : td_segments_delete(w->segments, op->below, &op->err);
}

// Writes and trims in order; publishing comes later. A failed append fails those behind it, so that
// none lands without the one it may build on.
static void write_all(struct file_log *log, struct td_log_op *first) {
    bool *prepared = td_alloc_array(log->partitions, sizeof *prepared);
    const struct td_log_op *failed = NULL;
    for (struct td_log_op *op = first; op; op = op->next) {
        struct writer *w = &log->writers[op->partition];
        if (op->type == TD_LOG_OP_BOUNDS) {
            continue;
        }
        if (op->type == TD_LOG_OP_APPEND && failed) {
            op->rc = td_fail(&op->err, failed->err.code, "an earlier append failed: %.900s",
                             failed->err.msg);
            continue;
        }
        if (!prepared[op->partition]) {
            op->rc = prepare(log, w, &op->err);
            prepared[op->partition] = op->rc == TD_OK;
        }
        if (op->rc == TD_OK && op->type == TD_LOG_OP_APPEND) {
            op->rc = append(log, w, op);
        } else if (op->rc == TD_OK) {
            op->rc = publish(log, w, &op->err); // it may trim up to an append of the same batch
            op->rc = op->rc == TD_OK ? trim(log, w, op) : op->rc;
        }
        failed = op->type == TD_LOG_OP_APPEND && op->rc != TD_OK ? op : failed;
    }
    td_free(prepared);
}

// Makes durable and visible what was written, then gives the appends their outcome.
static void publish_all(struct file_log *log, struct td_log_op *first) {
    for (struct td_log_op *op = first; op; op = op->next) {
        struct writer *w = &log->writers[op->partition];
        if (op->type != TD_LOG_OP_APPEND || op->rc != TD_OK) {
            continue;
        }
        op->rc = w->published > op->offset ? TD_OK : publish(log, w, &op->err);
        // Written but not published: whoever appends next will publish it.
        op->outcome = op->rc == TD_OK ? TD_LOG_APPENDED : TD_LOG_UNKNOWN;
    }
}

static void execute(void *backend, struct td_log_op *first) {
    struct file_log *log = backend;
    bool writes = false;
    for (struct td_log_op *op = first; op; op = op->next) {
        writes = writes || op->type != TD_LOG_OP_BOUNDS;
    }
    if (writes) {
        struct td_err err;
        enum td_rc rc = lock(log, &err);
        if (rc == TD_OK) {
            write_all(log, first);
            publish_all(log, first);
            unlock(log);
        }
        for (struct td_log_op *op = first; rc != TD_OK && op; op = op->next) {
            op->rc = rc;
            op->err = err;
        }
    }
    for (struct td_log_op *op = first; op; op = op->next) {
        if (op->type == TD_LOG_OP_BOUNDS) {
            op->rc = td_segments_marks(log->writers[op->partition].segments, &op->start, &op->end,
                                       &op->err);
        }
    }
}

// ---- reading: log_segment.c

static void fetch(void *backend, uint32_t partition, int64_t from, struct td_log_batch *batch) {
    struct file_log *log = backend;
    td_segments_fetch(log->writers[partition].segments, from, batch);
}

static bool reaches(void *backend, uint32_t partition, int64_t offset) {
    struct file_log *log = backend;
    int64_t start = 0, end = 0;
    // On an error: let the reader fetch, and meet it there.
    return td_segments_marks(log->writers[partition].segments, &start, &end, NULL) != TD_OK ||
           offset < start || offset < end;
}

static enum td_rc read_one(void *backend, uint32_t partition, int64_t offset, uint32_t crc,
                           struct td_buf *out, struct td_err *err) {
    struct file_log *log = backend;
    return td_segments_read_one(log->writers[partition].segments, offset, crc, out, err);
}

static pid_t waits_for(void *backend) {
    struct file_log *log = backend;
    return (pid_t)atomic_load(&log->waits_for);
}

static void stop(void *backend) {
    struct file_log *log = backend;
    atomic_store(&log->stop, true);
}

static void free_backend(void *backend) {
    struct file_log *log = backend;
    for (uint32_t p = 0; p < log->partitions; p++) {
        forget(&log->writers[p]);
        td_segments_free(log->writers[p].segments);
    }
    td_free(log->writers);
    if (log->lock_fd >= 0) {
        close(log->lock_fd);
    }
    td_free(log->folder);
    td_free(log);
}

static const struct td_log_kind file_kind = {.threaded = true,
                                             .execute = execute,
                                             .fetch = fetch,
                                             .reaches = reaches,
                                             .read_one = read_one,
                                             .waits_for = waits_for,
                                             .stop = stop,
                                             .free = free_backend};

// ---- creating and opening

static enum td_rc open_lock(const char *folder, int *fd, struct td_err *err) {
    char *path = td_asprintf("%s/lock", folder);
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    enum td_rc rc = *fd >= 0 ? TD_OK : td_fail_errno(err, errno, "%s", path);
    td_free(path);
    return rc;
}

static enum td_rc read_root(const char *folder, struct td_log_header *root, struct td_err *err) {
    char *path = td_asprintf("%s/log", folder);
    struct td_buf bytes = {0};
    enum td_rc rc = td_file_read(path, TD_LOG_HEADER_BYTES, &bytes, err);
    if (rc == TD_OK && bytes.len != TD_LOG_HEADER_BYTES) {
        rc = td_fail(err, TD_ECORRUPT, "%s: damaged: %zu bytes, expected %d", path, bytes.len,
                     TD_LOG_HEADER_BYTES);
    } else if (rc == TD_OK) {
        rc = td_log_header_decode(bytes.data, root, err);
        rc = rc == TD_OK ? rc : td_err_in(err, "%s: damaged", path);
    } else if (rc == TD_ELIMIT) {
        rc =
            td_fail(err, TD_ECORRUPT, "%s: damaged: more than %d bytes", path, TD_LOG_HEADER_BYTES);
    }
    if (rc == TD_OK && (root->type != TD_LOG_FILE_ROOT || root->partitions < 1 ||
                        root->partitions > TD_LOG_PARTITIONS_MAX)) {
        rc = td_fail(err, TD_ECORRUPT, "%s: not the root of a record log", path);
    }
    td_buf_fini(&bytes);
    td_free(path);
    return rc;
}

static enum td_rc create_partition(const struct td_log_file_opts *opts, uint32_t partition,
                                   struct td_err *err) {
    char *folder = td_asprintf("%s/%u", opts->folder, partition);
    char *marks = td_asprintf("%s/marks", folder);
    char *segment = td_asprintf("%s/%020d.seg", folder, 0);
    struct td_log_header header = {TD_LOG_FILE_MARKS, opts->id, partition, 0, 0};
    enum td_rc rc = td_make_dirs(folder, err);
    rc = rc == TD_OK ? write_header(marks, &header, opts->hooks, err) : rc;
    header.type = TD_LOG_FILE_SEGMENT;
    rc = rc == TD_OK ? write_header(segment, &header, opts->hooks, err) : rc;
    td_free(segment);
    td_free(marks);
    td_free(folder);
    return rc;
}

// The root is written last: without it there is no log.
static enum td_rc create_files(const struct td_log_file_opts *opts, struct td_err *err) {
    struct td_log_header root = {0};
    enum td_rc rc = read_root(opts->folder, &root, err);
    if (rc == TD_OK) {
        return td_fail(err, TD_ECONFLICT, "%s holds a log already, %016llx", opts->folder,
                       (unsigned long long)root.id);
    }
    if (rc != TD_ENOENT) {
        return rc;
    }
    rc = TD_OK;
    for (uint32_t p = 0; rc == TD_OK && p < opts->partitions; p++) {
        rc = create_partition(opts, p, err);
    }
    char *path = td_asprintf("%s/log", opts->folder);
    char *parent = td_asprintf("%s/..", opts->folder);
    root = (struct td_log_header){TD_LOG_FILE_ROOT, opts->id, 0, opts->partitions, 0};
    rc = rc == TD_OK ? td_sync_dir(parent, err) : rc;
    rc = rc == TD_OK ? write_header(path, &root, opts->hooks, err) : rc;
    td_free(parent);
    td_free(path);
    return rc;
}

enum td_rc td_log_file_create(const struct td_log_file_opts *opts, struct td_err *err) {
    td_assert(opts->partitions >= 1 && opts->partitions <= TD_LOG_PARTITIONS_MAX);
    int fd = -1;
    enum td_rc rc = td_make_dirs(opts->folder, err);
    rc = rc == TD_OK ? open_lock(opts->folder, &fd, err) : rc;
    if (rc == TD_OK && flock(fd, LOCK_EX | LOCK_NB) != 0) {
        rc = td_fail(err, TD_ECONFLICT, "%s/lock is held by process %d", opts->folder,
                     (int)read_holder(fd));
    } else if (rc == TD_OK) {
        write_holder(fd);
        rc = create_files(opts, err);
    }
    if (fd >= 0) {
        close(fd);
    }
    return rc;
}

// What an earlier process left unfinished, unless one is at work that will do it.
static enum td_rc recover(struct file_log *log, struct td_err *err) {
    if (flock(log->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        return TD_OK;
    }
    write_holder(log->lock_fd);
    enum td_rc rc = TD_OK;
    for (uint32_t p = 0; rc == TD_OK && p < log->partitions; p++) {
        struct writer *w = &log->writers[p];
        int64_t start = 0, end = 0;
        rc = prepare(log, w, err);
        rc = rc == TD_OK ? td_segments_marks(w->segments, &start, &end, err) : rc;
        rc = rc == TD_OK ? td_segments_delete(w->segments, start, err) : rc;
    }
    unlock(log);
    return rc;
}

enum td_rc td_log_file_ask(struct td_log_file_opts *opts, struct td_err *err) {
    struct td_log_header root = {0};
    enum td_rc rc = read_root(opts->folder, &root, err);
    if (rc != TD_OK) {
        return td_err_in(err, "cannot open the record log");
    }
    if (opts->id && opts->id != root.id) {
        return td_fail(err, TD_ECONFLICT, "%s holds log %016llx, expected %016llx", opts->folder,
                       (unsigned long long)root.id, (unsigned long long)opts->id);
    }
    opts->id = root.id;
    opts->partitions = root.partitions;
    return TD_OK;
}

enum td_rc td_log_file_open(struct td_loop *loop, const struct td_log_file_opts *opts,
                            struct td_log **out, struct td_err *err) {
    td_assert_op(opts->segment_bytes_max, <=, SEGMENT_BYTES_LIMIT);
    struct td_log_file_opts root = *opts;
    enum td_rc rc = td_log_file_ask(&root, err);
    if (rc != TD_OK) {
        return rc;
    }
    struct file_log *log = td_alloc(sizeof *log);
    log->folder = td_strdup(opts->folder);
    log->id = root.id;
    log->partitions = root.partitions;
    log->segment_bytes_max =
        opts->segment_bytes_max ? opts->segment_bytes_max : TD_LOG_SEGMENT_BYTES;
    log->no_fsync = opts->no_fsync;
    log->fatal = opts->fatal;
    log->user = opts->user;
    log->hooks = opts->hooks;
    log->writers = td_alloc_array(root.partitions, sizeof *log->writers);
    for (uint32_t p = 0; p < root.partitions; p++) {
        log->writers[p].fd = -1;
    }
    rc = open_lock(opts->folder, &log->lock_fd, err);
    for (uint32_t p = 0; rc == TD_OK && p < root.partitions; p++) {
        char *folder = td_asprintf("%s/%u", opts->folder, p);
        rc = td_segments_open(folder, root.id, p, &log->writers[p].segments, err);
        td_free(folder);
    }
    rc = rc == TD_OK ? recover(log, err) : rc;
    if (rc != TD_OK) {
        free_backend(log);
        return rc;
    }
    struct td_log_base base = {&file_kind, log, root.id, root.partitions};
    return td_log_new(loop, &base, out, err);
}
