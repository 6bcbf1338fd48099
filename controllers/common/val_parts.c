// Validation samples, collected: see val_parts.h. A part is lines of JSON {"row", "lines"}; the
// last one may be torn by a kill, so each begins on a line of its own.
#include "controllers/common/val_parts.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/base/trace.h"

enum { PART_BYTES_MAX = 1 << 30 };

static char *folder_of(const char *run_dir, uint64_t step) {
    return td_asprintf("%s/validation/%" PRIu64, run_dir, step);
}

static enum td_rc append(const char *path, const struct td_buf *text, struct td_err *err) {
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) {
        return td_fail_errno(err, errno, "%s", path);
    }
    enum td_rc rc = td_write_all(fd, text->data, text->len, err);
    close(fd);
    return rc == TD_OK ? TD_OK : td_err_in(err, "%s", path);
}

enum td_rc td_val_part_append(const struct td_val_part *p, struct td_err *err) {
    char *folder = folder_of(p->run_dir, p->step);
    char *path = td_asprintf("%s/%016" PRIx64, folder, p->member);
    json_t *root = json_pack("{s:I,s:s}", "row", (json_int_t)p->row, "lines", p->lines);
    char *line = json_dumps(root, JSON_COMPACT);
    struct td_buf text = {0};
    td_buf_printf(&text, "\n%s\n", line);
    enum td_rc rc = td_make_dirs(folder, err);
    rc = rc == TD_OK ? append(path, &text, err) : rc;
    td_buf_fini(&text);
    td_free(line); // jansson allocates by malloc, as td_free releases
    json_decref(root);
    td_free(path);
    td_free(folder);
    return rc;
}

static void take_line(const char *line, size_t n, char **lines, uint64_t rows) {
    json_t *root = json_loadb(line, n, 0, NULL);
    const char *text = json_string_value(json_object_get(root, "lines"));
    json_int_t row = json_integer_value(json_object_get(root, "row"));
    if (text && row >= 0 && (uint64_t)row < rows && !lines[row]) {
        lines[row] = td_strdup(text);
    }
    json_decref(root);
}

static enum td_rc take_part(const char *path, char **lines, uint64_t rows, struct td_err *err) {
    struct td_buf text = {0};
    enum td_rc rc = td_file_read(path, PART_BYTES_MAX, &text, err);
    for (const char *at = td_buf_str(&text); rc == TD_OK && *at;) {
        size_t n = strcspn(at, "\n");
        take_line(at, n, lines, rows);
        at += n + (at[n] == '\n');
    }
    td_buf_fini(&text);
    return rc;
}

static enum td_rc take_parts(const char *folder, char **lines, uint64_t rows, struct td_err *err) {
    DIR *d = opendir(folder);
    enum td_rc rc = TD_OK;
    for (struct dirent *e; d && rc == TD_OK && (e = readdir(d));) {
        if (e->d_name[0] != '.') {
            char *path = td_asprintf("%s/%s", folder, e->d_name);
            rc = take_part(path, lines, rows, err);
            td_free(path);
        }
    }
    if (d) {
        closedir(d);
    }
    return rc;
}

static enum td_rc write_file(const char *dir, uint64_t step, char **lines, uint64_t rows,
                             struct td_err *err) {
    char *path = td_asprintf("%s/%" PRIu64 ".jsonl", dir, step);
    struct td_buf text = {0};
    uint64_t missing = 0;
    enum td_rc rc = TD_OK;
    for (uint64_t i = 0; i < rows; i++) {
        missing += !lines[i];
        td_buf_puts(&text, lines[i] ? lines[i] : "");
    }
    if (missing == 0) {
        rc = td_make_dirs(dir, err);
        rc = rc == TD_OK ? td_file_write(path, text.data, text.len, err) : rc;
    } else if (!td_file_exists(path)) {
        td_trace_warn("answers of a validation are lost",
                      "file=%s rows=%" PRIu64 " missing=%" PRIu64, path, rows, missing);
    }
    td_buf_fini(&text);
    td_free(path);
    return rc == TD_OK ? TD_OK : td_err_in(err, "trainer.validation_data_dir");
}

enum td_rc td_val_parts_merge(const char *run_dir, uint64_t step, uint64_t rows, const char *dir,
                              struct td_err *err) {
    char *folder = folder_of(run_dir, step), *parent = td_asprintf("%s/validation", run_dir);
    char **lines = td_alloc_array(rows + 1, sizeof *lines);
    enum td_rc rc = take_parts(folder, lines, rows, err);
    rc = rc == TD_OK ? write_file(dir, step, lines, rows, err) : rc;
    rc = rc == TD_OK ? td_remove_tree(folder, err) : rc;
    (void)rmdir(parent); // not empty: another step's
    for (uint64_t i = 0; i < rows; i++) {
        td_free(lines[i]);
    }
    td_free(lines);
    td_free(parent);
    td_free(folder);
    return rc;
}
