// Threads of C11 by those of POSIX, for builds with ThreadSanitizer, which knows no others: it ends
// in a thread that librdkafka began by itself.
#include <pthread.h>
#include <stdint.h>
#include <threads.h>

#include "lib/base/mem.h"

struct start {
    thrd_start_t run;
    void *user;
};

static void *begin(void *user) {
    struct start start = *(struct start *)user;
    td_free(user);
    return (void *)(intptr_t)start.run(start.user);
}

int thrd_create(thrd_t *thread, thrd_start_t run, void *user) {
    struct start *start = td_alloc(sizeof *start);
    *start = (struct start){run, user};
    if (pthread_create(thread, NULL, begin, start) != 0) {
        td_free(start);
        return thrd_error;
    }
    return thrd_success;
}

int thrd_join(thrd_t thread, int *result) {
    void *value = NULL;
    if (pthread_join(thread, &value) != 0) {
        return thrd_error;
    }
    if (result) {
        *result = (int)(intptr_t)value;
    }
    return thrd_success;
}
