// The mailbox: several threads post, the loop handles all of it once and in each thread's order;
// full is told; freeing handles the rest.
#include "lib/io/mailbox.h"

#include <pthread.h>
#include <sched.h>

#include "lib/base/mem.h"
#include "tests/unit/io/wait.h"

enum { THREADS = 3, POSTS = 2000, ROOM = 50 };

struct poster {
    struct td_mailbox *mailbox;
    pthread_t thread;
    int next, full; // next: loop thread; full: the poster's
    int *total;
    struct letter *letters;
};

struct letter {
    struct poster *poster;
    int number;
};

static void handle(void *user) {
    struct letter *letter = user;
    assert_int_equal(letter->number, letter->poster->next);
    letter->poster->next++;
    ++*letter->poster->total;
}

static void *post_all(void *user) {
    struct poster *poster = user;
    for (int i = 0; i < POSTS; i++) {
        poster->letters[i] = (struct letter){poster, i};
        while (!td_mailbox_post(poster->mailbox, handle, &poster->letters[i])) {
            poster->full++;
            sched_yield();
        }
    }
    return NULL;
}

static void test_mailbox_keeps_the_order_of_each_thread(void **state) {
    (void)state;
    struct td_loop *loop = new_loop();
    struct td_mailbox *mailbox = NULL;
    assert_int_equal(td_mailbox_new(loop, ROOM, &mailbox, NULL), TD_OK);
    int total = 0;
    struct poster posters[THREADS] = {0};
    for (int i = 0; i < THREADS; i++) {
        posters[i].mailbox = mailbox;
        posters[i].total = &total;
        posters[i].letters = td_alloc_array(POSTS, sizeof *posters[i].letters);
        assert_int_equal(pthread_create(&posters[i].thread, NULL, post_all, &posters[i]), 0);
    }
    wait_until(loop, &total, THREADS * POSTS);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(posters[i].thread, NULL);
        assert_int_equal(posters[i].next, POSTS);
        td_free(posters[i].letters);
    }
    td_mailbox_free(mailbox);
    td_loop_free(loop);
}

struct box {
    struct td_mailbox *mailbox;
    int count;
};

static void count_one(void *user) {
    ((struct box *)user)->count++;
}

static void post_two(void *user) {
    struct box *box = user;
    box->count++;
    assert_true(td_mailbox_post(box->mailbox, count_one, box));
    assert_true(td_mailbox_post(box->mailbox, count_one, box));
}

static void free_it(void *user) {
    struct box *box = user;
    td_mailbox_free(box->mailbox);
    box->count++;
}

static void test_mailbox_tells_when_it_is_full(void **state) {
    (void)state;
    struct td_loop *loop = new_loop();
    struct box box = {0};
    assert_int_equal(td_mailbox_new(loop, 2, &box.mailbox, NULL), TD_OK);
    assert_true(td_mailbox_post(box.mailbox, count_one, &box));
    assert_true(td_mailbox_post(box.mailbox, count_one, &box));
    assert_false(td_mailbox_post(box.mailbox, count_one, &box));
    wait_until(loop, &box.count, 2);
    assert_true(td_mailbox_post(box.mailbox, post_two, &box));
    wait_until(loop, &box.count, 5);
    td_mailbox_free(box.mailbox);
    td_mailbox_free(NULL);
    td_loop_free(loop);
}

static void test_mailbox_free_handles_what_waits(void **state) {
    (void)state;
    struct td_loop *loop = new_loop();
    struct box box = {0};
    assert_int_equal(td_mailbox_new(loop, 3, &box.mailbox, NULL), TD_OK);
    assert_true(td_mailbox_post(box.mailbox, post_two, &box));
    td_mailbox_free(box.mailbox);
    assert_int_equal(box.count, 3);
    assert_int_equal(td_mailbox_new(loop, 3, &box.mailbox, NULL), TD_OK);
    assert_true(td_mailbox_post(box.mailbox, free_it, &box));
    assert_true(td_mailbox_post(box.mailbox, count_one, &box));
    wait_until(loop, &box.count, 5);
    td_loop_free(loop);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mailbox_keeps_the_order_of_each_thread),
        cmocka_unit_test(test_mailbox_tells_when_it_is_full),
        cmocka_unit_test(test_mailbox_free_handles_what_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
