// Processes by id and start time: see process.h.
#include "cli/process.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <unistd.h>

#include "lib/base/file.h"

enum { STAT_MAX = 4096, FIELD_STATE = 3, FIELD_START = 22 };

// The name, field 2, may hold anything: fields are counted from its last parenthesis.
static const char *field(const char *text, int number) {
    const char *at = strrchr(text, ')');
    for (int i = 2; at && i < number; i++) {
        at = strchr(at + 1, ' ');
    }
    return at ? at + 1 : "";
}

// After SIGKILL the first thread may be a zombie while others still hold sockets and locks.
static bool has_threads(pid_t pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *d = opendir(path);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        n += e->d_name[0] != '.';
    }
    if (d) {
        closedir(d);
    }
    return n > 1;
}

uint64_t td_process_start(pid_t pid) {
    char path[64];
    struct td_buf text = {0};
    struct td_err err;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    uint64_t start = 0;
    if (pid > 0 && td_file_read(path, STAT_MAX, &text, &err) == TD_OK) {
        char state = *field(td_buf_str(&text), FIELD_STATE);
        bool dead = (state == 'Z' && !has_threads(pid)) || state == 'X';
        start = dead ? 0 : strtoull(field(td_buf_str(&text), FIELD_START), NULL, 10);
    }
    td_buf_fini(&text);
    return start;
}

bool td_process_alive(pid_t pid, uint64_t start) {
    return start != 0 && td_process_start(pid) == start;
}

bool td_process_signal(pid_t pid, uint64_t start, int signum) {
    int fd = pid > 0 ? pidfd_open(pid, 0) : -1;
    // The descriptor names one process for good, so the start time is looked at behind it.
    bool sent =
        fd >= 0 && td_process_alive(pid, start) && pidfd_send_signal(fd, signum, NULL, 0) == 0;
    if (fd >= 0) {
        close(fd);
    }
    return sent;
}
