// The settings of a daemon: see daemon_settings.h. Pure but for reading the file.
#include "lib/spec/daemon_settings.h"

#include <string.h>

#include "lib/base/address.h"
#include "lib/base/check.h"
#include "lib/base/file.h"
#include "lib/spec/load_int.h"
#include "lib/spec/value_int.h"

enum { CLUSTER_NAME_MAX = 48, COMMENT_COLUMNS = 100 };

const char *td_daemon_role_name(enum td_daemon_role role) {
    static const char *const names[TD_DAEMON_ROLES] = {"coordinator", "rollout", "train"};
    td_assert_op(role, <, TD_DAEMON_ROLES);
    return names[role];
}

// ---- checks that the table cannot make

static void check_address(struct td_spec_loader *l, const char *key, const char *text,
                          bool may_be_unix) {
    struct td_address address;
    struct td_err err;
    if (!text || !td_spec_sound(l, key, NULL) ||
        (may_be_unix && strncmp(text, "unix:", 5) == 0 && text[5])) {
        return;
    }
    if (td_address_parse(text, &address, &err) != TD_OK) {
        td_spec_complain(l, key, "%s%s", err.msg, may_be_unix ? ", or unix:PATH" : "");
    }
}

static void check_names(struct td_spec_loader *l, const struct td_daemon_settings *s) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789-";
    size_t n = strlen(s->cluster);
    if (td_spec_sound(l, "cluster", NULL) &&
        (strspn(s->cluster, letters) != n || *s->cluster == '-' || n > CLUSTER_NAME_MAX)) {
        td_spec_complain(l, "cluster",
                         "\"%.100s\" is not a name; use at most %d of a-z, 0-9 and -, not - first",
                         s->cluster, CLUSTER_NAME_MAX);
    }
    struct td_address address;
    struct td_buf with_port = {0};
    td_buf_printf(&with_port, strchr(s->host, ':') ? "[%s]:1" : "%s:1", s->host);
    if (td_spec_sound(l, "host", NULL) &&
        td_address_parse(td_buf_str(&with_port), &address, NULL) != TD_OK) {
        td_spec_complain(l, "host", "\"%.100s\" is not a host; write a name or an IP address",
                         s->host);
    }
    td_buf_fini(&with_port);
}

static void check_addresses(struct td_spec_loader *l, const struct td_daemon_settings *s) {
    check_address(l, "http", s->http, false);
    check_address(l, "redis.address", s->redis.address, true);
    if (l->kinds == 1u << TD_DAEMON_COORDINATOR) {
        check_address(l, "listen", s->listen, true);
        return;
    }
    for (int i = 0; i < s->coordinators.count; i++) {
        check_address(l, "coordinators", s->coordinators.items[i], true);
    }
}

static void check_brokers(struct td_spec_loader *l, const char *brokers) {
    for (const char *at = brokers; at;) {
        size_t n = strcspn(at, ",");
        check_address(l, "log.brokers", td_arena_strndup(l->arena, at, n), false);
        at = at[n] ? at + n + 1 : NULL;
    }
}

static void check_log(struct td_spec_loader *l, const struct td_daemon_settings *s) {
    static const char *const of_kafka[] = {"log.brokers", "log.properties"};
    if (!td_spec_sound(l, "log.kind", NULL)) {
        return;
    }
    if (s->log.kind == TD_DAEMON_LOG_KAFKA) {
        if (!s->log.brokers && td_spec_sound(l, "log.brokers", NULL)) {
            td_spec_complain(l, "log.brokers", "missing, but log.kind is kafka; set HOST:PORT,...");
        }
        check_brokers(l, s->log.brokers);
        return;
    }
    if (!s->log.folder && td_spec_sound(l, "log.folder", NULL)) {
        td_spec_complain(l, "log.folder", "missing, but log.kind is file; set a folder");
    }
    const char *const values[] = {s->log.brokers, s->log.properties};
    for (int i = 0; i < 2; i++) {
        if (values[i]) {
            td_spec_warn(l, of_kafka[i], "not used, because log.kind is file");
        }
    }
}

static void check_together(struct td_spec_loader *l, const struct td_daemon_settings *s) {
    check_names(l, s);
    check_addresses(l, s);
    check_log(l, s);
    if (s->redis.password_file && !s->redis.address) {
        td_spec_warn(l, "redis.password_file", "not used without redis.address");
    }
    bool cert = s->tls.cert_file != NULL, key = s->tls.key_file != NULL;
    if (td_spec_sound(l, "tls.cert_file", "tls.key_file") && cert != key) {
        td_spec_complain(l, cert ? "tls.key_file" : "tls.cert_file",
                         "missing, but %s is set; a certificate needs its key",
                         cert ? "tls.cert_file" : "tls.key_file");
    } else if (l->kinds == 1u << TD_DAEMON_COORDINATOR && s->tls.ca_file && !cert) {
        td_spec_complain(l, "tls.ca_file",
                         "a coordinator that asks for certificates needs one: set tls.cert_file "
                         "and tls.key_file");
    }
    if (td_spec_sound(l, "timers.beat_ms", "timers.takeover_ms") &&
        2 * s->timers.beat_ms > s->timers.takeover_ms) {
        td_spec_complain(l, "timers.beat_ms",
                         "%lld is more than half of timers.takeover_ms, %lld: standbys would take "
                         "over from a leader that is well",
                         (long long)s->timers.beat_ms, (long long)s->timers.takeover_ms);
    }
}

// ---- loading

static enum td_rc parse(enum td_daemon_role role, const struct td_spec_text *text,
                        struct td_daemon_settings *s, struct td_spec_notes *notes,
                        struct td_err *err) {
    struct td_spec_loader *l = td_spec_loader_new(&td_spec_daemons, text->name, notes);
    l->fields = s;
    l->kept = s->arena;
    l->kinds = 1u << role;
    enum td_rc rc = td_spec_collect(l, text, err);
    if (rc == TD_OK) {
        td_spec_fill(l);
        check_together(l, s);
        rc = td_spec_verdict(l, err);
    }
    td_spec_loader_free(l);
    return rc;
}

enum td_rc td_daemon_settings_load(enum td_daemon_role role, const struct td_spec_text *text,
                                   struct td_daemon_settings **out, struct td_spec_notes *notes,
                                   struct td_err *err) {
    struct td_err cause = {0};
    struct td_buf file = {0};
    struct td_spec_text whole = *text;
    struct td_daemon_settings *s = td_alloc(sizeof *s);
    s->arena = td_arena_new();
    enum td_rc rc = TD_OK;
    if (!whole.bytes) {
        rc = td_file_read(text->name, TD_SPEC_FILE_MAX, &file, &cause);
        whole.bytes = td_buf_str(&file);
        whole.n = file.len;
    }
    if (rc == TD_OK) {
        rc = parse(role, &whole, s, notes, &cause);
    } else {
        notes->error_count++;
        td_buf_printf(&notes->errors, "%s\n", cause.msg);
    }
    td_buf_fini(&file);
    if (rc == TD_OK) {
        *out = s;
        return TD_OK;
    }
    td_daemon_settings_free(s);
    if (err) {
        *err = cause;
    }
    return rc;
}

void td_daemon_settings_free(struct td_daemon_settings *settings) {
    if (settings) {
        td_arena_free(settings->arena);
        td_free(settings);
    }
}

// ---- the example file

// Words, broken at COMMENT_COLUMNS.
static void print_comment(const char *indent, const char *text, struct td_buf *out) {
    size_t column = 0;
    while (*text) {
        size_t n = strcspn(text, " ");
        if (column == 0 || column + 1 + n > COMMENT_COLUMNS) {
            td_buf_printf(out, "%s%s#", column ? "\n" : "", indent);
            column = strlen(indent) + 1;
        }
        td_buf_puts(out, " ");
        td_buf_put(out, text, n);
        column += 1 + n;
        text += n + (text[n] == ' ');
    }
    td_buf_puts(out, "\n");
}

static void print_value(const struct td_spec_key *key, const char *role, struct td_buf *out) {
    const char *text = key->example ? key->example : *key->def == '=' ? "null" : key->def;
    for (; *text; text++) {
        td_buf_put(out, *text == '@' ? role : text, *text == '@' ? strlen(role) : 1);
    }
    td_buf_puts(out, "\n");
}

static void print_key(const struct td_spec_key *key, const char *role, struct td_buf *out) {
    struct td_buf text = {0};
    const char *dot = strchr(key->name, '.');
    td_buf_printf(&text, "%s (", key->help);
    td_spec_describe_type(key, &text);
    if (!key->def) {
        td_buf_puts(&text, "; needed)");
    } else if (*key->def == '=') {
        td_buf_printf(&text, "; default: that of %s)", key->def + 1);
    } else {
        td_buf_printf(&text, "; default: %s)", key->def);
    }
    print_comment(dot ? "  " : "", td_buf_str(&text), out);
    td_buf_printf(out, "%s%s: ", dot ? "  " : "", dot ? dot + 1 : key->name);
    print_value(key, role, out);
    td_buf_fini(&text);
}

void td_daemon_settings_print_example(enum td_daemon_role role, struct td_buf *out) {
    const char *name = td_daemon_role_name(role), *section = "";
    size_t section_n = 0;
    unsigned kinds;
    struct td_buf head = {0};
    td_buf_printf(&head,
                  "Settings of a %s%s: every key, at its default or, where there is none, an "
                  "example. A key with a default may be left out. On the command line, key=value "
                  "wins over the file: log.fsync=false. Written by `tandem help %s.yaml` out of "
                  "lib/spec/schema_daemon.c; a test compares.",
                  name, role == TD_DAEMON_COORDINATOR ? "" : " controller", name);
    print_comment("", td_buf_str(&head), out);
    td_buf_fini(&head);
    for (size_t i = 0; i < td_spec_table_count(&td_spec_daemons); i++) {
        const struct td_spec_key *key = td_spec_table_key(&td_spec_daemons, i, &kinds);
        if (!(kinds & 1u << role)) {
            continue;
        }
        size_t n = strcspn(key->name, ".");
        bool nested = key->name[n] == '.';
        if (!nested || n != section_n || strncmp(key->name, section, n) != 0) {
            td_buf_puts(out, "\n");
            section = nested ? key->name : "";
            section_n = nested ? n : 0;
            if (nested) {
                td_buf_printf(out, "%.*s:\n", (int)n, section);
            }
        }
        print_key(key, name, out);
    }
}
