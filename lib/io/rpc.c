// The runtime of gRPC: see rpc.h. One thread waits on the completion queue; it puts each completed
// tag into a list without allocating and wakes the loop, which runs the tag's function.
#include "lib/io/rpc_int.h"

#include <assert.h>
#include <errno.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <grpc/support/time.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "lib/base/check.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/trace.h"

// The core is not instrumented: what happens before a tag is given to it, happens before the tag
// comes back.
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#define HAND_OVER(tag) __tsan_release(tag)
#define TAKE_OVER(tag) __tsan_acquire(tag)
#else
#define HAND_OVER(tag) ((void)(tag))
#define TAKE_OVER(tag) ((void)(tag))
#endif

enum { TAGS_PER_TURN = 64, CORE_MS = 1000 };

const char *td_rpc_status_name(enum td_rpc_status status) {
    static const char *const names[] = {
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        [4] = "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    };
    static_assert(sizeof names / sizeof *names == TD_RPC_UNAUTHENTICATED + 1, "one name per code");
    unsigned i = (unsigned)status;
    return i < sizeof names / sizeof *names ? names[i] : "UNKNOWN";
}

// ---- tags ----

void td_rpc_tag_begin(struct td_rpc *rpc, struct td_rpc_tag *tag) {
    td_loop_assert(rpc->loop);
    rpc->pending++;
    HAND_OVER(tag);
}

static void wake(int fd) {
    uint64_t one = 1;
    ssize_t n = write(fd, &one, sizeof one);
    td_assert(n == sizeof one || errno == EAGAIN); // EAGAIN: it is signalled already
}

static void *wait_for_tags(void *user) {
    struct td_rpc *rpc = user;
    for (;;) {
        grpc_event event =
            grpc_completion_queue_next(rpc->queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN) {
            return NULL;
        }
        td_assert_op(event.type, ==, GRPC_OP_COMPLETE);
        struct td_rpc_tag *tag = event.tag;
        TAKE_OVER(tag);
        tag->ok = event.success != 0;
        tag->next = NULL;
        pthread_mutex_lock(&rpc->mutex);
        bool first = rpc->head == NULL;
        *rpc->tail = tag;
        rpc->tail = &tag->next;
        pthread_mutex_unlock(&rpc->mutex);
        if (first) {
            wake(rpc->fd);
        }
    }
}

static struct td_rpc_tag *take(struct td_rpc *rpc) {
    pthread_mutex_lock(&rpc->mutex);
    struct td_rpc_tag *tag = rpc->head;
    if (tag) {
        rpc->head = tag->next;
        if (!tag->next) {
            rpc->tail = &rpc->head;
        }
    }
    pthread_mutex_unlock(&rpc->mutex);
    return tag;
}

static void on_wake(void *user, int fd, unsigned events) {
    (void)events;
    struct td_rpc *rpc = user;
    uint64_t count;
    ssize_t n = read(fd, &count, sizeof count);
    td_assert(n == sizeof count || errno == EAGAIN);
    struct td_rpc_tag *tag = NULL;
    rpc->running = true;
    for (int i = 0; i < TAGS_PER_TURN && (tag = take(rpc)); i++) {
        rpc->pending--;
        tag->fn(tag, tag->ok);
    }
    rpc->running = false;
    if (tag) {
        wake(fd); // more may be there; other descriptors get their turn first
    }
}

// ---- the runtime ----

// What the core has to say, such as of each handshake that failed, whoever the peer was: whom it
// concerns hears of it by a status.
static void on_core_log(gpr_log_func_args *said) {
    td_trace_debug("grpc", "said=\"%s\"", said->message);
}

// Signals belong to the loop: its thread is the only one that takes them. The core starts threads
// of its own in grpc_init, which inherit the mask.
static int start(struct td_rpc *rpc) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    gpr_set_log_function(on_core_log);
    grpc_init();
    rpc->queue = grpc_completion_queue_create_for_next(NULL);
    int rc = pthread_create(&rpc->thread, NULL, wait_for_tags, rpc);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc == 0) {
        pthread_setname_np(rpc->thread, "rpc");
    }
    return rc;
}

// What was just freed may hold the core for a moment longer; its last user shuts it down in a
// thread of its own. A process that exits meanwhile takes its memory from under the core's threads.
static void wait_for_core(void) {
    int64_t until = td_clock_ms() + CORE_MS;
    while (grpc_is_initialized() && td_clock_ms() < until) {
        poll(NULL, 0, 1);
    }
}

static void close_wake(struct td_rpc *rpc) {
    td_watch_close(rpc->watch);
    close(rpc->fd);
    pthread_mutex_destroy(&rpc->mutex);
    td_free(rpc);
}

enum td_rc td_rpc_new(struct td_loop *loop, struct td_rpc **out, struct td_err *err) {
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0) {
        return td_fail_errno(err, errno, "cannot make an eventfd for gRPC");
    }
    struct td_rpc *rpc = td_alloc(sizeof *rpc);
    *rpc = (struct td_rpc){.loop = loop, .fd = fd, .tail = &rpc->head};
    pthread_mutex_init(&rpc->mutex, NULL);
    if (td_watch_fd(loop, fd, TD_LOOP_READ, on_wake, rpc, &rpc->watch) != TD_OK) {
        close_wake(rpc);
        return td_fail(err, TD_EIO, "cannot watch gRPC's eventfd");
    }
    int errnum = start(rpc);
    if (errnum != 0) {
        grpc_completion_queue_shutdown(rpc->queue);
        grpc_completion_queue_destroy(rpc->queue);
        grpc_shutdown();
        close_wake(rpc);
        return td_fail_errno(err, errnum, "cannot start a thread for gRPC");
    }
    *out = rpc;
    return TD_OK;
}

void td_rpc_free(struct td_rpc *rpc) {
    if (!rpc) {
        return;
    }
    td_loop_assert(rpc->loop);
    td_assert(!rpc->running);
    td_assert_op(rpc->servers, ==, 0);
    td_assert_op(rpc->channels, ==, 0);
    // What the servers and channels left behind was cancelled and comes back soon.
    while (rpc->pending > 0) {
        struct pollfd ready = {.fd = rpc->fd, .events = POLLIN};
        if (poll(&ready, 1, -1) > 0) {
            on_wake(rpc, rpc->fd, TD_LOOP_READ);
        }
    }
    grpc_completion_queue_shutdown(rpc->queue);
    pthread_join(rpc->thread, NULL);
    grpc_completion_queue_destroy(rpc->queue);
    grpc_shutdown();
    wait_for_core();
    close_wake(rpc);
}

// ---- messages ----

grpc_byte_buffer *td_rpc_pack(const ProtobufCMessage *message) {
    size_t n = protobuf_c_message_get_packed_size(message);
    if (n > TD_RPC_MESSAGE_MAX) {
        return NULL;
    }
    grpc_slice slice = grpc_slice_malloc(n);
    protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
    grpc_byte_buffer *bytes = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return bytes;
}

// A few bytes on the wire can become a large struct: what a message takes in memory has a limit of
// its own. left: how much may still be taken.
static void *limited_alloc(void *left, size_t size) {
    enum { OVERHEAD = 32 };
    size_t *n = left;
    if (size > *n || *n - size < OVERHEAD) {
        return NULL;
    }
    *n -= size + OVERHEAD;
    return td_try_alloc(size);
}

static void limited_free(void *left, void *p) {
    (void)left;
    td_free(p);
}

ProtobufCMessage *td_rpc_unpack(grpc_byte_buffer *bytes, const ProtobufCMessageDescriptor *type) {
    grpc_byte_buffer_reader reader;
    if (!grpc_byte_buffer_reader_init(&reader, bytes)) {
        return NULL;
    }
    grpc_slice slice = grpc_byte_buffer_reader_readall(&reader);
    grpc_byte_buffer_reader_destroy(&reader);
    size_t left = TD_RPC_UNPACKED_MAX;
    ProtobufCAllocator allocator = {limited_alloc, limited_free, &left};
    ProtobufCMessage *message = protobuf_c_message_unpack(
        type, &allocator, GRPC_SLICE_LENGTH(slice), GRPC_SLICE_START_PTR(slice));
    grpc_slice_unref(slice);
    return message;
}

void td_rpc_message_free(ProtobufCMessage *message) {
    ProtobufCAllocator allocator = {limited_alloc, limited_free, NULL};
    protobuf_c_message_free_unpacked(message, &allocator);
}
