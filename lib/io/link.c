// The local kind of the link: see link.h. Loop thread. Each direction of each member holds at most
// one message, which a newer one replaces, and all are delivered from one timer: a message sent in
// a turn is handled in a later one.
#include "lib/io/link.h"

#include <inttypes.h>

#include "lib/base/buf.h"
#include "lib/base/check.h"
#include "lib/base/mem.h"

struct slot { // a message that waits for its turn
    struct td_buf bytes;
    bool waiting, due; // due: was there when the turn began
};

struct td_link {
    struct td_link_hub *hub;
    uint64_t member;
    td_link_orders_fn *on_orders;
    void *user;
    struct slot report, orders;
};

struct td_link_hub {
    struct td_loop *loop;
    td_link_report_fn *on_report;
    void *user;
    struct td_link *links[TD_LINK_MEMBERS_MAX];
    size_t link_count;
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

void td_link_free(struct td_link *link) {
    if (!link) {
        return;
    }
    struct td_link_hub *hub = link->hub;
    td_loop_assert(hub->loop);
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
