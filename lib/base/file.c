// Files: see file.h. Blocking; any thread.
#include "lib/base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/crc.h"
#include "lib/base/mem.h"

enum { PIECE = 1 << 20 };

bool td_file_exists(const char *path) {
    return access(path, F_OK) == 0;
}

enum td_rc td_file_read(const char *path, size_t max, struct td_buf *out, struct td_err *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return td_fail_errno(err, errno, "%s", path);
    }
    enum td_rc rc = TD_OK;
    td_buf_clear(out);
    for (;;) {
        ssize_t n = read(fd, td_buf_room(out, PIECE), PIECE);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            rc = td_fail_errno(err, errno, "%s", path);
            break;
        }
        if (n == 0) {
            break;
        }
        out->len += (size_t)n;
        if (out->len > max) {
            rc = td_fail(err, TD_ELIMIT, "%s: longer than %zu bytes", path, max);
            break;
        }
    }
    (void)td_buf_room(out, 0);
    close(fd);
    return rc;
}

enum td_rc td_write_all(int fd, const void *bytes, size_t n, struct td_err *err) {
    const uint8_t *p = bytes;
    while (n > 0) {
        ssize_t done = write(fd, p, n);
        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done < 0) {
            return td_fail_errno(err, errno, "write");
        }
        p += done;
        n -= (size_t)done;
    }
    return TD_OK;
}

enum td_rc td_pread_all(int fd, void *bytes, size_t n, uint64_t offset, struct td_err *err) {
    uint8_t *p = bytes;
    while (n > 0) {
        ssize_t done = pread(fd, p, n, (off_t)offset);
        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done < 0) {
            return td_fail_errno(err, errno, "read");
        }
        if (done == 0) {
            return td_fail(err, TD_ECORRUPT, "ends early at byte %llu", (unsigned long long)offset);
        }
        p += done;
        n -= (size_t)done;
        offset += (uint64_t)done;
    }
    return TD_OK;
}

enum td_rc td_sync_dir(const char *path, struct td_err *err) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return td_fail_errno(err, errno, "%s", path);
    }
    enum td_rc rc = fsync(fd) == 0 ? TD_OK : td_fail_errno(err, errno, "fsync of %s", path);
    close(fd);
    return rc;
}

static enum td_rc sync_parent(const char *path, struct td_err *err) {
    const char *slash = strrchr(path, '/');
    if (!slash) {
        return td_sync_dir(".", err);
    }
    char *dir = td_strndup(path, slash == path ? 1 : (size_t)(slash - path));
    enum td_rc rc = td_sync_dir(dir, err);
    td_free(dir);
    return rc;
}

enum td_rc td_file_write(const char *path, const void *bytes, size_t n, struct td_err *err) {
    char *tmp = td_asprintf("%s.tmp.%d", path, (int)getpid());
    enum td_rc rc = TD_OK;
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        rc = td_fail_errno(err, errno, "%s", path);
        goto out;
    }
    rc = td_write_all(fd, bytes, n, err);
    if (rc == TD_OK && fsync(fd) != 0) {
        rc = td_fail_errno(err, errno, "fsync");
    }
    close(fd);
    if (rc == TD_OK && rename(tmp, path) != 0) {
        rc = td_fail_errno(err, errno, "rename");
    }
    if (rc == TD_OK) {
        rc = sync_parent(path, err);
    } else {
        unlink(tmp);
        rc = td_err_in(err, "%s", path);
    }
out:
    td_free(tmp);
    return rc;
}

// Whether name is "...SUFFIX.tmp.PID".
static bool is_temporary(const char *name, const char *suffix) {
    const char *tmp = NULL, *next = name;
    while ((next = strstr(next, ".tmp."))) {
        tmp = next++;
    }
    size_t n = strlen(suffix);
    if (!tmp || (size_t)(tmp - name) < n || strncmp(tmp - n, suffix, n) != 0) {
        return false;
    }
    size_t digits = strspn(tmp + 5, "0123456789");
    return digits > 0 && tmp[5 + digits] == 0;
}

enum td_rc td_file_sweep(const char *dir, const char *suffix, struct td_err *err) {
    DIR *d = opendir(dir);
    if (!d) {
        return errno == ENOENT ? TD_OK : td_fail_errno(err, errno, "%s", dir);
    }
    enum td_rc rc = TD_OK;
    for (struct dirent *e; rc == TD_OK && (e = readdir(d));) {
        if (is_temporary(e->d_name, suffix) && unlinkat(dirfd(d), e->d_name, 0) != 0) {
            rc = td_fail_errno(err, errno, "%s/%s", dir, e->d_name);
        }
    }
    closedir(d);
    return rc;
}

enum td_rc td_make_dirs(const char *path, struct td_err *err) {
    if (*path == 0) {
        return td_fail(err, TD_EINVAL, "cannot make a folder without a name");
    }
    char *copy = td_strdup(path);
    enum td_rc rc = TD_OK;
    for (char *p = copy + 1; rc == TD_OK; p++) {
        if (*p != '/' && *p != 0) {
            continue;
        }
        char c = *p;
        *p = 0;
        if (mkdir(copy, 0777) != 0 && errno != EEXIST) {
            rc = td_fail_errno(err, errno, "cannot make folder %s", copy);
        }
        *p = c;
        if (c == 0) {
            break;
        }
    }
    struct stat st;
    if (rc == TD_OK && (stat(path, &st) != 0 || !S_ISDIR(st.st_mode))) {
        rc = td_fail(err, TD_EIO, "%s is not a folder", path);
    }
    td_free(copy);
    return rc;
}

// Depth is bounded by the kernel's limit on path lengths.
static enum td_rc remove_at(int at, const char *name, int depth, struct td_err *err) {
    if (unlinkat(at, name, 0) == 0 || errno == ENOENT) {
        return TD_OK;
    }
    if ((errno != EISDIR && errno != EPERM) || depth > 64) {
        return td_fail_errno(err, errno, "cannot remove %s", name);
    }
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        int errnum = errno;
        if (fd >= 0) {
            close(fd);
        }
        return td_fail_errno(err, errnum, "cannot remove %s", name);
    }
    enum td_rc rc = TD_OK;
    for (struct dirent *e; rc == TD_OK && (e = readdir(dir));) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            rc = remove_at(dirfd(dir), e->d_name, depth + 1, err);
        }
    }
    closedir(dir);
    if (rc == TD_OK && unlinkat(at, name, AT_REMOVEDIR) != 0 && errno != ENOENT) {
        rc = td_fail_errno(err, errno, "cannot remove %s", name);
    }
    return rc;
}

enum td_rc td_remove_tree(const char *path, struct td_err *err) {
    return remove_at(AT_FDCWD, path, 0, err);
}

enum td_rc td_file_digest(const char *path, uint64_t *digest, uint64_t *size, struct td_err *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return td_fail_errno(err, errno, "%s", path);
    }
    uint8_t *piece = td_alloc(PIECE);
    uint64_t hash = 0, total = 0;
    enum td_rc rc = TD_OK;
    for (;;) {
        ssize_t n = pread(fd, piece, PIECE, (off_t)total);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            rc = td_fail_errno(err, errno, "%s", path);
        }
        if (n <= 0) {
            break;
        }
        hash = td_digest64(hash, piece, (size_t)n);
        total += (uint64_t)n;
    }
    td_free(piece);
    close(fd);
    if (rc == TD_OK) {
        *digest = hash;
        *size = total;
    }
    return rc;
}
