// The loop: order of deferred calls, timers, descriptors, signals, closing inside callbacks.
#include "lib/io/loop.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/io/wait.h"

struct trail {
    struct td_loop *loop;
    char text[64];
    int count;
    struct td_timer *timer, *other;
    struct td_watch *watch, *other_watch;
};

static void note(struct trail *trail, char c) {
    trail->text[trail->count++] = c;
}

static void defer_c(void *user) {
    note(user, 'c');
}

static void defer_a(void *user) {
    struct trail *trail = user;
    note(trail, 'a');
    td_loop_defer(trail->loop, defer_c, trail);
}

static void defer_b(void *user) {
    note(user, 'b');
}

static void test_loop_defers_in_order_and_to_a_later_turn(void **state) {
    (void)state;
    struct trail trail = {.loop = new_loop()};
    td_loop_defer(trail.loop, defer_a, &trail);
    td_loop_defer(trail.loop, defer_b, &trail);
    assert_int_equal(trail.count, 0);
    wait_until(trail.loop, &trail.count, 3);
    assert_string_equal(trail.text, "abc");
    td_loop_defer(trail.loop, defer_a, &trail); // dropped by the end
    td_loop_free(trail.loop);
}

static void timer_again(void *user) {
    struct trail *trail = user;
    note(trail, 't');
    if (trail->count < 3) {
        td_timer_start(trail->timer, 1);
    }
}

static void test_loop_timer_fires_once_per_start(void **state) {
    (void)state;
    struct trail trail = {.loop = new_loop()};
    trail.timer = td_timer_new(trail.loop, timer_again, &trail);
    struct td_timer *never = td_timer_new(trail.loop, timer_again, &trail);
    td_timer_start(never, 0);
    td_timer_stop(never);
    int64_t begin = td_loop_now_ms(trail.loop);
    td_timer_start(trail.timer, 100000);
    td_timer_start(trail.timer, 20); // afresh
    wait_until(trail.loop, &trail.count, 3);
    assert_true(td_loop_now_ms(trail.loop) - begin >= 20);
    assert_string_equal(trail.text, "ttt");
    td_timer_close(trail.timer);
    td_timer_close(never);
    td_timer_close(NULL);
    td_loop_free(trail.loop);
}

static void close_both(void *user) {
    struct trail *trail = user;
    note(trail, 'x');
    td_timer_close(trail->timer);
    td_timer_close(trail->other);
}

static void test_loop_timer_may_close_itself_and_one_that_is_due(void **state) {
    (void)state;
    struct trail trail = {.loop = new_loop()};
    trail.timer = td_timer_new(trail.loop, close_both, &trail);
    trail.other = td_timer_new(trail.loop, close_both, &trail);
    td_timer_start(trail.timer, 0);
    td_timer_start(trail.other, 0);
    wait_until(trail.loop, &trail.count, 1);
    assert_string_equal(trail.text, "x");
    td_loop_free(trail.loop);
}

static void on_pipe(void *user, int fd, unsigned events) {
    struct trail *trail = user;
    char c;
    if (events & TD_LOOP_READ) {
        assert_int_equal(read(fd, &c, 1), 1);
        note(trail, c);
    } else {
        assert_int_equal(events, TD_LOOP_WRITE);
        assert_int_equal(write(fd, "w", 1), 1);
        td_watch_set(trail->other_watch, 0);
    }
}

static void test_loop_watches_descriptors(void **state) {
    (void)state;
    struct trail trail = {.loop = new_loop()};
    int fds[2];
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    assert_int_equal(td_watch_fd(trail.loop, fds[0], TD_LOOP_READ, on_pipe, &trail, &trail.watch),
                     TD_OK);
    assert_int_equal(td_watch_fd(trail.loop, fds[1], 0, on_pipe, &trail, &trail.other_watch),
                     TD_OK);
    td_watch_set(trail.other_watch, TD_LOOP_WRITE);
    wait_until(trail.loop, &trail.count, 1);
    assert_string_equal(trail.text, "w");
    td_watch_set(trail.watch, 0); // paused: the byte waits
    assert_int_equal(write(fds[1], "r", 1), 1);
    td_loop_defer(trail.loop, defer_b, &trail);
    wait_until(trail.loop, &trail.count, 2);
    td_watch_set(trail.watch, TD_LOOP_READ);
    wait_until(trail.loop, &trail.count, 3);
    assert_string_equal(trail.text, "wbr");
    td_watch_close(trail.watch);
    td_watch_close(trail.other_watch);
    close(fds[0]);
    close(fds[1]);
    td_loop_free(trail.loop);
}

static void test_loop_refuses_a_plain_file(void **state) {
    (void)state;
    struct td_loop *loop = new_loop();
    struct td_watch *watch = NULL;
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    assert_int_equal(td_watch_fd(loop, fd, TD_LOOP_READ, on_pipe, NULL, &watch), TD_EIO);
    assert_null(watch);
    close(fd);
    td_loop_free(loop);
}

static void on_signal(void *user, int signum) {
    struct trail *trail = user;
    assert_int_equal(signum, SIGUSR1);
    note(trail, 's');
    td_watch_close(trail->watch);
}

static void test_loop_watches_signals(void **state) {
    (void)state;
    struct trail trail = {.loop = new_loop()};
    assert_int_equal(td_watch_signal(trail.loop, SIGUSR1, on_signal, &trail, &trail.watch), TD_OK);
    raise(SIGUSR1);
    wait_until(trail.loop, &trail.count, 1);
    assert_string_equal(trail.text, "s");
    td_loop_free(trail.loop);
}

static void test_loop_stop_before_run_ends_that_run(void **state) {
    (void)state;
    struct td_loop *loop = new_loop();
    td_loop_stop(loop);
    td_loop_run(loop);
    td_loop_free(loop);
    td_loop_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loop_defers_in_order_and_to_a_later_turn),
        cmocka_unit_test(test_loop_timer_fires_once_per_start),
        cmocka_unit_test(test_loop_timer_may_close_itself_and_one_that_is_due),
        cmocka_unit_test(test_loop_watches_descriptors),
        cmocka_unit_test(test_loop_refuses_a_plain_file),
        cmocka_unit_test(test_loop_watches_signals),
        cmocka_unit_test(test_loop_stop_before_run_ends_that_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
