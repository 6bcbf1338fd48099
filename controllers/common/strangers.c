// Ending workers that an earlier run left: td_pool_end_strangers of pool.h. Blocks; before the loop
// runs.
#include "controllers/common/pool.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/trace.h"

// Asks for an end, waits for the socket's, then insists.
static void end_one(const char *path, int64_t until_ms) {
    struct td_ipc_conn *conn = NULL;
    struct td_err err;
    if (td_ipc_connect(path, &conn, &err) != TD_OK) {
        unlink(path);
        return;
    }
    struct ucred peer = {0};
    socklen_t len = sizeof peer;
    getsockopt(td_ipc_fd(conn), SOL_SOCKET, SO_PEERCRED, &peer, &len);
    Tandem__Worker__Stop body = TANDEM__WORKER__STOP__INIT;
    td_frame frame = TANDEM__WORKER__FRAME__INIT;
    frame.body_case = TANDEM__WORKER__FRAME__BODY_STOP;
    frame.stop = &body;
    bool ended = td_ipc_send(conn, &frame, NULL, 0, &err) != TD_OK;
    while (!ended && td_clock_ms() < until_ms) {
        struct pollfd p = {.fd = td_ipc_fd(conn), .events = POLLIN};
        (void)poll(&p, 1, 50);
        td_frame *reply = NULL;
        int fds[TD_FRAME_FDS_MAX];
        ended = td_ipc_recv(conn, &reply, fds, &err) != TD_OK;
        td_frame_free(reply);
    }
    if (!ended && peer.pid > 0) {
        td_trace_warn("worker killed", "socket=%s pid=%d", path, (int)peer.pid);
        kill(peer.pid, SIGKILL);
    }
    td_ipc_conn_free(conn);
    unlink(path);
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
