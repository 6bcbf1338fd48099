// The link between members (rollout and train controllers) and the coordinator: packed Report and
// Orders of proto/sync.proto. Both are whole states, so the link may lose, delay or repeat them and
// a newer one replaces one that still waits. Loop thread. Bytes are borrowed for the call. Kinds:
// local (one process); nothing below but td_link_hub_new_local names the kind.
#ifndef TD_IO_LINK_H
#define TD_IO_LINK_H

#include <stddef.h>
#include <stdint.h>

#include "lib/io/loop.h"

struct td_link_hub; // the coordinator's end
struct td_link;     // a member's end

enum { TD_LINK_BYTES_MAX = 16 << 20, TD_LINK_MEMBERS_MAX = 1024 };

typedef void td_link_report_fn(void *user, uint64_t member, const uint8_t *bytes, size_t n);
typedef void td_link_orders_fn(void *user, const uint8_t *bytes, size_t n);

// The coordinator's end. Free after every link to it.
struct td_link_hub *td_link_hub_new_local(struct td_loop *loop, td_link_report_fn *on_report,
                                          void *user);
void td_link_hub_free(struct td_link_hub *hub); // accepts NULL
// Sends orders to a member; delivered in a later turn; dropped when the member is gone.
void td_link_orders(struct td_link_hub *hub, uint64_t member, const void *bytes, size_t n);

// A member's end. TD_ECONFLICT: a member of this id is connected. TD_ELIMIT: too many.
enum td_rc td_link_new(struct td_link_hub *hub, uint64_t member, td_link_orders_fn *on_orders,
                       void *user, struct td_link **out, struct td_err *err) TD_MUST_CHECK;
void td_link_free(struct td_link *link); // accepts NULL
// Sends a report; delivered in a later turn.
void td_link_report(struct td_link *link, const void *bytes, size_t n);

#endif
