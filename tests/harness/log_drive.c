// log_drive KIND WHERE COMMAND ...: one process at a record log, of which tests start several and
// kill some. KIND file: WHERE is a folder; kafka: HOST:PORT. Each event is one line on stdout:
//   append FIRST COUNT BYTES TIMEOUT_MS  A NUMBER PARTITION OFFSET | U … | F …, as answered
//   echo FIRST COUNT BYTES TIMEOUT_MS    as append, one by one; each A is read back by its position
//   tail COUNT                           R PARTITION OFFSET NUMBER | G PARTITION START, until COUNT
//                                        numbers were read; for ever when it is 0
//   read                                 B PARTITION START END, then as tail up to these ends
//   trim KEEP                            T PARTITION BELOW, over and over
//   create PARTITIONS | delete
// Record NUMBER goes to partition NUMBER mod partitions; its bytes follow from NUMBER and are
// checked. Exit status 1: something is wrong, told on stderr.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/buf.h"
#include "lib/base/mem.h"
#include "lib/io/logs.h"

enum { WINDOW = 16, TRIM_MS = 20, LOG_ID = 0x7e57 };

struct drive {
    struct td_loop *loop;
    struct td_log *log;
    uint32_t partitions;
    int status;
    // append, echo
    bool echo;
    uint64_t next, end, answered, first;
    size_t bytes;
    struct td_buf record;
    // reading
    struct tail {
        struct drive *drive;
        struct td_log_reader *reader;
        uint32_t partition;
        int64_t until; // read: the end
    } tails[TD_LOG_PARTITIONS_MAX];
    uint64_t wanted, seen;
    uint32_t open; // read: partitions not at their end
    // trim
    int64_t keep;
    uint32_t turn;
    struct td_timer *timer;
};

static void fail(struct drive *d, const char *what) {
    fprintf(stderr, "log_drive: %s\n", what);
    d->status = 1;
    td_loop_stop(d->loop);
}

static void say(const char *kind, uint64_t a, uint64_t b, int64_t c) {
    printf("%s %" PRIu64 " %" PRIu64 " %" PRId64 "\n", kind, a, b, c);
}

// ---- records

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

static void fill(struct td_buf *out, uint64_t number, size_t n) {
    td_buf_clear(out);
    uint8_t *to = td_buf_room(out, n + sizeof number);
    memcpy(to, &number, sizeof number);
    for (size_t i = sizeof number; i < n; i += sizeof number) {
        uint64_t word = mix(number * 1000003 + i);
        memcpy(to + i, &word, sizeof word); // there is room behind the last one
    }
    out->len = n;
}

// ---- append

static void send_more(struct drive *d);

// It was acknowledged: it is there.
static void read_back(struct drive *d, uint32_t partition, const struct td_log_result *result) {
    struct td_buf found = {0};
    struct td_err err;
    if (td_log_read_one(d->log, partition, result->offset, result->crc, &found, &err) != TD_OK) {
        fail(d, err.msg);
    } else if (found.len != d->record.len || memcmp(found.data, d->record.data, found.len) != 0) {
        fail(d, "a record read by its position holds other bytes than were written");
    }
    td_buf_fini(&found);
}

static void on_appended(void *user, const struct td_log_result *result) {
    struct drive *d = user;
    static const char *const names[] = {
        [TD_LOG_APPENDED] = "A", [TD_LOG_FAILED] = "F", [TD_LOG_UNKNOWN] = "U"};
    uint64_t number = d->first + d->answered++; // answers come in order
    say(names[result->outcome], number, number % d->partitions,
        result->outcome == TD_LOG_APPENDED ? result->offset : -1);
    if (result->outcome == TD_LOG_FAILED) {
        fail(d, result->err->msg);
    } else if (result->outcome == TD_LOG_APPENDED && d->echo) {
        read_back(d, (uint32_t)(number % d->partitions), result);
    }
    send_more(d);
}

static void send_more(struct drive *d) {
    struct td_err err;
    uint64_t window = d->echo ? 1 : WINDOW;
    while (!d->status && d->next < d->end && d->next - d->first - d->answered < window) {
        fill(&d->record, d->next, d->bytes);
        struct td_log_append append = {.partition = (uint32_t)(d->next % d->partitions),
                                       .bytes = d->record.data,
                                       .n = d->record.len,
                                       .done = on_appended,
                                       .user = d};
        if (td_log_append(d->log, &append, &err) != TD_OK) {
            fail(d, err.msg);
            return;
        }
        d->next++;
    }
    if (d->first + d->answered == d->end) {
        td_loop_stop(d->loop);
    }
}

// ---- reading

static void on_record(void *user, const struct td_log_record *record) {
    struct tail *t = user;
    struct drive *d = t->drive;
    uint64_t number = 0;
    if (record->n >= sizeof number) {
        memcpy(&number, record->bytes, sizeof number);
    }
    fill(&d->record, number, record->n);
    if (record->n < sizeof number || memcmp(d->record.data, record->bytes, record->n) != 0) {
        fail(d, "a record holds other bytes than were written");
    }
    printf("R %u %" PRId64 " %" PRIu64 "\n", t->partition, record->offset, number);
    if (++d->seen == d->wanted) {
        td_loop_stop(d->loop);
    }
    if (record->offset + 1 == t->until && --d->open == 0) {
        td_loop_stop(d->loop);
    }
}

static void on_gap(void *user, int64_t start) {
    struct tail *t = user;
    printf("G %u %" PRId64 "\n", t->partition, start);
}

static void on_error(void *user, const struct td_err *err) {
    struct tail *t = user;
    fail(t->drive, err->msg);
}

static const struct td_log_reader_fns fns = {on_record, on_gap, NULL, on_error};

static void start_tails(struct drive *d) {
    for (uint32_t p = 0; p < d->partitions; p++) {
        d->tails[p] = (struct tail){.drive = d, .partition = p, .until = -1};
        d->tails[p].reader = td_log_read(d->log, p, TD_LOG_FROM_START, &fns, &d->tails[p]);
    }
}

static void on_bounds(void *user, enum td_rc rc, int64_t start, int64_t end,
                      const struct td_err *err) {
    struct tail *t = user;
    struct drive *d = t->drive;
    if (rc != TD_OK) {
        fail(d, err->msg);
        return;
    }
    printf("B %u %" PRId64 " %" PRId64 "\n", t->partition, start, end);
    t->until = end;
    if (end > start) {
        t->reader = td_log_read(d->log, t->partition, start, &fns, t);
    } else if (--d->open == 0) {
        td_loop_stop(d->loop);
    }
}

static void read_all(struct drive *d) {
    d->open = d->partitions;
    for (uint32_t p = 0; p < d->partitions; p++) {
        d->tails[p] = (struct tail){.drive = d, .partition = p};
        td_log_bounds(d->log, p, on_bounds, &d->tails[p]);
    }
}

// ---- trim

static void on_trimmed(void *user, enum td_rc rc, const struct td_err *err) {
    struct drive *d = user;
    if (rc != TD_OK && !err->retriable) {
        fail(d, err->msg);
    }
    td_timer_start(d->timer, TRIM_MS);
}

static void on_trim_bounds(void *user, enum td_rc rc, int64_t start, int64_t end,
                           const struct td_err *err) {
    struct drive *d = user;
    if (rc != TD_OK || end - d->keep <= start) {
        on_trimmed(d, rc, err);
        return;
    }
    say("T", d->turn, (uint64_t)(end - d->keep), end);
    td_log_trim(d->log, d->turn, end - d->keep, on_trimmed, d);
}

static void on_trim_turn(void *user) {
    struct drive *d = user;
    d->turn = (d->turn + 1) % d->partitions;
    td_log_bounds(d->log, d->turn, on_trim_bounds, d);
}

// ---- commands

static void on_closed(void *user) {
    td_loop_stop(user);
}

static void run(struct drive *d, const char *command, char **args, const struct td_logs *logs) {
    struct td_err err;
    if (td_logs_open(d->loop, logs, "journal", LOG_ID, &d->log, &err) != TD_OK) {
        fail(d, err.msg);
        return;
    }
    d->partitions = td_log_partitions(d->log);
    d->timer = td_timer_new(d->loop, on_trim_turn, d);
    d->echo = strcmp(command, "echo") == 0;
    if (d->echo || strcmp(command, "append") == 0) {
        d->first = d->next = strtoull(args[0], NULL, 10);
        d->end = d->first + strtoull(args[1], NULL, 10);
        d->bytes = strtoull(args[2], NULL, 10);
        send_more(d);
    } else if (strcmp(command, "tail") == 0) {
        d->wanted = strtoull(args[0], NULL, 10);
        start_tails(d);
    } else if (strcmp(command, "read") == 0) {
        read_all(d);
    } else {
        d->keep = strtoll(args[0], NULL, 10);
        on_trim_turn(d);
    }
    td_loop_run(d->loop);
    for (uint32_t p = 0; p < d->partitions; p++) {
        td_log_reader_close(d->tails[p].reader);
    }
    td_timer_close(d->timer);
    td_log_close(d->log, on_closed, d->loop);
    td_loop_run(d->loop);
}

static enum td_rc make_or_delete(const char *command, char **args, const struct td_logs *logs,
                                 struct td_err *err) {
    return strcmp(command, "create") == 0
               ? td_logs_create(logs, "journal", LOG_ID, (uint32_t)strtoul(args[0], NULL, 10), err)
               : td_logs_delete(logs, "journal", err);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int args;
    } commands[] = {{"append", 4}, {"echo", 4},   {"tail", 1},  {"read", 0},
                    {"trim", 1},   {"create", 1}, {"delete", 0}};
    int args = -1;
    for (size_t i = 0; argc > 3 && i < sizeof commands / sizeof *commands; i++) {
        args = strcmp(argv[3], commands[i].name) == 0 ? commands[i].args : args;
    }
    if (args < 0 || argc != 4 + args) {
        fprintf(stderr, "usage: see tests/harness/log_drive.c\n");
        return 2;
    }
    bool kafka = strcmp(argv[1], "kafka") == 0;
    struct td_logs logs = {.kind = kafka ? TD_LOGS_KAFKA : TD_LOGS_FILE,
                           .folder = argv[2],
                           .brokers = argv[2],
                           .prefix = "drive",
                           .timeout_ms = args == 4 ? strtoll(argv[7], NULL, 10) : 20000};
    struct drive d = {0};
    struct td_err err;
    setvbuf(stdout, NULL, _IOLBF, 0); // it may be killed
    enum td_rc rc = td_loop_new(&d.loop, &err);
    if (rc == TD_OK && (strcmp(argv[3], "create") == 0 || strcmp(argv[3], "delete") == 0)) {
        rc = make_or_delete(argv[3], argv + 4, &logs, &err);
    } else if (rc == TD_OK) {
        run(&d, argv[3], argv + 4, &logs);
    }
    if (rc != TD_OK) {
        fprintf(stderr, "log_drive: %s\n", err.msg);
        return 1;
    }
    td_buf_fini(&d.record);
    td_loop_free(d.loop);
    return d.status;
}
