// One partition of a file log: where its segments and records lie, and reading them. Any thread;
// the writing side (log_file.c) is one thread that holds the log's flock.
#ifndef TD_IO_LOG_SEGMENT_H
#define TD_IO_LOG_SEGMENT_H

#include "lib/io/log_frame.h"
#include "lib/io/log_int.h"

struct td_segments;

enum td_mark { TD_MARK_START, TD_MARK_END };

struct td_place {         // of a record
    int64_t offset, base; // base: offset of the first record of its segment
    uint32_t at;          // byte of its frame
    uint32_t length, crc; // of its bytes: set by td_segments_read
};

enum td_rc td_segments_open(const char *folder, uint64_t id, uint32_t partition,
                            struct td_segments **out, struct td_err *err) TD_MUST_CHECK;
void td_segments_free(struct td_segments *segments); // accepts NULL
const char *td_segments_folder(const struct td_segments *segments);

// For fsync.
int td_segments_marks_fd(const struct td_segments *segments);
// Start and durable end. TD_ECORRUPT: a mark is damaged.
enum td_rc td_segments_marks(const struct td_segments *segments, int64_t *start, int64_t *end,
                             struct td_err *err) TD_MUST_CHECK;
// Writes a mark. END need not be synced: after a power cut it is found again by reading on.
enum td_rc td_segments_set_mark(struct td_segments *segments, enum td_mark which, int64_t offset,
                                struct td_err *err) TD_MUST_CHECK;

// Owned path of a segment.
char *td_segments_path(const struct td_segments *segments, int64_t base);
// Opens a segment and checks its header. TD_ENOENT: no such file; TD_ECORRUPT: the header.
enum td_rc td_segments_file(const struct td_segments *segments, int64_t base, int flags, int *fd,
                            struct td_err *err) TD_MUST_CHECK;
// Reads the folder. *last: base of the last segment, −1 when there is none; *next (may be NULL):
// the lowest base above after, −1 when there is none.
enum td_rc td_segments_list(struct td_segments *segments, int64_t after, int64_t *next,
                            int64_t *last, struct td_err *err) TD_MUST_CHECK;
// The place of a record; offset < until <= durable end; looks ahead up to `until`. TD_ECORRUPT
// "damaged at offset N": also when it was trimmed meanwhile, so look at the start again.
enum td_rc td_segments_find(struct td_segments *segments, int64_t offset, int64_t until,
                            struct td_place *place, struct td_err *err) TD_MUST_CHECK;
// Reads the frame at place: sets place->length and place->crc. fd: as of td_segments_file.
enum td_rc td_segments_frame(const struct td_segments *segments, int fd, struct td_place *place,
                             struct td_err *err) TD_MUST_CHECK;
// "FILE: damaged at offset N (byte B): why".
enum td_rc td_segments_damaged(const struct td_segments *segments, const struct td_place *place,
                               const char *why, struct td_err *err);
// As fetch and read_one of a log kind.
void td_segments_fetch(struct td_segments *segments, int64_t from, struct td_log_batch *batch);
enum td_rc td_segments_read_one(struct td_segments *segments, int64_t offset, uint32_t crc,
                                struct td_buf *out, struct td_err *err) TD_MUST_CHECK;
// Deletes the segments that hold only records below start, never the last one, and what writers
// that were killed left half made.
enum td_rc td_segments_delete(struct td_segments *segments, int64_t start,
                              struct td_err *err) TD_MUST_CHECK;

#endif
