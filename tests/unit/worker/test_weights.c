// Snapshots from worker to worker: the server and the pull against each other, and each against
// peers that break off, hang, or say what is not so.
#include "workers/weights.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/base/rng.h"
#include "lib/ipc/snapshot.h"
#include "tests/unit/ipc/pair.h"
#include "workers/comm/tcp.h"
#include "workers/weights_int.h"

enum { LONG_MS = 60000, SMALL = 1000, LARGE = 6 << 20, STEP = 7, DIGEST = 70 };

static char dir[] = "/tmp/td-weights-XXXXXX";

static int make_dir(void **state) {
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state) {
    (void)state;
    return rmdir(dir); // no socket is left
}

// Floats that depend on the digest, so that no two snapshots are equal.
static int snapshot_of(uint64_t step, uint64_t digest, uint64_t elements) {
    float *flat = td_alloc_array(elements, sizeof *flat);
    for (uint64_t i = 0; i < elements; i++) {
        flat[i] = (float)(uint32_t)td_mix64(digest * 1000003 + i);
    }
    struct td_snapshot s = {.step = step, .digest = digest, .elements = elements, .flat = flat};
    int fd = -1;
    assert_int_equal(td_snapshot_write(&s, &fd, NULL), TD_OK);
    td_free(flat);
    return fd;
}

static struct td_weights_server *new_server(const char *name) {
    char path[80];
    struct td_weights_server *s = NULL;
    struct td_err err = {0};
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (td_weights_server_new(path, NULL, &s, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
    return s;
}

static void serve(struct td_weights_server *s, uint64_t step, uint64_t digest, uint64_t elements) {
    int fd = snapshot_of(step, digest, elements);
    assert_int_equal(td_weights_serve(s, step, digest, fd, NULL), TD_OK);
    close(fd); // it keeps its own
}

// The same server as another machine sees it.
static char *remote_of(const char *address) {
    return td_asprintf("elsewhere unix:/nowhere/w.weights%s", strstr(address, " tcp:"));
}

static struct td_weights_want want_of(const char *const *sources, size_t count) {
    return (struct td_weights_want){.sources = sources,
                                    .count = count,
                                    .step = STEP,
                                    .digest = DIGEST,
                                    .deadline_ms = td_clock_ms() + LONG_MS};
}

// It is the whole snapshot of snapshot_of, sealed.
static void expect_snapshot(int fd, uint64_t digest, uint64_t elements) {
    struct td_snapshot s = {0};
    struct td_err err = {0};
    if (td_snapshot_map(fd, &s, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
    assert_true(s.digest == digest && s.elements == elements);
    for (uint64_t i = 0; i < elements; i++) {
        assert_true(s.flat[i] == (float)(uint32_t)td_mix64(digest * 1000003 + i));
    }
    td_snapshot_unmap(&s);
    close(fd);
}

static void expect_pulled(const struct td_weights_want *want, uint64_t elements) {
    int fd = -1;
    struct td_err err = {0};
    if (td_weights_pull(want, &fd, &err) != TD_OK) {
        fail_msg("%s", err.msg);
    }
    expect_snapshot(fd, want->digest, elements);
}

static void expect_failed(const struct td_weights_want *want, enum td_rc rc, const char *part) {
    int fd = -1;
    struct td_err err = {0};
    assert_int_equal(td_weights_pull(want, &fd, &err), rc);
    assert_int_equal(fd, -1);
    if (!strstr(err.msg, part)) {
        fail_msg("\"%s\" is not in: %s", part, err.msg);
    }
}

// ---- one that is no server: says what a test wants, and may pass bytes on from a real one ----

struct peer;
typedef void peer_fn(struct peer *p, int fd);

struct peer {
    int listener;
    char *tcp, *address; // owned
    peer_fn *answer;
    const char *behind; // HOST:PORT of a real server
    uint64_t cut;       // bytes that are passed on before the connection is broken
    struct td_weights_answer says;
    struct td_rng rng;
    atomic_bool stop;
    atomic_int count;
    uint64_t offsets[64]; // asked for
    pthread_t thread;
};

static bool read_whole(int fd, void *bytes, size_t n) {
    for (size_t have = 0; have < n;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, LONG_MS) != 1) {
            return false;
        }
        ssize_t got = recv(fd, (char *)bytes + have, n - have, 0);
        if (got <= 0) {
            return false;
        }
        have += (size_t)got;
    }
    return true;
}

static bool send_whole(int fd, const void *bytes, size_t n) {
    for (size_t sent = 0; sent < n;) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        if (poll(&p, 1, LONG_MS) != 1) {
            return false;
        }
        ssize_t put = send(fd, (const char *)bytes + sent, n - sent, MSG_NOSIGNAL);
        if (put <= 0) {
            return false;
        }
        sent += (size_t)put;
    }
    return true;
}

static void *peer_loop(void *arg) {
    struct peer *p = arg;
    while (!atomic_load(&p->stop)) {
        struct pollfd poll_it = {.fd = p->listener, .events = POLLIN};
        int fd = poll(&poll_it, 1, 20) == 1 ? accept(p->listener, NULL, NULL) : -1;
        if (fd >= 0) {
            struct td_weights_request r;
            if (read_whole(fd, &r, sizeof r)) {
                p->offsets[atomic_load(&p->count) % 64] = r.offset;
            }
            p->answer(p, fd);
            atomic_fetch_add(&p->count, 1);
            close(fd);
        }
    }
    return NULL;
}

static void peer_start(struct peer *p, peer_fn *answer) {
    *p = (struct peer){.answer = answer,
                       .says = {TD_WEIGHTS_MAGIC, TD_WEIGHTS_HERE, td_snapshot_bytes(SMALL), 0}};
    assert_int_equal(td_tcp_listen(NULL, 64, &p->listener, &p->tcp, NULL), TD_OK);
    p->address = td_asprintf("elsewhere unix:/no where/ tcp:x tcp:%s", p->tcp);
    if (answer) {
        assert_int_equal(pthread_create(&p->thread, NULL, peer_loop, p), 0);
    }
}

static void peer_end(struct peer *p) {
    if (p->answer) {
        atomic_store(&p->stop, true);
        pthread_join(p->thread, NULL);
    }
    close(p->listener);
    td_free(p->tcp);
    td_free(p->address);
}

static void answer_garbage(struct peer *p, int fd) {
    (void)p;
    char bytes[64];
    memset(bytes, 0xA5, sizeof bytes);
    send_whole(fd, bytes, sizeof bytes);
}

static void answer_half(struct peer *p, int fd) {
    send_whole(fd, &p->says, sizeof p->says / 2);
}

static void answer_says(struct peer *p, int fd) {
    send_whole(fd, &p->says, sizeof p->says);
}

// Passes cut bytes of a real server's answer on; 0: a random number of them.
static void answer_cut(struct peer *p, int fd) {
    struct td_weights_request r = {TD_WEIGHTS_MAGIC, TD_WEIGHTS_VERSION, STEP, DIGEST,
                                   p->offsets[atomic_load(&p->count) % 64]};
    char piece[1 << 16];
    int behind = -1;
    uint64_t left = p->cut ? p->cut : 1 + td_rng_next(&p->rng) % (8 << 20);
    assert_int_equal(td_tcp_connect(p->behind, td_clock_ms() + LONG_MS, &behind, NULL), TD_OK);
    bool goes_on = send_whole(behind, &r, sizeof r) && read_whole(behind, &p->says, sizeof p->says);
    goes_on = goes_on && send_whole(fd, &p->says, sizeof p->says);
    for (uint64_t rest = p->says.total - p->says.offset; goes_on && left && rest;) {
        uint64_t n = left < rest ? left : rest;
        n = n < sizeof piece ? n : sizeof piece;
        goes_on = read_whole(behind, piece, n) && send_whole(fd, piece, n);
        left -= n;
        rest -= n;
    }
    close(behind);
}

// ---- tests ----

static void test_weights_same_machine(void **state) {
    (void)state;
    int before = count_fds();
    struct td_weights_server *s = new_server("a b.weights"); // paths may have spaces
    const char *address = td_weights_server_address(s);
    int fd = snapshot_of(STEP, DIGEST, SMALL), got = -1;
    assert_int_equal(td_weights_serve(s, STEP, DIGEST, fd, NULL), TD_OK);
    struct td_weights_want want = want_of(&address, 1);
    want.bytes = td_snapshot_bytes(SMALL);
    assert_int_equal(td_weights_pull(&want, &got, NULL), TD_OK);
    struct stat a, b;
    assert_true(fstat(fd, &a) == 0 && fstat(got, &b) == 0 && a.st_ino == b.st_ino);
    td_weights_server_free(s); // those who have it keep it
    expect_snapshot(got, DIGEST, SMALL);
    close(fd);
    assert_int_equal(count_fds(), before);
}

static void test_weights_other_machine(void **state) {
    (void)state;
    int before = count_fds();
    struct td_weights_server *s = new_server("w.weights");
    char *address = remote_of(td_weights_server_address(s));
    struct td_weights_want want = want_of((const char *const *)&address, 1);
    serve(s, STEP, DIGEST, LARGE);
    expect_pulled(&want, LARGE);
    want.bytes = td_snapshot_bytes(LARGE);
    expect_pulled(&want, LARGE);
    want.bytes++;
    expect_failed(&want, TD_ECLOSED, "bytes, not");
    td_weights_server_free(s);
    td_free(address);
    assert_int_equal(count_fds(), before);
}

// By step and digest, both of the last two; nothing else.
static void test_weights_kept(void **state) {
    (void)state;
    struct td_weights_server *s = new_server("w.weights");
    char *remote = remote_of(td_weights_server_address(s));
    const char *sources[] = {td_weights_server_address(s), remote};
    struct td_weights_want want = want_of(sources, 2);
    expect_failed(&want, TD_ENOENT, "not held");
    for (uint64_t i = 0; i < 3; i++) {
        serve(s, STEP + i, DIGEST + i, SMALL);
    }
    serve(s, STEP + 1, DIGEST + 1, SMALL); // the newest now
    serve(s, STEP, DIGEST, SMALL);
    for (size_t i = 0; i < 2; i++) { // over UNIX, over TCP
        want = want_of(sources + i, 1);
        expect_pulled(&want, SMALL);
        want.step++;
        expect_failed(&want, TD_ENOENT, "not held");
        want.digest++;
        expect_pulled(&want, SMALL);
        want.step++;
        want.digest++;
        expect_failed(&want, TD_ENOENT, "not held");
    }
    td_weights_server_free(s);
    td_free(remote);
}

static void test_weights_goes_on_after_a_cut(void **state) {
    (void)state;
    struct td_weights_server *s = new_server("w.weights");
    char *remote = remote_of(td_weights_server_address(s));
    struct peer p;
    peer_start(&p, NULL);
    p.answer = answer_cut;
    p.behind = strstr(remote, " tcp:") + 5;
    p.cut = 3000000;
    assert_int_equal(pthread_create(&p.thread, NULL, peer_loop, &p), 0);
    serve(s, STEP, DIGEST, LARGE);
    const char *sources[] = {p.address, remote};
    struct td_weights_want want = want_of(sources, 2); // the other source has the rest
    expect_pulled(&want, LARGE);
    assert_int_equal(atomic_load(&p.count), 1);
    want = want_of(sources, 1); // the same one, each time from where it was
    expect_pulled(&want, LARGE);
    int count = atomic_load(&p.count);
    assert_true(count - 1 >= (int)(LARGE * sizeof(float) / p.cut));
    for (int i = 2; i < count; i++) {
        assert_true(p.offsets[i] > p.offsets[i - 1] && p.offsets[i] <= p.cut * (uint64_t)(i - 1));
    }
    peer_end(&p);
    td_weights_server_free(s);
    td_free(remote);
}

static void test_weights_random_cuts(void **state) {
    (void)state;
    uint64_t seed = (uint64_t)td_clock_ns();
    print_message("seed %llu\n", (unsigned long long)seed);
    struct td_weights_server *s = new_server("w.weights");
    char *remote = remote_of(td_weights_server_address(s));
    struct peer p[2];
    serve(s, STEP, DIGEST, LARGE);
    for (int i = 0; i < 2; i++) {
        peer_start(&p[i], NULL);
        p[i].answer = answer_cut;
        p[i].behind = strstr(remote, " tcp:") + 5;
        p[i].rng.state = seed + (uint64_t)i;
        assert_int_equal(pthread_create(&p[i].thread, NULL, peer_loop, &p[i]), 0);
    }
    const char *sources[] = {p[0].address, p[1].address};
    struct td_weights_want want = want_of(sources, 2);
    expect_pulled(&want, LARGE);
    peer_end(&p[0]);
    peer_end(&p[1]);
    td_weights_server_free(s);
    td_free(remote);
}

// Sources that lack it, are gone, hang, or are no workers: the next one is asked, and each is
// named.
static void test_weights_bad_sources(void **state) {
    (void)state;
    static peer_fn *const answers[] = {NULL, answer_garbage, answer_half, answer_says, answer_says};
    static const char *const parts[] = {"no answer in time", "not that of a worker", "without an",
                                        "bytes, not", "begin at 5"};
    enum { BAD = sizeof answers / sizeof *answers };
    int before = count_fds();
    struct td_weights_server *good = new_server("good.weights"), *lacks = new_server("no.weights");
    serve(good, STEP, DIGEST, SMALL);
    for (int i = 0; i < BAD; i++) {
        struct peer p;
        peer_start(&p, answers[i]);
        p.says.total -= i == 3;
        p.says.offset = i == 4 ? 5 : 0;
        const char *sources[] = {p.address, "what?", td_weights_server_address(lacks),
                                 td_weights_server_address(good)};
        struct td_weights_want want = want_of(sources, 3);
        want.bytes = td_snapshot_bytes(SMALL);
        expect_failed(&want, i == 0 ? TD_ETIMEOUT : TD_ENOENT, parts[i]);
        if (i > 0) {
            expect_failed(&want, TD_ENOENT, "'what?' is no address");
            want.count = 1;
            expect_failed(&want, TD_ECLOSED, p.tcp);
        }
        want.count = 4;
        want.deadline_ms = td_clock_ms() + LONG_MS;
        expect_pulled(&want, SMALL);
        peer_end(&p);
    }
    struct td_weights_want want = want_of(NULL, 0);
    expect_failed(&want, TD_ECLOSED, "no sources");
    char *gone[] = {td_strdup(td_weights_server_address(good)), NULL};
    gone[1] = remote_of(gone[0]);
    td_weights_server_free(good);
    td_weights_server_free(lacks);
    want = want_of((const char *const *)gone, 2);
    expect_failed(&want, TD_ECLOSED, "good.weights");
    td_free(gone[0]);
    td_free(gone[1]);
    assert_int_equal(count_fds(), before);
}

// One that hangs costs its silence, not the deadline; the deadline holds all the same.
static void test_weights_deadline(void **state) {
    (void)state;
    struct peer p;
    peer_start(&p, NULL);
    const char *address = p.address;
    struct td_weights_want want = want_of(&address, 1);
    want.deadline_ms = td_clock_ms() + 100;
    expect_failed(&want, TD_ETIMEOUT, "no answer in time");
    want.deadline_ms = td_clock_ms() - 1;
    expect_failed(&want, TD_ETIMEOUT, "got 0 bytes");
    peer_end(&p);
}

// A second source that says another size is not gone on with.
static void test_weights_sizes_differ(void **state) {
    (void)state;
    struct td_weights_server *s = new_server("w.weights");
    char *remote = remote_of(td_weights_server_address(s));
    struct peer cuts, lies;
    serve(s, STEP, DIGEST, LARGE);
    peer_start(&cuts, NULL);
    cuts.answer = answer_cut;
    cuts.behind = strstr(remote, " tcp:") + 5;
    cuts.cut = LARGE;
    assert_int_equal(pthread_create(&cuts.thread, NULL, peer_loop, &cuts), 0);
    peer_start(&lies, answer_says);
    lies.says.offset = LARGE;
    const char *sources[] = {cuts.address, lies.address};
    struct td_weights_want want = want_of(sources, 2);
    expect_pulled(&want, LARGE); // bit by bit, from the first
    assert_true(atomic_load(&lies.count) >= 3);
    peer_end(&cuts);
    peer_end(&lies);
    td_weights_server_free(s);
    td_free(remote);
}

static int raw_request(const char *remote, uint64_t step, uint64_t digest) {
    struct td_weights_request r = {TD_WEIGHTS_MAGIC, TD_WEIGHTS_VERSION, step, digest, 0};
    struct td_weights_answer a;
    int fd = -1;
    assert_int_equal(
        td_tcp_connect(strstr(remote, " tcp:") + 5, td_clock_ms() + LONG_MS, &fd, NULL), TD_OK);
    assert_true(send_whole(fd, &r, sizeof r) && read_whole(fd, &a, sizeof a));
    assert_int_equal(a.status, TD_WEIGHTS_HERE);
    return fd;
}

// What was promised is given, whatever is served meanwhile.
static void test_weights_replaced_while_pulled(void **state) {
    (void)state;
    struct td_weights_server *s = new_server("w.weights");
    char *remote = remote_of(td_weights_server_address(s));
    serve(s, STEP, DIGEST, LARGE);
    int fd = raw_request(remote, STEP, DIGEST);
    for (uint64_t i = 1; i <= 2 * TD_WEIGHTS_KEPT; i++) {
        serve(s, STEP + i, DIGEST + i, SMALL);
    }
    struct td_weights_want want = want_of((const char *const *)&remote, 1);
    expect_failed(&want, TD_ENOENT, "not held");
    uint64_t bytes = td_snapshot_bytes(LARGE);
    char *got = td_alloc(bytes), more;
    assert_true(read_whole(fd, got, bytes));
    assert_false(read_whole(fd, &more, 1));
    int original = snapshot_of(STEP, DIGEST, LARGE);
    struct td_snapshot map = {0};
    assert_int_equal(td_snapshot_map(original, &map, NULL), TD_OK);
    assert_memory_equal(got, map.map, bytes);
    td_snapshot_unmap(&map);
    close(original);
    close(fd);
    td_free(got);
    td_weights_server_free(s);
    td_free(remote);
}

// Garbage, silence and standing still end the connection; others are served meanwhile.
static void test_weights_bad_clients(void **state) {
    (void)state;
    struct td_weights_server *s = new_server("w.weights");
    const char *address = td_weights_server_address(s);
    const char *tcp = strstr(address, " tcp:") + 5;
    char *remote = remote_of(address), garbage[64];
    uint64_t elements = 16 << 20, taken = 0; // more than sockets hold
    static char piece[1 << 16];
    memset(garbage, 'x', sizeof garbage);
    serve(s, STEP, DIGEST, elements);
    int slow = raw_request(remote, STEP, DIGEST), silent[TD_WEIGHTS_CLIENTS_MAX], fd = -1;
    for (size_t n = 3; n <= sizeof garbage; n += sizeof garbage - 3) {
        assert_int_equal(td_tcp_connect(tcp, td_clock_ms() + LONG_MS, &fd, NULL), TD_OK);
        assert_true(send_whole(fd, garbage, n));
        assert_false(read_whole(fd, piece, 1));
        close(fd);
    }
    for (int i = 0; i < TD_WEIGHTS_CLIENTS_MAX; i++) { // no place is left
        assert_int_equal(td_tcp_connect(tcp, td_clock_ms() + LONG_MS, &silent[i], NULL), TD_OK);
    }
    struct td_weights_want want = want_of(&address, 1);
    expect_pulled(&want, elements); // once the first of them were cut off
    for (int i = 0; i < TD_WEIGHTS_CLIENTS_MAX; i++) {
        assert_false(read_whole(silent[i], piece, 1));
        close(silent[i]);
    }
    (void)poll(NULL, 0, TD_WEIGHTS_STALL_MS + 1000);
    while (read_whole(slow, piece, 1)) {
        ssize_t n = recv(slow, piece, sizeof piece, 0);
        taken += 1 + (n > 0 ? (uint64_t)n : 0);
    }
    assert_true(taken < td_snapshot_bytes(elements));
    close(slow);
    td_weights_server_free(s);
    td_free(remote);
}

enum { READERS = TD_WEIGHTS_CLIENTS_MAX + 16 };

struct reader {
    pthread_t thread;
    const char *const *source;
    int fd;
    enum td_rc rc;
    struct td_err err;
};

static void *reader_loop(void *arg) {
    struct reader *r = arg;
    struct td_weights_want want = want_of(r->source, 1);
    r->rc = td_weights_pull(&want, &r->fd, &r->err);
    return NULL;
}

// More than there are places, over both sockets, while versions come and go.
static void test_weights_many_clients(void **state) {
    (void)state;
    struct td_weights_server *s = new_server("w.weights");
    char *remote = remote_of(td_weights_server_address(s));
    const char *sources[] = {td_weights_server_address(s), remote};
    static struct reader readers[READERS];
    uint64_t elements = 1 << 18;
    serve(s, STEP, DIGEST, elements);
    for (int i = 0; i < READERS; i++) {
        readers[i] = (struct reader){.source = &sources[i % 4 > 0], .fd = -1};
        assert_int_equal(pthread_create(&readers[i].thread, NULL, reader_loop, &readers[i]), 0);
    }
    for (uint64_t i = 1; i <= 8; i++) {
        serve(s, STEP + i, DIGEST + i, SMALL);
        serve(s, STEP, DIGEST, elements);
    }
    for (int i = 0; i < READERS; i++) {
        pthread_join(readers[i].thread, NULL);
        if (readers[i].rc != TD_OK) {
            fail_msg("%s", readers[i].err.msg);
        }
        expect_snapshot(readers[i].fd, DIGEST, elements);
    }
    td_weights_server_free(s);
    td_free(remote);
}

static void test_weights_server_refuses(void **state) {
    (void)state;
    struct td_weights_server *s = NULL;
    struct td_err err;
    char path[80], longer[200];
    int before = count_fds();
    snprintf(path, sizeof path, "%s/w.weights", dir);
    snprintf(longer, sizeof longer, "%s/%0150d", dir, 1);
    assert_int_equal(td_weights_server_new("w.weights", NULL, &s, &err), TD_EINVAL);
    assert_int_equal(td_weights_server_new(longer, NULL, &s, &err), TD_ELIMIT);
    assert_int_equal(td_weights_server_new("/nowhere/at/all/w", NULL, &s, &err), TD_ENOENT);
    assert_int_equal(td_weights_server_new(path, "0.0.0.0", &s, &err), TD_EINVAL);
    assert_non_null(strstr(err.msg, "serving weights"));
    assert_int_equal(td_weights_server_new(path, "no.such.host.invalid", &s, &err), TD_EINVAL);
    assert_false(td_file_exists(path));
    assert_null(s);
    int dead = -1;
    assert_int_equal(td_ipc_listen(path, &dead, &err), TD_OK);
    close(dead);
    s = new_server("w.weights");
    assert_int_equal(td_weights_serve(s, 1, 1, -1, &err), TD_EIO);
    td_weights_server_free(s);
    td_weights_server_free(NULL);
    assert_int_equal(count_fds(), before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights_same_machine),
        cmocka_unit_test(test_weights_other_machine),
        cmocka_unit_test(test_weights_kept),
        cmocka_unit_test(test_weights_goes_on_after_a_cut),
        cmocka_unit_test(test_weights_random_cuts),
        cmocka_unit_test(test_weights_bad_sources),
        cmocka_unit_test(test_weights_deadline),
        cmocka_unit_test(test_weights_sizes_differ),
        cmocka_unit_test(test_weights_replaced_while_pulled),
        cmocka_unit_test(test_weights_bad_clients),
        cmocka_unit_test(test_weights_many_clients),
        cmocka_unit_test(test_weights_server_refuses),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
