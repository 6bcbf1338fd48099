// The schema of the daemons' settings. Data only. Sections follow the order of the example files.
#include "lib/spec/daemon_settings.h"
#include "lib/spec/schema_int.h"

#define SETTING(name_, type_, def_, help_, ...)                                                    \
    {                                                                                              \
        .name = #name_, .cls = TD_SPEC_DONE, .type = TD_SPEC_##type_,                              \
        .offset = offsetof(struct td_daemon_settings, name_), .def = def_, .help = help_,          \
        __VA_ARGS__                                                                                \
    }
#define NEEDED(name_, type_, example_, help_)                                                      \
    SETTING(name_, type_, NULL, help_, .required = true, .example = example_)
#define OPTIONAL .nullable = true, .blank = true

enum {
    CONTROLLERS = 1 << TD_DAEMON_ROLLOUT | 1 << TD_DAEMON_TRAIN,
    ALL = CONTROLLERS | 1 << TD_DAEMON_COORDINATOR,
};
#define TIME_MAX_MS 3600000.0

static const struct td_spec_key first[] = {
    SETTING(
        cluster, STRING, "\"tandem\"",
        "name of the cluster; lower-case letters, digits and -; the daemons of one cluster have "
        "the same, and two clusters that share a Redis or a Kafka have different ones"),
    NEEDED(dir, STRING, "\"/var/lib/tandem/@\"",
           "run directory of this daemon, for it alone: lock, worker sockets, log lines"),
    SETTING(host, STRING, "\"127.0.0.1\"",
            "name or address under which the other machines of the cluster reach this one"),
};
static const struct td_spec_key coordinator[] = {
    SETTING(listen, STRING, "\"127.0.0.1:7400\"",
            "gRPC address for jobs and controllers, HOST:PORT or unix:PATH; 0.0.0.0 for every "
            "interface, then with tls"),
};
static const struct td_spec_key status[] = {
    SETTING(
        http, STRING, "\"127.0.0.1:0\"",
        "address of the read-only status pages, /metrics among them; port 0: any free one, told "
        "at the start; \"\": off. Nobody is asked for a password there: leave it on loopback or "
        "a network that is trusted",
        OPTIONAL),
};
static const struct td_spec_key controllers[] = {
    NEEDED(coordinators, STRINGS, "[\"127.0.0.1:7400\", \"127.0.0.1:7401\"]",
           "gRPC addresses of all coordinators, the leader and its standbys, in any order"),
    SETTING(workers, INT, "1", "worker processes on this machine, one per GPU or CPU slot",
            TD_RANGE(1, 64)),
    SETTING(threads, INT, "0", "threads of a worker; 0: cores / workers", TD_RANGE(0, 1024)),
};
static const struct td_spec_key last[] = {
    NEEDED(shared_dir, STRING, "\"/var/lib/tandem/shared\"",
           "folder that all daemons see under this path: checkpoints, metrics and saved models of "
           "each job; a network file system where there are several machines"),
    SETTING(log.kind, ENUM, "\"file\"",
            "where the journal and the rollouts lie: file, a folder of one machine, shared by its "
            "processes; kafka, a Kafka cluster",
            .values = "file|kafka"),
    SETTING(log.folder, STRING, "null", "file: the folder, the same for all daemons", OPTIONAL,
            .example = "\"/var/lib/tandem/log\""),
    SETTING(log.fsync, BOOL, "true", "file: false survives kill -9, but not a loss of power"),
    SETTING(log.brokers, STRING, "null", "kafka: \"HOST:PORT,...\", some brokers of the cluster",
            OPTIONAL),
    SETTING(log.prefix, STRING, "=cluster", "kafka: topics are named PREFIX.journal and so on",
            OPTIONAL),
    SETTING(log.properties, STRING, "null",
            "kafka: file of further librdkafka settings, a \"key=value\" a line (TLS, SASL)",
            OPTIONAL),
    SETTING(log.timeout_s, INT, "30",
            "kafka: how long making, opening or deleting a topic may take", TD_RANGE(1, 600)),
    SETTING(log.partitions, INT, "8", "coordinator: partitions of the rollout log of a new job",
            TD_RANGE(1, 256)),
    SETTING(redis.address, STRING, "null",
            "coordinator, as all below redis: HOST:PORT or unix:PATH of the Redis that holds the "
            "live view; \"\": none. It may be lost at any moment",
            OPTIONAL),
    SETTING(redis.password_file, STRING, "null",
            "file that holds the password and nothing else; read at each connect", OPTIONAL),
    SETTING(redis.timeout_ms, INT, "2000", "for connecting, and for each call",
            TD_RANGE(10, TIME_MAX_MS)),
    SETTING(tls.ca_file, STRING, "null",
            "PEM file of the authority that signs the cluster's certificates; on a coordinator it "
            "means that clients must show one, too",
            OPTIONAL),
    SETTING(tls.cert_file, STRING, "null", "PEM file of this daemon's certificate", OPTIONAL),
    SETTING(tls.key_file, STRING, "null", "PEM file of its private key", OPTIONAL),
    SETTING(
        timers.takeover_ms, INT, "10000",
        "coordinator, as all timers, the same on all of a cluster: a standby that reads nothing "
        "of the leader in the journal for that long takes over",
        TD_RANGE(100, TIME_MAX_MS)),
    SETTING(timers.beat_ms, INT, "2000",
            "a leader with nothing to write writes a beat that often; at most half of takeover_ms",
            TD_RANGE(10, TIME_MAX_MS)),
    SETTING(timers.member_timeout_ms, INT, "10000",
            "a controller that is silent for that long is taken for dead, and its work goes to "
            "others",
            TD_RANGE(100, TIME_MAX_MS)),
    SETTING(timers.state_every, INT, "1000",
            "journal records between two copies of the whole state, after which older ones are cut "
            "off; 0: never",
            TD_RANGE(0, TD_COUNT_MAX)),
    SETTING(verbose, BOOL, "false", "more log lines"),
};

#define SECTION(keys_, kinds_)                                                                     \
    { .keys = keys_, .count = sizeof keys_ / sizeof *keys_, .kinds = kinds_ }
static const struct td_spec_section parts[] = {
    SECTION(first, ALL),  SECTION(coordinator, 1 << TD_DAEMON_COORDINATOR),
    SECTION(status, ALL), SECTION(controllers, CONTROLLERS),
    SECTION(last, ALL),
};
static const struct td_spec_section *const sections[] = {&parts[0], &parts[1], &parts[2], &parts[3],
                                                         &parts[4]};

static void print_foreign(unsigned has, unsigned kind, struct td_buf *out) {
    td_buf_printf(out, "belongs to a %s, and this is a %s",
                  has == CONTROLLERS ? "controller" : "coordinator",
                  kind & CONTROLLERS ? "controller" : "coordinator");
}

const struct td_spec_table td_spec_daemons = {sections, sizeof sections / sizeof *sections, ALL,
                                              print_foreign,
                                              "deploy/*.yaml and `tandem help coordinator.yaml`, "
                                              "rollout.yaml, train.yaml list all"};
