// Files: whole reads with a limit, and writes that are there entirely or not at all.
#ifndef TD_BASE_FILE_H
#define TD_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/buf.h"
#include "lib/base/err.h"

// Reads the whole file into *out (replaced). TD_ELIMIT when it is longer than max.
enum td_rc td_file_read(const char *path, size_t max, struct td_buf *out,
                        struct td_err *err) TD_MUST_CHECK;
// Writes bytes to path atomically: temporary file beside it, fsync, rename, fsync of the folder.
enum td_rc td_file_write(const char *path, const void *bytes, size_t n,
                         struct td_err *err) TD_MUST_CHECK;
// Removes what td_file_write leaves in a folder when the process is killed within it, of files
// whose names end with suffix. A folder that is not there is fine.
enum td_rc td_file_sweep(const char *dir, const char *suffix, struct td_err *err) TD_MUST_CHECK;
// write(2) until all n bytes are out.
enum td_rc td_write_all(int fd, const void *bytes, size_t n, struct td_err *err) TD_MUST_CHECK;
// pread(2) of exactly n bytes; TD_ECORRUPT "ends early" when the file is shorter.
enum td_rc td_pread_all(int fd, void *bytes, size_t n, uint64_t offset,
                        struct td_err *err) TD_MUST_CHECK;
// mkdir -p.
enum td_rc td_make_dirs(const char *path, struct td_err *err) TD_MUST_CHECK;
// fsync of a folder, so that its names are durable.
enum td_rc td_sync_dir(const char *path, struct td_err *err) TD_MUST_CHECK;
// rm -r, without following links; a path that is not there is fine.
enum td_rc td_remove_tree(const char *path, struct td_err *err) TD_MUST_CHECK;
// A 64-bit digest (td_digest64 over 1 MiB pieces) and the size of a file.
enum td_rc td_file_digest(const char *path, uint64_t *digest, uint64_t *size,
                          struct td_err *err) TD_MUST_CHECK;
bool td_file_exists(const char *path);

#endif
