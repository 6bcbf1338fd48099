// grpc.health.v1 for rpc.h: what the daemon says of its services, and those who watch it.
#include <string.h>

#include "lib/base/check.h"
#include "lib/base/mem.h"
#include "lib/io/rpc_int.h"
#include "proto/health.pb-c.h"

typedef Grpc__Health__V1__HealthCheckRequest health_request;
typedef Grpc__Health__V1__HealthCheckResponse health_response;
typedef Grpc__Health__V1__HealthCheckResponse__ServingStatus health_status;

#define SERVING GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
#define NOT_SERVING GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING
#define SERVICE_UNKNOWN GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN

struct service {
    char *name;
    health_status status;
};

struct watcher {
    struct td_rpc_health *health;
    struct watcher *next, **at;
    struct td_rpc_call *call;
    char *service;
};

struct td_rpc_health {
    struct service services[TD_RPC_HEALTH_MAX];
    size_t count;
    struct watcher *watchers;
    bool stopped;
};

static struct service *find(struct td_rpc_health *health, const char *name) {
    for (size_t i = 0; i < health->count; i++) {
        if (strcmp(health->services[i].name, name) == 0) {
            return &health->services[i];
        }
    }
    return NULL;
}

static void on_check(void *user, struct td_rpc_call *call, const ProtobufCMessage *message) {
    const struct service *service = find(user, ((const health_request *)message)->service);
    if (!service) {
        td_rpc_fail(call, TD_RPC_NOT_FOUND, "there is no such service here");
        return;
    }
    health_response response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    response.status = service->status;
    td_rpc_reply(call, &response.base);
}

static void watcher_free(struct watcher *watcher) {
    *watcher->at = watcher->next;
    if (watcher->next) {
        watcher->next->at = watcher->at;
    }
    td_free(watcher->service);
    td_free(watcher);
}

static void end(struct watcher *watcher, enum td_rpc_status status, const char *text) {
    struct td_rpc_call *call = watcher->call;
    watcher_free(watcher);
    td_rpc_fail(call, status, text);
}

// False: the watcher reads too slowly and was ended.
static bool tell(struct watcher *watcher, health_status status) {
    health_response response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    response.status = status;
    struct td_err err;
    if (td_rpc_send(watcher->call, &response.base, &err) == TD_OK) {
        return true;
    }
    end(watcher, TD_RPC_RESOURCE_EXHAUSTED, err.msg);
    return false;
}

static void on_watch(void *user, struct td_rpc_call *call, const ProtobufCMessage *message) {
    struct td_rpc_health *health = user;
    struct watcher *watcher = td_alloc(sizeof *watcher);
    *watcher = (struct watcher){.health = health,
                                .next = health->watchers,
                                .at = &health->watchers,
                                .call = call,
                                .service = td_strdup(((const health_request *)message)->service)};
    if (watcher->next) {
        watcher->next->at = &watcher->next;
    }
    health->watchers = watcher;
    td_rpc_call_set(call, watcher);
    const struct service *service = find(health, watcher->service);
    if (tell(watcher, service ? service->status : SERVICE_UNKNOWN) && health->stopped) {
        end(watcher, TD_RPC_UNAVAILABLE, "the server stops");
    }
}

static void on_gone(void *user, struct td_rpc_call *call) {
    (void)user;
    watcher_free(td_rpc_call_get(call));
}

static void change(struct td_rpc_health *health, struct service *service, health_status status) {
    if (service->status == status) {
        return;
    }
    service->status = status;
    for (struct watcher *w = health->watchers, *next; w; w = next) {
        next = w->next;
        if (strcmp(w->service, service->name) == 0) {
            tell(w, status);
        }
    }
}

void td_rpc_health_set(struct td_rpc_health *health, const char *service, bool serving) {
    if (health->stopped) {
        return;
    }
    struct service *s = find(health, service);
    if (!s) {
        td_assert_op(health->count, <, TD_RPC_HEALTH_MAX);
        s = &health->services[health->count++];
        *s = (struct service){td_strdup(service), SERVICE_UNKNOWN};
    }
    change(health, s, serving ? SERVING : NOT_SERVING);
}

void td_rpc_health_stop(struct td_rpc_health *health) {
    health->stopped = true;
    for (size_t i = 0; i < health->count; i++) {
        change(health, &health->services[i], NOT_SERVING);
    }
    while (health->watchers) {
        end(health->watchers, TD_RPC_UNAVAILABLE, "the server stops");
    }
}

struct td_rpc_health *td_rpc_health_new(struct td_rpc_entry *entries) {
    struct td_rpc_health *health = td_alloc(sizeof *health);
    struct td_rpc_method check = {.path = "/grpc.health.v1.Health/Check",
                                  .in = &grpc__health__v1__health_check_request__descriptor,
                                  .out = &grpc__health__v1__health_check_response__descriptor,
                                  .call = on_check};
    struct td_rpc_method watch = check;
    watch.path = "/grpc.health.v1.Health/Watch";
    watch.streams = true;
    watch.call = on_watch;
    watch.gone = on_gone;
    entries[0] = (struct td_rpc_entry){.method = check, .user = health};
    entries[1] = (struct td_rpc_entry){.method = watch, .user = health};
    return health;
}

void td_rpc_health_free(struct td_rpc_health *health) {
    if (health) {
        td_assert(!health->watchers);
        for (size_t i = 0; i < health->count; i++) {
            td_free(health->services[i].name);
        }
        td_free(health);
    }
}
