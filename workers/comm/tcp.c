// TCP between workers: see tcp.h. Any thread.
#include "workers/comm/tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"

enum { HOST_MAX = 256 };

static bool is_any(const struct sockaddr *a) {
    if (a->sa_family == AF_INET) {
        return ((const struct sockaddr_in *)a)->sin_addr.s_addr == htonl(INADDR_ANY);
    }
    return a->sa_family == AF_INET6 &&
           IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

static enum td_rc resolve(const char *host, const char *port, struct addrinfo **out,
                          struct td_err *err) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    hints.ai_flags = AI_NUMERICSERV;
    int bad = getaddrinfo(host, port, &hints, out);
    if (bad != 0) {
        return td_fail(err, TD_EINVAL, "host '%s': %s", host, gai_strerror(bad));
    }
    return TD_OK;
}

static enum td_rc listen_on(int fd, const struct addrinfo *ai, int backlog, struct td_err *err) {
    if (bind(fd, ai->ai_addr, ai->ai_addrlen) != 0 || listen(fd, backlog) != 0) {
        return td_fail_errno(err, errno, "bind");
    }
    return TD_OK;
}

static enum td_rc port_of(int fd, int *port, struct td_err *err) {
    struct sockaddr_storage ss;
    socklen_t len = sizeof ss;
    if (getsockname(fd, (struct sockaddr *)&ss, &len) != 0) {
        return td_fail_errno(err, errno, "getsockname");
    }
    *port = ntohs(ss.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&ss)->sin6_port
                                           : ((struct sockaddr_in *)&ss)->sin_port);
    return TD_OK;
}

enum td_rc td_tcp_listen(const char *host, int backlog, int *fd, char **address,
                         struct td_err *err) {
    host = host ? host : "127.0.0.1";
    struct addrinfo *ai = NULL;
    int s = -1, port = 0;
    enum td_rc rc = resolve(host, "0", &ai, err);
    if (rc != TD_OK) {
        return rc;
    }
    if (is_any(ai->ai_addr)) {
        rc = td_fail(err, TD_EINVAL, "host '%s': name the one address that the peers reach", host);
        goto out;
    }
    s = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s < 0) {
        rc = td_fail_errno(err, errno, "socket");
        goto out;
    }
    if ((rc = listen_on(s, ai, backlog, err)) != TD_OK || (rc = port_of(s, &port, err)) != TD_OK) {
        goto out;
    }
    *fd = s;
    s = -1;
    *address = td_asprintf(strchr(host, ':') ? "[%s]:%d" : "%s:%d", host, port);
out:
    if (s >= 0) {
        close(s);
    }
    freeaddrinfo(ai);
    return rc;
}

// "host:port" or "[host]:port" into its parts.
static enum td_rc split_address(const char *address, char host[HOST_MAX], const char **port,
                                struct td_err *err) {
    const char *colon = strrchr(address, ':');
    size_t n = colon ? (size_t)(colon - address) : 0;
    const char *from = address;
    if (n >= 2 && address[0] == '[' && address[n - 1] == ']') {
        from++;
        n -= 2;
    }
    if (n == 0 || n >= HOST_MAX || colon[1] == '\0') {
        return td_fail(err, TD_EINVAL, "address '%s' is not host:port", address);
    }
    memcpy(host, from, n);
    host[n] = '\0';
    *port = colon + 1;
    return TD_OK;
}

int td_tcp_wait_ms(int64_t deadline_ms) {
    int64_t left = deadline_ms - td_clock_ms();
    return left < 0 ? 0 : left > 60000 ? 60000 : (int)left;
}

static enum td_rc finish_connect(int fd, int64_t deadline_ms, struct td_err *err) {
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    int got = 0;
    do {
        got = poll(&p, 1, td_tcp_wait_ms(deadline_ms));
    } while ((got < 0 && errno == EINTR) || (got == 0 && td_clock_ms() < deadline_ms));
    int bad = 0;
    socklen_t len = sizeof bad;
    if (got == 0) {
        bad = ETIMEDOUT;
    } else if (got < 0 || getsockopt(fd, SOL_SOCKET, SO_ERROR, &bad, &len) != 0) {
        bad = errno;
    }
    if (bad == ECONNREFUSED) {
        return td_fail(err, TD_ECLOSED, "nobody listens there: the peer is gone");
    }
    return bad == 0 ? TD_OK : td_fail_errno(err, bad, "connect");
}

void td_tcp_no_delay(int fd) {
    int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); // only latency depends on it
}

enum td_rc td_tcp_connect(const char *address, int64_t deadline_ms, int *fd, struct td_err *err) {
    char host[HOST_MAX];
    const char *port = NULL;
    struct addrinfo *ai = NULL;
    enum td_rc rc = split_address(address, host, &port, err);
    if (rc != TD_OK || (rc = resolve(host, port, &ai, err)) != TD_OK) {
        return rc;
    }
    int s = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s < 0) {
        rc = td_fail_errno(err, errno, "socket");
        goto out;
    }
    td_tcp_no_delay(s);
    if (connect(s, ai->ai_addr, ai->ai_addrlen) != 0 && errno != EINPROGRESS) {
        rc = errno == ECONNREFUSED
                 ? td_fail(err, TD_ECLOSED, "nobody listens there: the peer is gone")
                 : td_fail_errno(err, errno, "connect");
        goto out;
    }
    rc = finish_connect(s, deadline_ms, err);
out:
    freeaddrinfo(ai);
    if (rc == TD_OK) {
        *fd = s;
    } else if (s >= 0) {
        close(s);
    }
    return rc;
}
