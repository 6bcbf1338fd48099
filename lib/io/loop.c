// The event loop: see loop.h. libevent without its locks: only the owner thread calls it.
#include "lib/io/loop.h"

#include <event2/event.h>
#include <pthread.h>
#include <signal.h>

#include "lib/base/check.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/trace.h"
#include "lib/io/loop_int.h"

struct deferred {
    struct deferred *next;
    td_loop_fn *fn;
    void *user;
};

struct td_loop {
    struct event_base *base;
    struct event *turn; // a timer of 0 ms: fires in the next turn, after the descriptors
    struct deferred *head, **tail;
    pthread_t owner;
    size_t handles;
    bool stopped;
};

struct td_watch {
    struct td_loop *loop;
    struct event *event;
    td_watch_fn *on_fd;
    td_signal_fn *on_signal;
    void *user;
    int fd;
};

struct td_timer {
    struct td_loop *loop;
    struct event *event;
    td_loop_fn *fn;
    void *user;
};

void td_loop_assert(const struct td_loop *loop) {
    td_assert(pthread_equal(loop->owner, pthread_self()));
}

// Only the calls that waited when the turn began: what they defer comes in a later turn, so that
// descriptors get theirs.
static void run_deferred(evutil_socket_t fd, short what, void *user) {
    (void)fd, (void)what;
    struct td_loop *loop = user;
    struct deferred *d = loop->head;
    loop->head = NULL;
    loop->tail = &loop->head;
    while (d) {
        struct deferred *next = d->next;
        d->fn(d->user);
        td_free(d);
        d = next;
    }
}

static void on_libevent_line(int severity, const char *text) {
    td_trace(severity >= EVENT_LOG_WARN ? TD_TRACE_WARN : TD_TRACE_DEBUG, "libevent", "text=\"%s\"",
             text);
}

enum td_rc td_loop_new(struct td_loop **out, struct td_err *err) {
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    event_set_log_callback(on_libevent_line);
    struct td_loop *loop = td_alloc(sizeof *loop);
    struct event_config *config = event_config_new();
    if (config) {
        event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK);
        event_config_set_flag(config, EVENT_BASE_FLAG_PRECISE_TIMER);
        loop->base = event_base_new_with_config(config);
        event_config_free(config);
    }
    loop->turn = loop->base ? event_new(loop->base, -1, 0, run_deferred, loop) : NULL;
    if (!loop->turn) {
        if (loop->base) {
            event_base_free(loop->base);
        }
        td_free(loop);
        return td_fail(err, TD_EIO, "cannot make an event loop (descriptor limit?)");
    }
    loop->tail = &loop->head;
    loop->owner = pthread_self();
    *out = loop;
    return TD_OK;
}

void td_loop_free(struct td_loop *loop) {
    if (!loop) {
        return;
    }
    td_loop_assert(loop);
    td_assert_op(loop->handles, ==, 0);
    while (loop->head) {
        struct deferred *next = loop->head->next;
        td_free(loop->head);
        loop->head = next;
    }
    event_free(loop->turn);
    event_base_free(loop->base);
    td_free(loop);
}

void td_loop_run(struct td_loop *loop) {
    td_loop_assert(loop);
    while (!loop->stopped) {
        int rc = event_base_loop(loop->base, EVLOOP_ONCE | EVLOOP_NO_EXIT_ON_EMPTY);
        td_assert_op(rc, ==, 0);
    }
    loop->stopped = false;
}

void td_loop_stop(struct td_loop *loop) {
    td_loop_assert(loop);
    loop->stopped = true;
    event_base_loopbreak(loop->base);
}

struct event_base *td_loop_base(struct td_loop *loop) {
    td_loop_assert(loop);
    return loop->base;
}

int64_t td_loop_now_ms(const struct td_loop *loop) {
    (void)loop;
    return td_clock_ms();
}

void td_loop_defer(struct td_loop *loop, td_loop_fn *fn, void *user) {
    td_loop_assert(loop);
    struct deferred *d = td_alloc(sizeof *d);
    d->fn = fn;
    d->user = user;
    *loop->tail = d;
    loop->tail = &d->next;
    if (loop->head == d) {
        td_assert_op(event_add(loop->turn, &(struct timeval){0}), ==, 0);
    }
}

static unsigned events_of(short what) {
    return ((what & EV_READ) ? TD_LOOP_READ : 0u) | ((what & EV_WRITE) ? TD_LOOP_WRITE : 0u);
}

static short what_of(unsigned events) {
    int what = EV_PERSIST;
    what |= (events & TD_LOOP_READ) ? EV_READ : 0;
    what |= (events & TD_LOOP_WRITE) ? EV_WRITE : 0;
    return (short)what;
}

static void on_fd(evutil_socket_t fd, short what, void *user) {
    struct td_watch *watch = user;
    watch->on_fd(watch->user, fd, events_of(what));
}

static void on_signal(evutil_socket_t fd, short what, void *user) {
    (void)what;
    struct td_watch *watch = user;
    watch->on_signal(watch->user, fd);
}

static struct td_watch *watch_new(struct td_loop *loop, int fd, short what, event_callback_fn fn) {
    struct td_watch *watch = td_alloc(sizeof *watch);
    watch->loop = loop;
    watch->fd = fd;
    watch->event = event_new(loop->base, fd, what, fn, watch);
    td_assert(watch->event);
    loop->handles++;
    return watch;
}

enum td_rc td_watch_fd(struct td_loop *loop, int fd, unsigned events, td_watch_fn *fn, void *user,
                       struct td_watch **out) {
    td_loop_assert(loop);
    struct td_watch *watch = watch_new(loop, fd, what_of(events), on_fd);
    watch->on_fd = fn;
    watch->user = user;
    if (events && event_add(watch->event, NULL) != 0) {
        td_watch_close(watch);
        return TD_EIO;
    }
    *out = watch;
    return TD_OK;
}

void td_watch_set(struct td_watch *watch, unsigned events) {
    td_loop_assert(watch->loop);
    td_assert(watch->on_fd);
    event_del(watch->event);
    if (events) {
        int rc =
            event_assign(watch->event, watch->loop->base, watch->fd, what_of(events), on_fd, watch);
        td_assert_op(rc, ==, 0);
        td_assert_op(event_add(watch->event, NULL), ==, 0);
    }
}

enum td_rc td_watch_signal(struct td_loop *loop, int signum, td_signal_fn *fn, void *user,
                           struct td_watch **out) {
    td_loop_assert(loop);
    struct td_watch *watch = watch_new(loop, signum, EV_SIGNAL | EV_PERSIST, on_signal);
    watch->on_signal = fn;
    watch->user = user;
    if (event_add(watch->event, NULL) != 0) {
        td_watch_close(watch);
        return TD_EIO;
    }
    *out = watch;
    return TD_OK;
}

// libevent calls nothing after event_free, not even when the event was already due in this turn;
// only the wrapper must outlive a callback that closes it.
void td_watch_close(struct td_watch *watch) {
    if (watch) {
        td_loop_assert(watch->loop);
        event_free(watch->event);
        watch->loop->handles--;
        td_free(watch);
    }
}

static void on_timer(evutil_socket_t fd, short what, void *user) {
    (void)fd, (void)what;
    struct td_timer *timer = user;
    timer->fn(timer->user);
}

struct td_timer *td_timer_new(struct td_loop *loop, td_loop_fn *fn, void *user) {
    td_loop_assert(loop);
    struct td_timer *timer = td_alloc(sizeof *timer);
    timer->loop = loop;
    timer->fn = fn;
    timer->user = user;
    timer->event = event_new(loop->base, -1, 0, on_timer, timer);
    td_assert(timer->event);
    loop->handles++;
    return timer;
}

void td_timer_start(struct td_timer *timer, int64_t delay_ms) {
    td_loop_assert(timer->loop);
    td_assert_op(delay_ms, >=, 0);
    struct timeval tv = {delay_ms / 1000, delay_ms % 1000 * 1000};
    td_assert_op(event_add(timer->event, &tv), ==, 0);
}

void td_timer_stop(struct td_timer *timer) {
    td_loop_assert(timer->loop);
    event_del(timer->event);
}

void td_timer_close(struct td_timer *timer) {
    if (timer) {
        td_loop_assert(timer->loop);
        event_free(timer->event);
        timer->loop->handles--;
        td_free(timer);
    }
}
