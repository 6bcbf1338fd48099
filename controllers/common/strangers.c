// Ending workers that an earlier run left: td_pool_end_strangers of pool.h. Blocks; before the loop
// runs.
#include "controllers/common/pool.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/trace.h"

enum { KILL_MS = 1000 }; // of the kernel, to end a process

static bool wait_for_end(int process, int64_t until_ms) {
    struct pollfd p = {.fd = process, .events = POLLIN};
    int64_t left = until_ms - td_clock_ms();
    return poll(&p, 1, left > 0 ? (int)left : 0) > 0;
}

// Asks for an end, waits for the process's, then insists.
static void end_one(const char *path, int64_t until_ms) {
    struct td_ipc_conn *conn = NULL;
    struct td_err err;
    enum td_rc rc = td_ipc_connect(path, &conn, &err);
    if (rc == TD_ECLOSED) {
        td_ipc_unlink(path, NULL); // left by one that was killed
    }
    if (rc != TD_OK) {
        return;
    }
    struct ucred peer = {0};
    socklen_t len = sizeof peer;
    getsockopt(td_ipc_fd(conn), SOL_SOCKET, SO_PEERCRED, &peer, &len);
    int process = peer.pid > 0 ? pidfd_open(peer.pid, 0) : -1;
    Tandem__Worker__Stop body = TANDEM__WORKER__STOP__INIT;
    td_frame frame = TANDEM__WORKER__FRAME__INIT;
    frame.body_case = TANDEM__WORKER__FRAME__BODY_STOP;
    frame.stop = &body;
    if (td_ipc_send(conn, &frame, NULL, 0, &err) != TD_OK) {
        td_trace_info("not asked to stop", "socket=%s cause=\"%s\"", path, err.msg);
    }
    if (process >= 0 && !wait_for_end(process, until_ms)) {
        td_trace_warn("worker killed", "socket=%s pid=%d", path, (int)peer.pid);
        (void)pidfd_send_signal(process, SIGKILL, NULL, 0);
        (void)wait_for_end(process, td_clock_ms() + KILL_MS);
    }
    if (process >= 0) {
        close(process);
    }
    td_ipc_conn_free(conn);
    td_ipc_unlink(path, NULL);
}

void td_pool_end_strangers(const char *dir, int64_t wait_ms) {
    DIR *d = opendir(dir);
    if (!d) {
        return;
    }
    int64_t until_ms = td_clock_ms() + wait_ms;
    for (struct dirent *e; (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        if (n > 5 && strcmp(e->d_name + n - 5, ".sock") == 0) {
            char *path = td_asprintf("%s/%s", dir, e->d_name);
            end_one(path, until_ms);
            td_free(path);
        }
    }
    closedir(d);
}

void td_pool_end_old(const char *jobs_dir, uint64_t keep, int64_t wait_ms) {
    DIR *d = opendir(jobs_dir);
    if (!d) {
        return;
    }
    for (struct dirent *e; (e = readdir(d));) {
        char *end = NULL;
        uint64_t job = strtoull(e->d_name, &end, 10);
        if (job && !*end && job != keep) {
            char *path = td_asprintf("%s/%s", jobs_dir, e->d_name);
            td_pool_end_strangers(path, wait_ms);
            (void)rmdir(path); // not empty: somebody's files
            td_free(path);
        }
    }
    closedir(d);
}
