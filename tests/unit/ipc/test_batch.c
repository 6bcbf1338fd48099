// Batches in memfds: what is written is mapped, and what must not be trusted is refused.
#include "lib/ipc/batch.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "tests/unit/engine/batch_of.h"

static void test_batch_round_trip(void **state) {
    (void)state;
    struct batch_of x;
    batch_of_fill(&x, 50, 4, 2, 3);
    struct td_batch *b = batch_of_map(&x);
    assert_true(b->rows == x.b.rows && b->tokens == x.b.tokens && b->updates == 8);
    size_t t = b->tokens, r = b->rows, u = b->updates;
    assert_memory_equal(b->row_start, x.row_start, (r + 1) * sizeof *b->row_start);
    assert_memory_equal(b->ids, x.ids, t * sizeof *b->ids);
    assert_memory_equal(b->loss_mask, x.loss_mask, t);
    assert_memory_equal(b->rollout_logp, x.rollout_logp, t * sizeof *b->rollout_logp);
    assert_memory_equal(b->advantage, x.advantage, r * sizeof *b->advantage);
    assert_memory_equal(b->mini, x.mini, 2 * u * sizeof *b->mini);
    assert_memory_equal(b->token_count, x.token_count, u * sizeof *b->token_count);
    assert_memory_equal(b->sequence_count, x.sequence_count, u * sizeof *b->sequence_count);
    td_batch_free(b);
    td_batch_free(NULL);
}

// A rank may have no rows of a round; the updates still happen.
static void test_batch_without_rows(void **state) {
    (void)state;
    uint32_t start = 0, mini[2] = {0, 0};
    double count = 7;
    struct td_batch empty = {.updates = 1,
                             .row_start = &start,
                             .mini = mini,
                             .token_count = &count,
                             .sequence_count = &count};
    struct td_batch *b = NULL;
    int fd = -1;
    assert_int_equal(td_batch_write(&empty, &fd, NULL), TD_OK);
    assert_int_equal(td_batch_map(fd, &b, NULL), TD_OK);
    assert_true(b->rows == 0 && b->updates == 1 && b->token_count[0] == 7);
    td_batch_free(b);
    close(fd);
}

static void bad_order(struct batch_of *x) {
    x->row_start[3] = x->row_start[4];
}
static void bad_last(struct batch_of *x) {
    x->row_start[BATCH_ROWS]--;
}
static void bad_beyond(struct batch_of *x) {
    x->row_start[BATCH_ROWS] = 4000000000u;
}
static void bad_first(struct batch_of *x) {
    x->row_start[0] = 1;
}
static void bad_mask(struct batch_of *x) {
    x->loss_mask[x->row_start[2] + 2] = 2;
}
static void bad_prompt(struct batch_of *x) {
    x->loss_mask[x->row_start[2]] = 1;
}
static void bad_logp(struct batch_of *x) {
    x->rollout_logp[5] = NAN;
}
static void bad_advantage(struct batch_of *x) {
    x->advantage[6] = INFINITY;
}
static void bad_mini(struct batch_of *x) {
    x->mini[0] = 3, x->mini[1] = 2;
}
static void bad_mini_end(struct batch_of *x) {
    x->mini[3] = BATCH_ROWS + 1;
}
static void bad_tokens(struct batch_of *x) {
    x->token_count[1] = -1;
}
static void bad_sequences(struct batch_of *x) {
    x->sequence_count[0] = NAN;
}

static void test_batch_refuses_wrong_numbers(void **state) {
    (void)state;
    static const struct {
        void (*spoil)(struct batch_of *x);
        const char *part;
    } rows[] = {{bad_order, "row 3"},
                {bad_last, "rows hold"},
                {bad_beyond, "row 7"},
                {bad_first, "rows hold"},
                {bad_mask, "mask 2"},
                {bad_prompt, "row 2: its first"},
                {bad_logp, "token 5"},
                {bad_advantage, "row 6: adv"},
                {bad_mini, "update 1: rows [3, 2)"},
                {bad_mini_end, "update 2"},
                {bad_tokens, "update 2: -1"},
                {bad_sequences, "update 1"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct batch_of x;
        struct td_batch *b = NULL;
        struct td_err err = {0};
        int fd = -1;
        batch_of_fill(&x, 50, 2, 1, 3);
        rows[i].spoil(&x);
        assert_int_equal(td_batch_write(&x.b, &fd, NULL), TD_OK);
        enum td_rc rc = td_batch_map(fd, &b, &err);
        if (rc != TD_ECORRUPT || !strstr(err.msg, rows[i].part)) {
            fail_msg("row %zu: code %d, message \"%s\"", i, rc, err.msg);
        }
        assert_null(b);
        close(fd);
    }
}

// Bytes of a good batch in a memfd of our own.
static int forge(const void *bytes, size_t n, bool seal) {
    int fd = memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(td_write_all(fd, bytes, n, NULL), TD_OK);
    if (seal) {
        assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE), 0);
    }
    return fd;
}

static void expect_refused(int fd, const char *part) {
    struct td_batch *b = NULL;
    struct td_err err = {0};
    enum td_rc rc = td_batch_map(fd, &b, &err);
    if (rc != TD_ECORRUPT || !strstr(err.msg, part)) {
        fail_msg("code %d, message \"%s\"", rc, err.msg);
    }
    close(fd);
}

static void test_batch_refuses_foreign_memory(void **state) {
    (void)state;
    struct batch_of x;
    batch_of_fill(&x, 50, 2, 1, 3);
    struct td_batch *b = batch_of_map(&x);
    size_t n = b->map_bytes;
    uint8_t *copy = td_memdup(b->map, n);
    td_batch_free(b);
    expect_refused(forge(copy, n, false), "no sealed memfd");
    expect_refused(forge(copy, n - 1, true), "need");
    expect_refused(forge(copy, 3, true), "too few");
    expect_refused(forge(copy, 0, true), "too few");
    for (int at = 8; at <= 16; at += 4) { // rows, tokens, updates: no count survives a change
        for (int bit = 0; bit < 32; bit++) {
            copy[at + bit / 8] ^= (uint8_t)(1 << bit % 8);
            expect_refused(forge(copy, n, true), "batch:");
            copy[at + bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
    }
    copy[0] ^= 1;
    expect_refused(forge(copy, n, true), "not a batch");
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    expect_refused(pipes[0], "no sealed memfd");
    close(pipes[1]);
    td_free(copy);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch_round_trip),
        cmocka_unit_test(test_batch_without_rows),
        cmocka_unit_test(test_batch_refuses_wrong_numbers),
        cmocka_unit_test(test_batch_refuses_foreign_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
