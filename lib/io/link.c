// The local kind of the link: see link.h. Loop thread. Each direction of each member holds at most
// one message, which a newer one replaces, and all are delivered from one timer: a message sent in
// a turn is handled in a later one.
#include "lib/io/link.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <unistd.h>

#include "lib/base/buf.h"
#include "lib/base/check.h"
#include "lib/base/mem.h"
#include "lib/base/trace.h"

struct slot { // a message that waits for its turn
    struct td_buf bytes;
    bool waiting, due; // due: was there when the turn began
};

struct pull { // waits for an offer of its key
    struct td_link *link;
    struct pull *next;
    struct td_link_snapshot key;
    struct td_timer *timer;
    td_link_pulled_fn *done;
    void *user;
};

struct td_link {
    struct td_link_hub *hub;
    uint64_t member;
    td_link_orders_fn *on_orders;
    void *user;
    struct slot report, orders;
    struct pull *pulls;
};

struct offer {
    struct td_link_snapshot key;
    struct td_link *link;
    int fd;
};

struct td_link_hub {
    struct td_loop *loop;
    td_link_report_fn *on_report;
    void *user;
    struct td_link *links[TD_LINK_MEMBERS_MAX];
    size_t link_count;
    struct offer offers[TD_LINK_SNAPSHOTS_MAX];
    size_t offer_count;
    struct td_timer *turn;
};

static void put(struct td_link_hub *hub, struct slot *slot, const void *bytes, size_t n) {
    td_loop_assert(hub->loop);
    td_assert_op(n, <=, TD_LINK_BYTES_MAX);
    td_buf_clear(&slot->bytes);
    td_buf_put(&slot->bytes, bytes, n);
    slot->waiting = true;
    slot->due = false;
    td_timer_start(hub->turn, 0);
}

// Takes one due message; false when none is left. Searching again after each callback keeps it
// right whatever the callback connects or disconnects.
static bool deliver_one(struct td_link_hub *hub) {
    for (size_t i = 0; i < hub->link_count; i++) {
        struct td_link *link = hub->links[i];
        struct slot *slot = link->report.due ? &link->report : &link->orders;
        if (!slot->due) {
            continue;
        }
        struct td_buf bytes = slot->bytes;
        bool is_report = slot == &link->report;
        *slot = (struct slot){0};
        if (is_report) {
            hub->on_report(hub->user, link->member, bytes.data, bytes.len);
        } else {
            link->on_orders(link->user, bytes.data, bytes.len);
        }
        td_buf_fini(&bytes);
        return true;
    }
    return false;
}

static void on_turn(void *user) {
    struct td_link_hub *hub = user;
    for (size_t i = 0; i < hub->link_count; i++) {
        struct td_link *link = hub->links[i];
        link->report.due = link->report.waiting;
        link->orders.due = link->orders.waiting;
    }
    while (deliver_one(hub)) {
    }
}

struct td_link_hub *td_link_hub_new_local(struct td_loop *loop, td_link_report_fn *on_report,
                                          void *user) {
    struct td_link_hub *hub = td_alloc(sizeof *hub);
    hub->loop = loop;
    hub->on_report = on_report;
    hub->user = user;
    hub->turn = td_timer_new(loop, on_turn, hub);
    return hub;
}

void td_link_hub_free(struct td_link_hub *hub) {
    if (hub) {
        td_assert_op(hub->link_count, ==, 0);
        td_timer_close(hub->turn);
        td_free(hub);
    }
}

static struct td_link *find_link(struct td_link_hub *hub, uint64_t member) {
    for (size_t i = 0; i < hub->link_count; i++) {
        if (hub->links[i]->member == member) {
            return hub->links[i];
        }
    }
    return NULL;
}

void td_link_orders(struct td_link_hub *hub, uint64_t member, const void *bytes, size_t n) {
    struct td_link *link = find_link(hub, member);
    if (link) {
        put(hub, &link->orders, bytes, n);
    }
}

enum td_rc td_link_new(struct td_link_hub *hub, uint64_t member, td_link_orders_fn *on_orders,
                       void *user, struct td_link **out, struct td_err *err) {
    td_loop_assert(hub->loop);
    if (find_link(hub, member)) {
        return td_fail(err, TD_ECONFLICT, "member %016" PRIx64 " is connected already", member);
    }
    if (hub->link_count == TD_LINK_MEMBERS_MAX) {
        return td_fail(err, TD_ELIMIT, "more than %d members", TD_LINK_MEMBERS_MAX);
    }
    struct td_link *link = td_alloc(sizeof *link);
    *link = (struct td_link){.hub = hub, .member = member, .on_orders = on_orders, .user = user};
    hub->links[hub->link_count++] = link;
    *out = link;
    return TD_OK;
}

static void remove_offer(struct td_link_hub *hub, size_t i) {
    close(hub->offers[i].fd);
    hub->offers[i] = hub->offers[--hub->offer_count];
}

static void end_pull(struct pull *pull, int fd) {
    struct pull **at = &pull->link->pulls;
    while (*at != pull) {
        at = &(*at)->next;
    }
    *at = pull->next;
    td_timer_close(pull->timer);
    pull->done(pull->user, fd);
    td_free(pull);
}

void td_link_free(struct td_link *link) {
    if (!link) {
        return;
    }
    struct td_link_hub *hub = link->hub;
    td_loop_assert(hub->loop);
    while (link->pulls) {
        end_pull(link->pulls, -1);
    }
    for (size_t i = hub->offer_count; i-- > 0;) {
        if (hub->offers[i].link == link) {
            remove_offer(hub, i);
        }
    }
    for (size_t i = 0; i < hub->link_count; i++) {
        if (hub->links[i] == link) {
            hub->links[i] = hub->links[--hub->link_count];
            break;
        }
    }
    td_buf_fini(&link->report.bytes);
    td_buf_fini(&link->orders.bytes);
    td_free(link);
}

void td_link_report(struct td_link *link, const void *bytes, size_t n) {
    put(link->hub, &link->report, bytes, n);
}

static bool same_key(const struct td_link_snapshot *a, const struct td_link_snapshot *b) {
    return a->job == b->job && a->lineage == b->lineage && a->step == b->step &&
           a->digest == b->digest;
}

// The offer of link (any link when NULL) for key, or offer_count.
static size_t find_offer(const struct td_link_hub *hub, const struct td_link *link,
                         const struct td_link_snapshot *key) {
    size_t i = 0;
    while (i < hub->offer_count &&
           !(same_key(&hub->offers[i].key, key) && (!link || hub->offers[i].link == link))) {
        i++;
    }
    return i;
}

static enum td_rc duplicate(int fd, int *copy, struct td_err *err) {
    int dup = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (dup < 0) {
        return td_fail_errno(err, errno, "snapshot descriptor %d", fd);
    }
    *copy = dup;
    return TD_OK;
}

enum td_rc td_link_offer_snapshot(struct td_link *link, const struct td_link_snapshot *key, int fd,
                                  struct td_err *err) {
    struct td_link_hub *hub = link->hub;
    td_loop_assert(hub->loop);
    int copy = -1;
    enum td_rc rc = duplicate(fd, &copy, err);
    if (rc != TD_OK) {
        return rc;
    }
    td_link_withdraw_snapshot(link, key);
    if (hub->offer_count == TD_LINK_SNAPSHOTS_MAX) {
        close(copy);
        return td_fail(err, TD_ELIMIT, "more than %d snapshots are offered", TD_LINK_SNAPSHOTS_MAX);
    }
    hub->offers[hub->offer_count++] = (struct offer){*key, link, copy};
    for (size_t i = 0; i < hub->link_count; i++) {
        for (struct pull *p = hub->links[i]->pulls; p; p = p->next) {
            if (same_key(&p->key, key)) {
                td_timer_start(p->timer, 0);
            }
        }
    }
    return TD_OK;
}

void td_link_withdraw_snapshot(struct td_link *link, const struct td_link_snapshot *key) {
    size_t i = find_offer(link->hub, link, key);
    if (i < link->hub->offer_count) {
        remove_offer(link->hub, i);
    }
}

// The offer is there, or the time is over.
static void on_pull(void *user) {
    struct pull *pull = user;
    struct td_link_hub *hub = pull->link->hub;
    size_t i = find_offer(hub, NULL, &pull->key);
    struct td_err err;
    int fd = -1;
    if (i < hub->offer_count && duplicate(hub->offers[i].fd, &fd, &err) != TD_OK) {
        td_trace_warn("snapshot not pulled", "cause=\"%s\"", err.msg);
    }
    end_pull(pull, fd);
}

void td_link_pull_snapshot(struct td_link *link, const struct td_link_snapshot *key,
                           int64_t wait_ms, td_link_pulled_fn *done, void *user) {
    struct td_link_hub *hub = link->hub;
    td_loop_assert(hub->loop);
    struct pull *pull = td_alloc(sizeof *pull);
    *pull =
        (struct pull){.link = link, .next = link->pulls, .key = *key, .done = done, .user = user};
    link->pulls = pull;
    pull->timer = td_timer_new(hub->loop, on_pull, pull);
    td_timer_start(pull->timer, find_offer(hub, NULL, key) < hub->offer_count ? 0 : wait_ms);
}
