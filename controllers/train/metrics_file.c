// metrics.jsonl and the staged line: see metrics_file.h.
#include "controllers/train/metrics_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "lib/base/crc.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"

enum { FILE_BYTES_MAX = 1 << 30, TAIL_BYTES = 1 << 16, DIGITS = 17 };

static char *path_of(const char *run_dir, const char *name) {
    return td_asprintf("%s/%s", run_dir, name);
}

// The step of a line; −1: it is none.
static int64_t step_of_line(const char *line, size_t n) {
    json_t *root = json_loadb(line, n, 0, NULL);
    const json_t *step = json_object_get(root, "step");
    int64_t value = json_is_integer(step) ? json_integer_value(step) : -1;
    json_decref(root);
    return value;
}

// Walks the lines; *keep: bytes up to and with the last line of a step ≤ last; *step: of that line,
// −1: none.
static enum td_rc scan(const char *path, const struct td_buf *text, int64_t last, size_t *keep,
                       int64_t *step, struct td_err *err) {
    *keep = 0;
    *step = -1;
    size_t at = 0;
    for (uint64_t number = 1; at < text->len; number++) {
        const char *from = (const char *)text->data + at;
        const char *end = memchr(from, '\n', text->len - at);
        if (!end) {
            return TD_OK; // a torn last line
        }
        int64_t found = step_of_line(from, (size_t)(end - from));
        if (found < 0 || found <= *step) {
            return td_fail(err, TD_ECORRUPT,
                           "%s:%" PRIu64 ": not a line of metrics in order; move the file away, or "
                           "start over with --fresh",
                           path, number);
        }
        if (found > last) {
            return TD_OK;
        }
        at += (size_t)(end - from) + 1;
        *keep = at;
        *step = found;
    }
    return TD_OK;
}

static enum td_rc cut_to(const char *run_dir, int64_t last, int64_t *step, struct td_err *err) {
    char *path = path_of(run_dir, "metrics.jsonl");
    struct td_buf text = {0};
    size_t keep = 0;
    *step = -1;
    enum td_rc rc = td_file_read(path, FILE_BYTES_MAX, &text, err);
    if (rc == TD_ENOENT) {
        rc = TD_OK;
        goto out;
    }
    if (rc == TD_OK) {
        rc = scan(path, &text, last, &keep, step, err);
    }
    if (rc == TD_OK && keep < text.len && truncate(path, (off_t)keep) != 0) {
        rc = td_fail_errno(err, errno, "%s", path);
    }
out:
    td_buf_fini(&text);
    td_free(path);
    return rc;
}

// Sorted keys and all digits: what is read back gives the same text.
static char *text_of(const json_t *root) {
    return json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(DIGITS));
}

static json_int_t crc_of(const json_t *staged) {
    char *text = text_of(staged);
    uint32_t crc = td_crc32c(0, text, strlen(text));
    td_free(text);
    return (json_int_t)crc;
}

static enum td_rc read_staged(const char *run_dir, json_t **out, struct td_err *err) {
    char *path = path_of(run_dir, "metrics.staged.json");
    struct td_buf text = {0};
    *out = NULL;
    enum td_rc rc = td_file_read(path, FILE_BYTES_MAX, &text, err);
    if (rc == TD_ENOENT) {
        rc = TD_OK;
    } else if (rc == TD_OK) {
        *out = json_loadb(td_buf_str(&text), text.len, 0, NULL);
        json_t *crc = json_incref(json_object_get(*out, "crc"));
        json_object_del(*out, "crc");
        if (!json_is_object(json_object_get(*out, "line")) || !json_is_integer(crc) ||
            json_integer_value(crc) != crc_of(*out)) {
            json_decref(*out);
            *out = NULL;
            rc = td_fail(err, TD_ECORRUPT, "%s: damaged; remove it", path);
        }
        json_decref(crc);
    }
    td_buf_fini(&text);
    td_free(path);
    return rc;
}

enum td_rc td_metrics_file_open(const char *run_dir, struct td_metrics_on_disk *out,
                                struct td_err *err) {
    int64_t step = -1;
    json_t *staged = NULL;
    enum td_rc rc = cut_to(run_dir, INT64_MAX, &step, err);
    if (rc == TD_OK) {
        rc = read_staged(run_dir, &staged, err);
    }
    if (rc != TD_OK) {
        return rc;
    }
    *out = (struct td_metrics_on_disk){
        .has_line = step >= 0, .step = step >= 0 ? (uint64_t)step : 0, .staged_ref = {-1, 0}};
    if (staged) {
        out->has_staged = true;
        out->staged_step = (uint64_t)json_integer_value(json_object_get(staged, "step"));
        out->staged_ref.offset = json_integer_value(json_object_get(staged, "ref_offset"));
        out->staged_ref.crc = (uint32_t)json_integer_value(json_object_get(staged, "ref_crc"));
        json_decref(staged);
    }
    return TD_OK;
}

static void set_metrics(json_t *line, const struct td_metrics *metrics) {
    for (int i = 0; metrics && i < metrics->count; i++) {
        const struct td_metric *m = &metrics->m[i];
        json_object_set_new(line, m->name, isfinite(m->value) ? json_real(m->value) : json_null());
    }
}

enum td_rc td_metrics_file_stage(const char *run_dir, uint64_t step, struct td_pos ref,
                                 const struct td_metrics *metrics, struct td_err *err) {
    json_t *line =
        json_pack("{s:I,s:I}", "step", (json_int_t)step, "training/global_step", (json_int_t)step);
    set_metrics(line, metrics);
    json_t *root = json_pack("{s:I,s:I,s:I,s:o}", "step", (json_int_t)step, "ref_offset",
                             (json_int_t)ref.offset, "ref_crc", (json_int_t)ref.crc, "line", line);
    json_object_set_new(root, "crc", json_integer(crc_of(root)));
    char *text = json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS));
    char *path = path_of(run_dir, "metrics.staged.json");
    enum td_rc rc = td_file_write(path, text, strlen(text), err);
    td_free(path);
    td_free(text); // jansson allocates by malloc, as td_free releases
    json_decref(root);
    return rc;
}

// The step of the last line; −1: none is found in the last TAIL_BYTES.
static int64_t last_step(int fd) {
    struct td_buf tail = {0};
    off_t size = lseek(fd, 0, SEEK_END), from = size > TAIL_BYTES ? size - TAIL_BYTES : 0;
    char *text = (char *)td_buf_room(&tail, TAIL_BYTES);
    ssize_t n = size > 0 ? pread(fd, text, TAIL_BYTES, from) : 0;
    int64_t step = -1;
    if (n > 0 && text[n - 1] == '\n') {
        const char *before = memrchr(text, '\n', (size_t)n - 1);
        const char *line = before ? before + 1 : text;
        step = step_of_line(line, (size_t)(text + n - 1 - line));
    }
    td_buf_fini(&tail);
    return step;
}

// Not twice: a member that led the gang before may have been at it until now, late or stopped. With
// the lock, the later of them finds what the earlier wrote.
static enum td_rc append_line(const char *run_dir, uint64_t step, const struct td_buf *line,
                              struct td_err *err) {
    char *path = path_of(run_dir, "metrics.jsonl");
    enum td_rc rc = TD_OK;
    bool fresh = !td_file_exists(path);
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) {
        rc = td_fail_errno(err, errno, "cannot be opened");
    } else if (flock(fd, LOCK_EX) != 0) {
        rc = td_fail_errno(err, errno, "cannot be locked");
        close(fd);
    } else {
        bool there = last_step(fd) >= (int64_t)step;
        rc = there ? TD_OK : td_write_all(fd, line->data, line->len, err);
        if (rc == TD_OK && fsync(fd) != 0) {
            rc = td_fail_errno(err, errno, "fsync");
        }
        close(fd);
    }
    if (rc == TD_OK && fresh) {
        rc = td_sync_dir(run_dir, err);
    }
    rc = rc == TD_OK ? rc : td_err_in(err, "%s", path);
    td_free(path);
    return rc;
}

enum td_rc td_metrics_file_close(const char *run_dir, uint64_t step, const struct td_metrics *extra,
                                 struct td_buf *line, struct td_err *err) {
    json_t *staged = NULL;
    enum td_rc rc = read_staged(run_dir, &staged, err);
    if (rc != TD_OK) {
        return rc;
    }
    if (!staged || (uint64_t)json_integer_value(json_object_get(staged, "step")) != step) {
        json_decref(staged);
        return td_fail(err, TD_ECORRUPT, "%s/metrics.staged.json has no line of step %" PRIu64,
                       run_dir, step);
    }
    json_t *root = json_object_get(staged, "line");
    set_metrics(root, extra);
    char *text = json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS));
    struct td_buf out = {0};
    td_buf_printf(&out, "%s\n", text);
    rc = append_line(run_dir, step, &out, err);
    if (rc == TD_OK && line) {
        td_buf_clear(line);
        td_buf_put(line, out.data, out.len);
    }
    td_buf_fini(&out);
    td_free(text);
    json_decref(staged);
    return rc;
}

enum td_rc td_metrics_file_cut(const char *run_dir, uint64_t step, struct td_err *err) {
    int64_t found;
    return cut_to(run_dir, (int64_t)step, &found, err);
}
