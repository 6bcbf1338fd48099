// Messages to a loop: see mailbox.h. The mutex guards list, count and nothing else.
#include "lib/io/mailbox.h"

#include <errno.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "lib/base/check.h"
#include "lib/base/mem.h"

enum { BUDGET = 64 }; // messages per turn, so that a flood does not keep descriptors waiting

struct message {
    struct message *next;
    td_loop_fn *fn;
    void *user;
};

struct td_mailbox {
    struct td_loop *loop;
    struct td_watch *watch;
    int fd;
    size_t max;
    pthread_mutex_t mutex;
    struct message *head, **tail; // guarded
    size_t count;                 // guarded
    bool draining, freed;         // loop thread
};

static void wake(int fd) {
    uint64_t one = 1;
    ssize_t n = write(fd, &one, sizeof one);
    td_assert(n == sizeof one || errno == EAGAIN); // EAGAIN: it is signalled already
}

static struct message *take(struct td_mailbox *mailbox) {
    pthread_mutex_lock(&mailbox->mutex);
    struct message *m = mailbox->head;
    if (m) {
        mailbox->head = m->next;
        if (!m->next) {
            mailbox->tail = &mailbox->head;
        }
        mailbox->count--;
    }
    pthread_mutex_unlock(&mailbox->mutex);
    return m;
}

// Whether there was one.
static bool handle_one(struct td_mailbox *mailbox) {
    struct message *m = take(mailbox);
    if (!m) {
        return false;
    }
    m->fn(m->user);
    td_free(m);
    return true;
}

static void destroy(struct td_mailbox *mailbox) {
    pthread_mutex_destroy(&mailbox->mutex);
    close(mailbox->fd);
    td_free(mailbox);
}

static void on_wake(void *user, int fd, unsigned events) {
    (void)events;
    struct td_mailbox *mailbox = user;
    uint64_t count;
    if (read(fd, &count, sizeof count) < 0) {
        td_assert_op(errno, ==, EAGAIN);
        return;
    }
    bool more = true;
    mailbox->draining = true;
    for (int i = 0; more && i < BUDGET && !mailbox->freed; i++) {
        more = handle_one(mailbox);
    }
    mailbox->draining = false;
    if (mailbox->freed) {
        destroy(mailbox);
    } else if (more) {
        wake(fd);
    }
}

enum td_rc td_mailbox_new(struct td_loop *loop, size_t max, struct td_mailbox **out,
                          struct td_err *err) {
    td_assert_op(max, >=, 1);
    struct td_mailbox *mailbox = td_alloc(sizeof *mailbox);
    mailbox->loop = loop;
    mailbox->max = max;
    mailbox->tail = &mailbox->head;
    mailbox->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (mailbox->fd < 0) {
        int errnum = errno;
        td_free(mailbox);
        return td_fail_errno(err, errnum, "cannot make a mailbox");
    }
    pthread_mutex_init(&mailbox->mutex, NULL);
    if (td_watch_fd(loop, mailbox->fd, TD_LOOP_READ, on_wake, mailbox, &mailbox->watch) != TD_OK) {
        destroy(mailbox);
        return td_fail(err, TD_EIO, "cannot watch a mailbox");
    }
    *out = mailbox;
    return TD_OK;
}

void td_mailbox_free(struct td_mailbox *mailbox) {
    if (!mailbox) {
        return;
    }
    td_loop_assert(mailbox->loop);
    td_watch_close(mailbox->watch);
    while (handle_one(mailbox)) {
    }
    mailbox->freed = true;
    if (!mailbox->draining) {
        destroy(mailbox);
    }
}

bool td_mailbox_post(struct td_mailbox *mailbox, td_loop_fn *fn, void *user) {
    struct message *m = td_alloc(sizeof *m);
    m->fn = fn;
    m->user = user;
    pthread_mutex_lock(&mailbox->mutex);
    bool fits = mailbox->count < mailbox->max;
    bool first = mailbox->count == 0;
    if (fits) {
        *mailbox->tail = m;
        mailbox->tail = &m->next;
        mailbox->count++;
        if (first) {
            // Within the mutex: the loop may free the mailbox as soon as it has the last message.
            wake(mailbox->fd);
        }
    }
    pthread_mutex_unlock(&mailbox->mutex);
    if (!fits) {
        td_free(m);
    }
    return fits;
}
