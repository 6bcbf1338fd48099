// The work queue: jobs run off the loop, their ends come back to it; limits; free drains.
#include "lib/io/workq.h"

#include <pthread.h>
#include <stdatomic.h>

#include "tests/unit/io/wait.h"

enum { JOBS = 40 };

struct task {
    struct board *board;
    int result;
};

struct board {
    pthread_t loop_thread;
    struct td_workq *workq;
    atomic_int ran; // run on the threads, read on the loop
    int done, order;
    bool refused;
    struct task tasks[JOBS];
};

static void run(void *user) {
    struct task *task = user;
    assert_false(pthread_equal(pthread_self(), task->board->loop_thread));
    task->result = atomic_fetch_add(&task->board->ran, 1) + 1;
}

static void done(void *user) {
    struct task *task = user;
    assert_true(pthread_equal(pthread_self(), task->board->loop_thread));
    assert_true(task->result > 0);
    task->board->done++;
    task->board->order += task->result == task->board->done;
}

static void submit_all(struct board *board) {
    for (int i = 0; i < JOBS; i++) {
        board->tasks[i] = (struct task){board, 0};
        assert_true(td_workq_submit(board->workq, run, done, &board->tasks[i]));
    }
}

static void test_workq_runs_jobs_and_tells_the_loop(void **state) {
    (void)state;
    struct td_loop *loop = new_loop();
    for (unsigned threads = 1; threads <= TD_WORKQ_THREADS_MAX; threads++) {
        struct board board = {.loop_thread = pthread_self()};
        assert_int_equal(td_workq_new(loop, "test", threads, JOBS, &board.workq, NULL), TD_OK);
        submit_all(&board);
        assert_false(td_workq_submit(board.workq, run, done, &board.tasks[0]));
        wait_until(loop, &board.done, JOBS);
        if (threads == 1) {
            assert_int_equal(board.order, JOBS);
        }
        submit_all(&board); // there is room again
        wait_until(loop, &board.done, 2 * JOBS);
        td_workq_free(board.workq);
    }
    td_loop_free(loop);
}

static void try_again(void *user) {
    struct task *task = user;
    task->board->refused = !td_workq_submit(task->board->workq, run, done, task);
    task->board->done++;
}

static void test_workq_free_drains(void **state) {
    (void)state;
    struct td_loop *loop = new_loop();
    struct board board = {.loop_thread = pthread_self()};
    assert_int_equal(td_workq_new(loop, "test", 2, JOBS + 2, &board.workq, NULL), TD_OK);
    submit_all(&board);
    struct task last = {&board, 0};
    assert_true(td_workq_submit(board.workq, run, try_again, &last));
    assert_true(td_workq_submit(board.workq, run, NULL, &last));
    td_workq_free(board.workq);
    assert_int_equal(atomic_load(&board.ran), JOBS + 2);
    assert_int_equal(board.done, JOBS + 1);
    assert_true(board.refused); // nothing new while it ends
    td_workq_free(NULL);
    td_loop_free(loop);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_workq_runs_jobs_and_tells_the_loop),
        cmocka_unit_test(test_workq_free_drains),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
