// Snapshots in memfds: what was written is mapped, what must not be trusted is refused.
#include "lib/ipc/snapshot.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "tests/unit/ipc/pair.h"

enum { ELEMENTS = 5000, HEADER_BYTES = 4096, ALL_SEALS = 15 };

static int written(uint64_t elements) {
    float *flat = td_alloc_array(elements + 1, sizeof *flat);
    for (uint64_t i = 0; i < elements; i++) {
        flat[i] = (float)i * 0.5f - 7;
    }
    struct td_snapshot s = {
        .lineage = 2, .step = 9, .digest = 0x1234567890abcdef, .elements = elements, .flat = flat};
    int fd = -1;
    struct td_err err;
    assert_int_equal(td_snapshot_write(&s, &fd, &err), TD_OK);
    td_free(flat);
    return fd;
}

static void test_snapshot_round_trip(void **state) {
    (void)state;
    static const uint64_t sizes[] = {0, 1, ELEMENTS};
    int before = count_fds();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int fd = written(sizes[i]);
        struct td_snapshot s = {0};
        struct td_err err;
        assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
        assert_int_equal(td_snapshot_map(fd, &s, &err), TD_OK);
        assert_true(s.lineage == 2 && s.step == 9 && s.digest == 0x1234567890abcdef);
        assert_int_equal(s.elements, sizes[i]);
        for (uint64_t k = 0; k < sizes[i]; k++) {
            assert_true(s.flat[k] == (float)k * 0.5f - 7);
        }
        assert_int_equal((uintptr_t)s.flat % 64, 0); // the backend loads from it directly
        close(fd);                                   // the mapping stays
        assert_true(!sizes[i] || s.flat[0] == -7);
        td_snapshot_unmap(&s);
        td_snapshot_unmap(&s);
    }
    assert_int_equal(count_fds(), before);
}

// Nobody who gets the descriptor can change what others have mapped.
static void test_snapshot_is_sealed(void **state) {
    (void)state;
    int fd = written(ELEMENTS);
    char byte = 0;
    assert_int_equal(fcntl(fd, F_GET_SEALS), ALL_SEALS);
    assert_int_equal(pwrite(fd, &byte, 1, HEADER_BYTES), -1);
    assert_int_equal(errno, EPERM);
    assert_int_equal(ftruncate(fd, 10), -1);
    assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    close(fd);
}

struct forgery {
    const char *name;
    size_t bytes; // of the file, 0: as written
    size_t flip;  // byte of the header to change, or beyond it: none
    int seals;
    const char *message;
};

static void test_snapshot_refuses(void **state) {
    (void)state;
    static const size_t whole = HEADER_BYTES + ELEMENTS * sizeof(float), none = SIZE_MAX;
    const struct forgery cases[] = {
        {"as it was", 0, none, ALL_SEALS, NULL},
        {"magic", 0, 0, ALL_SEALS, "header"},
        {"elements", 0, 32, ALL_SEALS, "header"},
        {"elements high", 0, 39, ALL_SEALS, "header"},
        {"too short for a header", HEADER_BYTES - 1, none, ALL_SEALS, "no header"},
        {"header only", HEADER_BYTES, none, ALL_SEALS, "header"},
        {"cut", whole - 4, none, ALL_SEALS, "header"},
        {"cut in a float", whole - 1, none, ALL_SEALS, "header"},
        {"longer", whole + 4, none, ALL_SEALS, "header"},
        {"may shrink", 0, none, ALL_SEALS & ~F_SEAL_SHRINK, "sealed"},
        {"may be written", 0, none, ALL_SEALS & ~F_SEAL_WRITE, "sealed"},
        {"not sealed", 0, none, 0, "sealed"},
    };
    int before = count_fds();
    int source = written(ELEMENTS);
    uint8_t *bytes = td_alloc(whole + 64);
    assert_int_equal(pread(source, bytes, whole, 0), whole);
    close(source);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct forgery *f = &cases[i];
        int fd = memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        size_t n = f->bytes ? f->bytes : whole;
        if (f->flip != none) {
            bytes[f->flip] ^= 0x40;
        }
        assert_int_equal(write(fd, bytes, n), n);
        if (f->flip != none) {
            bytes[f->flip] ^= 0x40;
        }
        assert_int_equal(fcntl(fd, F_ADD_SEALS, f->seals), 0);
        struct td_snapshot s = {0};
        struct td_err err = {0};
        enum td_rc rc = td_snapshot_map(fd, &s, &err);
        if (rc != (f->message ? TD_ECORRUPT : TD_OK) ||
            (f->message && (!strstr(err.msg, f->message) || s.map))) {
            fail_msg("%s: %d %s", f->name, (int)rc, err.msg);
        }
        td_snapshot_unmap(&s);
        close(fd);
    }
    td_free(bytes);
    assert_int_equal(count_fds(), before);
}

static void test_snapshot_of_no_memfd(void **state) {
    (void)state;
    struct td_snapshot s = {0};
    struct td_err err;
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    assert_int_not_equal(td_snapshot_map(pipes[0], &s, &err), TD_OK);
    close(pipes[0]);
    close(pipes[1]);
    assert_int_equal(td_snapshot_map(pipes[0], &s, &err), TD_EIO);
    assert_null(s.map);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_snapshot_round_trip),
        cmocka_unit_test(test_snapshot_is_sealed),
        cmocka_unit_test(test_snapshot_refuses),
        cmocka_unit_test(test_snapshot_of_no_memfd),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
