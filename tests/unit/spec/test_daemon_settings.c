// Settings of daemons: the example files, what is taken from a file and from overrides, and every
// message a user can get, word by word.
#include "tests/unit/cmocka_all.h"

#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/spec/daemon_settings.h"
#include "lib/spec/schema.h"
#include "lib/spec/value_int.h"

// The least each role needs.
#define BASE "dir: /d\nshared_dir: /s\nlog: {folder: /l}\n"
#define CONTROLLER BASE "coordinators: c:1\n"

enum { OVERRIDES_MAX = 8 };

struct outcome {
    struct td_daemon_settings *settings;
    struct td_spec_notes notes;
    struct td_err err;
    enum td_rc rc;
};

static struct outcome load(enum td_daemon_role role, const char *name, const char *yaml,
                           const char *const *overrides) {
    struct outcome o = {0};
    size_t n = 0;
    while (overrides && overrides[n]) {
        n++;
    }
    struct td_spec_text text = {name, yaml, yaml ? strlen(yaml) : 0, overrides, n};
    o.rc = td_daemon_settings_load(role, &text, &o.settings, &o.notes, &o.err);
    return o;
}

static void done(struct outcome *o) {
    td_daemon_settings_free(o->settings);
    td_spec_notes_fini(&o->notes);
}

static struct outcome good(enum td_daemon_role role, const char *yaml,
                           const char *const *overrides) {
    struct outcome o = load(role, "d.yaml", yaml, overrides);
    assert_string_equal(td_buf_str(&o.notes.errors), "");
    assert_int_equal(o.rc, TD_OK);
    return o;
}

static void test_daemon_table_is_sound(void **state) {
    const struct td_spec_table *table = &td_spec_daemons;
    unsigned kinds, other_kinds;
    (void)state;
    for (size_t i = 0; i < td_spec_table_count(table); i++) {
        const struct td_spec_key *key = td_spec_table_key(table, i, &kinds);
        struct td_buf why = {0};
        assert_ptr_equal(td_spec_table_find(table, key->name, kinds & -kinds, NULL), key);
        assert_int_equal(key->required, !key->def);
        assert_true(key->def || key->example);
        assert_true(*key->help && key->offset < sizeof(struct td_daemon_settings));
        const char *texts[] = {key->def && *key->def != '=' ? key->def : NULL, key->example};
        for (int t = 0; t < 2; t++) {
            json_t *value = texts[t] ? td_spec_value_parse(texts[t]) : NULL;
            if (texts[t] && (!value || !td_spec_value_check(key, value, &why))) {
                fail_msg("%s: %s: %s", key->name, texts[t], td_buf_str(&why));
            }
            json_decref(value);
        }
        for (size_t k = 0; k < i; k++) {
            const struct td_spec_key *other = td_spec_table_key(table, k, &other_kinds);
            assert_int_not_equal(other->offset, key->offset);
        }
        td_buf_fini(&why);
    }
}

static void test_daemon_examples_are_current_and_load(void **state) {
    (void)state;
    for (int role = 0; role < TD_DAEMON_ROLES; role++) {
        struct td_buf want = {0}, have = {0};
        char path[512];
        const char *name = td_daemon_role_name(role);
        snprintf(path, sizeof path, "%s/deploy/%s.yaml", TD_TEST_SOURCE_DIR, name);
        td_daemon_settings_print_example(role, &want);
        assert_int_equal(td_file_read(path, 1 << 20, &have, NULL), TD_OK);
        if (strcmp(td_buf_str(&want), td_buf_str(&have)) != 0) {
            fail_msg("deploy/%s.yaml is old: tandem help %s.yaml > deploy/%s.yaml", name, name,
                     name);
        }
        struct outcome o = load(role, path, NULL, NULL);
        assert_string_equal(td_buf_str(&o.notes.errors), "");
        assert_string_equal(td_buf_str(&o.notes.warnings), "");
        char *dir = td_asprintf("/var/lib/tandem/%s", name);
        assert_string_equal(o.settings->dir, dir);
        td_free(dir);
        td_buf_fini(&want);
        td_buf_fini(&have);
        done(&o);
    }
}

static void test_daemon_defaults(void **state) {
    (void)state;
    struct outcome o = good(TD_DAEMON_COORDINATOR, BASE, NULL);
    const struct td_daemon_settings *s = o.settings;
    assert_string_equal(s->cluster, "tandem");
    assert_string_equal(s->dir, "/d");
    assert_string_equal(s->host, "127.0.0.1");
    assert_string_equal(s->shared_dir, "/s");
    assert_string_equal(s->listen, "127.0.0.1:7400");
    assert_string_equal(s->http, "127.0.0.1:0");
    assert_int_equal(s->log.kind, TD_DAEMON_LOG_FILE);
    assert_string_equal(s->log.folder, "/l");
    assert_true(s->log.fsync);
    assert_null(s->log.brokers);
    assert_string_equal(s->log.prefix, "tandem"); // the cluster's name
    assert_null(s->log.properties);
    assert_int_equal(s->log.timeout_s, 30);
    assert_int_equal(s->log.partitions, 8);
    assert_null(s->redis.address);
    assert_null(s->redis.password_file);
    assert_int_equal(s->redis.timeout_ms, 2000);
    assert_null(s->tls.ca_file);
    assert_null(s->tls.cert_file);
    assert_null(s->tls.key_file);
    assert_int_equal(s->timers.takeover_ms, 10000);
    assert_int_equal(s->timers.beat_ms, 2000);
    assert_int_equal(s->timers.member_timeout_ms, 10000);
    assert_int_equal(s->timers.state_every, 1000);
    assert_false(s->verbose);
    assert_int_equal(s->workers, 0); // not of a coordinator
    assert_int_equal(s->coordinators.count, 0);
    done(&o);
    o = good(TD_DAEMON_ROLLOUT, CONTROLLER, NULL);
    assert_int_equal(o.settings->workers, 1);
    assert_int_equal(o.settings->threads, 0);
    assert_int_equal(o.settings->coordinators.count, 1);
    assert_string_equal(o.settings->coordinators.items[0], "c:1");
    assert_null(o.settings->listen);
    done(&o);
}

static void test_daemon_values_and_overrides(void **state) {
    static const char yaml[] = "cluster: lab-2\n"
                               "dir: run\n"
                               "host: node7.example\n"
                               "http: ''\n"
                               "coordinators: ['a:1', 'unix:/tmp/c', '[::1]:3']\n"
                               "workers: 8\n"
                               "shared_dir: s\n"
                               "log: {kind: kafka, brokers: 'k1:9092,[::1]:9092', partitions: 4}\n"
                               "redis:\n  address: r:6379\n  password_file: p\n"
                               "tls: {ca_file: ca, cert_file: c, key_file: k}\n"
                               "timers.takeover_ms: 400\n"
                               "timers: {beat_ms: 200}\n";
    const char *const overrides[] = {"workers=2",           "verbose=true", "redis.timeout_ms=50",
                                     "log.properties=x.pr", "threads=3",    NULL};
    (void)state;
    struct outcome o = good(TD_DAEMON_TRAIN, yaml, overrides);
    const struct td_daemon_settings *s = o.settings;
    assert_string_equal(td_buf_str(&o.notes.warnings), "");
    assert_string_equal(s->host, "node7.example");
    assert_null(s->http);
    assert_int_equal(s->coordinators.count, 3);
    assert_string_equal(s->coordinators.items[1], "unix:/tmp/c");
    assert_int_equal(s->workers, 2);
    assert_int_equal(s->threads, 3);
    assert_int_equal(s->log.kind, TD_DAEMON_LOG_KAFKA);
    assert_string_equal(s->log.brokers, "k1:9092,[::1]:9092");
    assert_string_equal(s->log.prefix, "lab-2");
    assert_string_equal(s->log.properties, "x.pr");
    assert_int_equal(s->log.partitions, 4);
    assert_string_equal(s->redis.address, "r:6379");
    assert_int_equal(s->redis.timeout_ms, 50);
    assert_string_equal(s->tls.key_file, "k");
    assert_int_equal(s->timers.takeover_ms, 400);
    assert_int_equal(s->timers.beat_ms, 200);
    assert_true(s->verbose);
    done(&o);
    const char *const no[] = {"http=",    "log.prefix=p",   "redis.address=unix:/r",
                              "host=::1", "tls.ca_file=ca", NULL};
    o = good(TD_DAEMON_ROLLOUT, CONTROLLER, no); // a client needs no certificate
    assert_null(o.settings->http);
    assert_string_equal(o.settings->log.prefix, "p");
    assert_string_equal(o.settings->redis.address, "unix:/r");
    done(&o);
}

static void test_daemon_warnings(void **state) {
    (void)state;
    const char *const overrides[] = {"log.brokers=k:1", "log.properties=p", "redis.password_file=p",
                                     NULL};
    struct outcome o = good(TD_DAEMON_COORDINATOR, BASE, overrides);
    assert_string_equal(td_buf_str(&o.notes.warnings),
                        "command line: log.brokers=k:1: not used, because log.kind is file\n"
                        "command line: log.properties=p: not used, because log.kind is file\n"
                        "command line: redis.password_file=p: not used without redis.address\n");
    assert_int_equal(o.notes.warning_count, 3);
    done(&o);
}

struct bad {
    enum td_daemon_role role;
    const char *yaml;
    const char *overrides[OVERRIDES_MAX];
    const char *errors; // the whole text
};

static const struct bad bads[] = {
    {TD_DAEMON_TRAIN,
     "",
     {0},
     "d.yaml: dir: missing, but needed: run directory of this daemon, for it alone: lock, worker "
     "sockets, log lines\n"
     "d.yaml: coordinators: missing, but needed: gRPC addresses of all coordinators, the leader "
     "and "
     "its standbys, in any order\n"
     "d.yaml: shared_dir: missing, but needed: folder that all daemons see under this path: "
     "checkpoints, metrics and saved models of each job; a network file system where there are "
     "several machines\n"
     "d.yaml: log.folder: missing, but log.kind is file; set a folder\n"},
    {TD_DAEMON_COORDINATOR,
     BASE "workers: 3\n",
     {0},
     "d.yaml:4: workers: belongs to a controller, and this is a coordinator; remove it\n"},
    {TD_DAEMON_ROLLOUT,
     CONTROLLER "listen: a:1\n",
     {0},
     "d.yaml:5: listen: belongs to a coordinator, and this is a controller; remove it\n"},
    {TD_DAEMON_COORDINATOR,
     BASE "redis: {adress: x}\ntimer: {beat_ms: 1}\nnonsense_zzz: 1\nlog.kinds: file\n",
     {0},
     "d.yaml:4: redis.adress: unknown key; did you mean redis.address?\n"
     "d.yaml:5: timer: unknown key; did you mean timers?\n"
     "d.yaml:6: nonsense_zzz: unknown key; deploy/*.yaml and `tandem help coordinator.yaml`, "
     "rollout.yaml, train.yaml list all\n"
     "d.yaml:7: log.kinds: unknown key; did you mean log.kind?\n"},
    {TD_DAEMON_COORDINATOR,
     BASE "redis: r:1\n",
     {0},
     "d.yaml:4: redis: this is a section; write its keys below it\n"},
    {TD_DAEMON_COORDINATOR,
     "dir: /d\nshared_dir: /s\nlog: {kind: kafka}\n",
     {0},
     "d.yaml: log.brokers: missing, but log.kind is kafka; set HOST:PORT,...\n"},
    {TD_DAEMON_COORDINATOR,
     "dir: /d\nshared_dir: /s\nlog: {kind: kafka, brokers: 'k:1,k'}\n",
     {0},
     "d.yaml:3: log.brokers: \"k\" is not an address; write HOST:PORT, as in 127.0.0.1:8080 or "
     "[::1]:8080\n"},
    {TD_DAEMON_COORDINATOR,
     BASE,
     {"log.kind=memory", NULL},
     "command line: log.kind=memory: expected one of file, kafka, got \"memory\"\n"},
    {TD_DAEMON_COORDINATOR,
     BASE,
     {"listen=7400", "http=:80", "redis.address=unix:", NULL},
     "command line: http=:80: \":80\" is not an address; write HOST:PORT, as in 127.0.0.1:8080 or "
     "[::1]:8080\n"
     "command line: redis.address=unix:: \"unix:\" is not an address; write HOST:PORT, as in "
     "127.0.0.1:8080 or [::1]:8080, or unix:PATH\n"
     "command line: listen=7400: \"7400\" is not an address; write HOST:PORT, as in 127.0.0.1:8080 "
     "or [::1]:8080, or unix:PATH\n"},
    {TD_DAEMON_TRAIN,
     BASE,
     {"coordinators=[a:1, b]", "workers=0", "threads=-1", "verbose=yes", NULL},
     "command line: workers=0: expected an integer from 1 to 64, got 0\n"
     "command line: threads=-1: expected an integer from 0 to 1024, got -1\n"
     "command line: verbose=yes: expected true or false, got \"yes\"; write true or false\n"
     "command line: coordinators=[a:1, b]: \"b\" is not an address; write HOST:PORT, as in "
     "127.0.0.1:8080 or [::1]:8080, or unix:PATH\n"},
    {TD_DAEMON_COORDINATOR,
     BASE,
     {"cluster=Lab 2", "host=a/b", NULL},
     "command line: cluster=Lab 2: \"Lab 2\" is not a name; use at most 48 of a-z, 0-9 and -, not "
     "- "
     "first\n"
     "command line: host=a/b: \"a/b\" is not a host; write a name or an IP address\n"},
    {TD_DAEMON_COORDINATOR,
     BASE,
     {"tls.cert_file=c", NULL},
     "d.yaml: tls.key_file: missing, but tls.cert_file is set; a certificate needs its key\n"},
    {TD_DAEMON_COORDINATOR,
     BASE,
     {"tls.key_file=k", NULL},
     "d.yaml: tls.cert_file: missing, but tls.key_file is set; a certificate needs its key\n"},
    {TD_DAEMON_COORDINATOR,
     BASE,
     {"tls.ca_file=c", NULL},
     "command line: tls.ca_file=c: a coordinator that asks for certificates needs one: set "
     "tls.cert_file and tls.key_file\n"},
    {TD_DAEMON_COORDINATOR,
     BASE,
     {"timers.beat_ms=6000", NULL},
     "command line: timers.beat_ms=6000: 6000 is more than half of timers.takeover_ms, 10000: "
     "standbys would take over from a leader that is well\n"},
    {TD_DAEMON_COORDINATOR,
     BASE,
     {"dir=", "shared_dir", NULL},
     "command line: shared_dir: expected key=value\n"
     "command line: dir=: expected a string, got null\n"},
    {TD_DAEMON_COORDINATOR,
     BASE "---\n",
     {0},
     "d.yaml:4:1: a second document (---); write a file for each\n"},
};

static void test_daemon_errors(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bads / sizeof *bads; i++) {
        struct outcome o = load(bads[i].role, "d.yaml", bads[i].yaml, bads[i].overrides);
        assert_int_equal(o.rc, TD_EINVAL);
        assert_int_equal(o.err.code, TD_EINVAL);
        assert_string_equal(td_buf_str(&o.notes.errors), bads[i].errors);
        assert_null(o.settings);
        done(&o);
    }
}

static void test_daemon_file_that_is_not_there(void **state) {
    (void)state;
    struct outcome o = load(TD_DAEMON_TRAIN, "/nowhere/d.yaml", NULL, NULL);
    assert_int_equal(o.rc, TD_ENOENT);
    assert_string_equal(td_buf_str(&o.notes.errors),
                        "/nowhere/d.yaml: No such file or directory\n");
    assert_int_equal(o.notes.error_count, 1);
    done(&o);
    td_daemon_settings_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_daemon_table_is_sound),
        cmocka_unit_test(test_daemon_examples_are_current_and_load),
        cmocka_unit_test(test_daemon_defaults),
        cmocka_unit_test(test_daemon_values_and_overrides),
        cmocka_unit_test(test_daemon_warnings),
        cmocka_unit_test(test_daemon_errors),
        cmocka_unit_test(test_daemon_file_that_is_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
