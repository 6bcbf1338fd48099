// Progress lines: what is printed, when, on a terminal and elsewhere.
#include "cli/progress.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/buf.h"
#include "tests/unit/cmocka_all.h"

static int saved_out = -1, capture_fd = -1;

// Standard output goes to fd until release.
static void capture(int fd) {
    fflush(stdout);
    saved_out = dup(STDOUT_FILENO);
    capture_fd = fd;
    assert_int_equal(dup2(fd, STDOUT_FILENO), STDOUT_FILENO);
}

static void release(void) {
    fflush(stdout);
    assert_int_equal(dup2(saved_out, STDOUT_FILENO), STDOUT_FILENO);
    close(saved_out);
}

static int file_fd(void) {
    char name[] = "/tmp/td-progress-XXXXXX";
    int fd = mkstemp(name);
    assert_true(fd >= 0);
    unlink(name);
    return fd;
}

static void read_back(int fd, struct td_buf *out) {
    td_buf_clear(out);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    for (ssize_t n = 1; n > 0;) {
        n = read(fd, td_buf_room(out, 4096), 4096);
        out->len += n > 0 ? (size_t)n : 0;
    }
    (void)td_buf_room(out, 0);
    out->data[out->len] = 0;
}

#define EXPECT(text)                                                                               \
    do {                                                                                           \
        struct td_buf got = {0};                                                                   \
        release();                                                                                 \
        read_back(fd, &got);                                                                       \
        assert_string_equal(td_buf_str(&got), text);                                               \
        td_buf_fini(&got);                                                                         \
        close(fd);                                                                                 \
    } while (0)

static void test_progress_lines(void **state) {
    (void)state;
    int fd = file_fd();
    capture(fd);
    struct td_progress *p = td_progress_new(10, 2, 1000);
    // Tokens of steps that were done before do not count for the speed.
    td_progress_step(p, 2, "{\"train/loss\": 3, \"perf/total_num_tokens\": 900}", 2000);
    td_progress_step(p, 3, "{\"train/loss\": 2.5, \"perf/total_num_tokens\": 500}", 3000);
    td_progress_step(p, 4, "{\"train/loss\": 2}", 3500); // too soon after the last line
    td_progress_step(p, 6, "{\"train/loss\": 1, \"perf/total_num_tokens\": 500}", 5000);
    td_progress_step(p, 10, "{\"train/loss\": 0.5}", 5100); // the last one always
    td_progress_end(p);
    td_progress_free(p);
    EXPECT("step 2/10  loss 3.0000  0 tokens/s\n"
           "step 3/10  loss 2.5000  250 tokens/s  ETA 14 s\n"
           "step 6/10  loss 1.0000  250 tokens/s  ETA 4 s\n"
           "step 10/10  loss 0.5000  244 tokens/s\n");
}

// Of a GRPO job: reward, KL, and the accuracy of the last validation until the next.
static void test_progress_grpo(void **state) {
    (void)state;
    int fd = file_fd();
    capture(fd);
    struct td_progress *p = td_progress_new(4, 0, 1000);
    td_progress_step(p, 0, "{\"val-core/sum/reward/mean@1\": 0.125}", 1000);
    td_progress_step(p, 1, "{\"critic/score/mean\": 0.5, \"actor/ppo_kl\": 0.01}", 2500);
    td_progress_step(p, 2,
                     "{\"critic/score/mean\": 0.75, \"actor/ppo_kl\": 9, \"actor/kl_loss\": 0.02, "
                     "\"val-core/sum/reward/mean@1\": 0.5}",
                     4000);
    td_progress_step(p, 3, "{\"critic/score/mean\": null}", 6000); // no number
    td_progress_step(p, 4, "not JSON", 8000);
    td_progress_free(p);
    EXPECT("step 0/4  accuracy 0.125\n"
           "step 1/4  reward 0.500  accuracy 0.125  KL 0.0100  0 tokens/s  ETA 4 s\n"
           "step 2/4  reward 0.750  accuracy 0.500  KL 0.0200  0 tokens/s  ETA 3 s\n"
           "step 3/4  accuracy 0.500  0 tokens/s  ETA 2 s\n"
           "step 4/4  accuracy 0.500  0 tokens/s\n");
}

// A stall is told after 5 seconds and then every 10, with what is waited for and since when.
static void test_progress_waits(void **state) {
    (void)state;
    int fd = file_fd();
    capture(fd);
    struct td_progress *p = td_progress_new(4, 1, 1000);
    td_progress_waits(p, "too early", 1000, 5900);
    td_progress_waits(p, "worker 1 to come up", 1500, 6000);
    td_progress_waits(p, "worker 1 to come up", 1500, 15900);
    td_progress_waits(p, "rank 0 to train", 15000, 16000);
    td_progress_step(p, 2, "{}", 17000);
    td_progress_waits(p, "too early again", 17000, 21000);
    td_progress_waits(p, "units", 17000, 22500);
    td_progress_free(p);
    EXPECT("round 2 waits for 4.5 s: worker 1 to come up\n"
           "round 2 waits for 1.0 s: rank 0 to train\n"
           "step 2/4  0 tokens/s  ETA 32 s\n"
           "round 3 waits for 5.5 s: units\n");
}

// On a terminal one line is rewritten, and ended before anything else is printed.
static void test_progress_terminal(void **state) {
    (void)state;
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    int terminal = open(ptsname(master), O_RDWR | O_NOCTTY);
    assert_true(terminal >= 0);
    capture(terminal);
    struct td_progress *p = td_progress_new(9, 0, 1000);
    td_progress_step(p, 1, "{}", 1010);
    td_progress_step(p, 2, "{}", 1020);
    td_progress_waits(p, "units", 1020, 7000);
    td_progress_end(p); // nothing is open
    td_progress_step(p, 3, "{}", 7010);
    td_progress_end(p);
    td_progress_free(p);
    release();
    // What was written comes in pieces; after the last of them, and a closed terminal, an error.
    close(terminal);
    char got[1024] = {0};
    size_t len = 0;
    for (ssize_t n = 1; n > 0; len += n > 0 ? (size_t)n : 0) {
        n = read(master, got + len, sizeof got - 1 - len);
    }
    const char *at = got;
    static const char *const parts[] = {"\r\033[Kstep 1/9",
                                        "\r\033[Kstep 2/9",
                                        "\r\n",
                                        "round 3 waits for 6.0 s: units\r\n",
                                        "\r\033[Kstep 3/9",
                                        "\r\n"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        at = strstr(at, parts[i]);
        if (!at) {
            fail_msg("no '%s' in '%s'", parts[i], got);
        }
        at += strlen(parts[i]);
    }
    assert_int_equal(*at, 0);
    close(master);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_progress_lines),
        cmocka_unit_test(test_progress_grpo),
        cmocka_unit_test(test_progress_waits),
        cmocka_unit_test(test_progress_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
