// One connection to a Redis server: commands out, replies in, in order. hiredis reads the protocol;
// its asynchronous half is not used, because of 0.14 it looks up names on the caller's thread, has
// no timeouts, no limit on what a peer may send, and aborts the process on a reply nobody asked
// for. Loop thread. No timers here.
#ifndef TD_IO_RESP_INT_H
#define TD_IO_RESP_INT_H

#include <stddef.h>

#include "lib/io/loop.h"

struct redisReply;
struct sockaddr;
struct td_resp;

enum { TD_RESP_REPLY_BYTES_MAX = 48 << 20, TD_RESP_REPLY_ELEMENTS_MAX = 1 << 18 };

struct td_resp_opts {
    struct td_loop *loop;
    const struct sockaddr *address; // borrowed for the call
    size_t address_n;
    void (*reply)(void *user, const struct redisReply *reply); // borrowed
    // The last callback: TD_ECLOSED, TD_EIO (not the protocol), the codes of connect(2).
    void (*down)(void *user, const struct td_err *err);
    void *user;
};

// Begins to connect. Errors that show at once are returned.
enum td_rc td_resp_new(const struct td_resp_opts *opts, struct td_resp **out,
                       struct td_err *err) TD_MUST_CHECK;
// Any time; from a callback too. Accepts NULL.
void td_resp_free(struct td_resp *resp);
// Copies the command; sent when the connection stands.
void td_resp_command(struct td_resp *resp, size_t argc, const char *const *argv, const size_t *n);

#endif
