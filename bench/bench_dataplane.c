// Rollout records through a record log, from a writer to a reader on another thread with a loop and
// a handle of its own. The real codec: encoded before each append and checked whole by the reader,
// as in the products. Prints a line of JSON a size:
//   flood  appends as fast as they are taken, 16 outstanding: records and MB a second as they reach
//          the reader, and how late (a queue is part of it)
//   paced  one outstanding: the next append when the one before is acknowledged; begins when the
//          reader has caught up
// Latency is the time from before the encoding until the reader has decoded the record, in ms.
//
//   bench_dataplane file FOLDER | kafka HOST:PORT [seconds=4] [partitions=4] [fsync=1]
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/settings.h"
#include "controllers/common/record.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/rng.h"
#include "lib/io/logs.h"

enum { SAMPLES = 8, PROMPT = 16, WINDOW = 16, BYTES_OF_TOKEN = 9, CATCH_UP_MS = 5 };
enum { SECONDS, PARTITIONS, FSYNC, SETTINGS };
enum phase { FLOOD, PACED, PHASES, END = PHASES };
static const char *const phase_names[] = {"flood", "paced"};
static const size_t sizes[] = {4 << 10, 64 << 10, 1 << 20, 5 << 20};

struct bench {
    struct setting set[SETTINGS];
    struct td_logs logs;
    char name[TD_ROLLOUT_LOG_NAME];
    uint64_t id;
    size_t bytes;                // of a record, about
    _Atomic uint64_t seen_count; // by the reader; the writer waits for it between phases
};

static void fail(const char *what) {
    fprintf(stderr, "bench_dataplane: %s\n", what);
    exit(1);
}

// ---- the record ----

struct source {
    Tandem__Rollout__Header header;
    Tandem__Rollout__Model model, *models[1];
    Tandem__Rollout__Sequence sequence[SAMPLES], *sequences[SAMPLES];
    Tandem__Rollout__Segment segment[2 * SAMPLES], *segments[2 * SAMPLES];
    uint32_t samples[SAMPLES];
    Tandem__Rollout__Status status[SAMPLES];
    struct td_rollout_record record;
};

static void fill_sequences(struct source *s, uint64_t each) {
    for (uint32_t i = 0; i < SAMPLES; i++) {
        s->samples[i] = i;
        s->sequences[i] = &s->sequence[i];
        tandem__rollout__sequence__init(&s->sequence[i]);
        s->sequence[i].sample = i;
        s->sequence[i].parent = -1;
        s->sequence[i].from = i * each;
        s->sequence[i].to = (i + 1) * each;
        for (uint32_t k = 0; k < 2; k++) {
            Tandem__Rollout__Segment *g = &s->segment[2 * i + k];
            s->segments[2 * i + k] = g;
            tandem__rollout__segment__init(g);
            g->sequence = i;
            g->kind =
                k ? TANDEM__ROLLOUT__SEGMENT_KIND__MODEL : TANDEM__ROLLOUT__SEGMENT_KIND__PROMPT;
            g->from = i * each + (k ? PROMPT : 0);
            g->to = k ? (i + 1) * each : i * each + PROMPT;
        }
    }
}

static void fill_columns(struct source *s, uint64_t each) {
    struct td_rng rng = {1};
    uint64_t n = each * SAMPLES;
    int32_t *tok = td_alloc_array(n, sizeof *tok);
    float *logp = td_alloc_array(n, sizeof *logp);
    uint8_t *mask = td_alloc_array(n, sizeof *mask);
    double *reward = td_alloc_array(SAMPLES, sizeof *reward);
    for (uint64_t i = 0; i < n; i++) {
        bool made = i % each >= PROMPT;
        tok[i] = (int32_t)td_rng_below(&rng, 150000);
        logp[i] = made ? -(float)td_rng_unit(&rng) : 0;
        mask[i] = made;
    }
    s->record = (struct td_rollout_record){.header = &s->header,
                                           .tokens = n,
                                           .samples = SAMPLES,
                                           .tok = tok,
                                           .logp = logp,
                                           .loss_mask = mask,
                                           .reward = reward};
}

static void source_init(struct source *s, const struct bench *b) {
    uint64_t each = b->bytes / BYTES_OF_TOKEN / SAMPLES;
    tandem__rollout__header__init(&s->header);
    tandem__rollout__model__init(&s->model);
    s->models[0] = &s->model;
    s->model.name = "actor";
    s->header.log = b->id;
    s->header.job = s->header.producer = 1;
    s->header.parts = 1;
    s->header.n_models = 1;
    s->header.models = s->models;
    s->header.n_samples = s->header.n_status = s->header.n_sequences = SAMPLES;
    s->header.samples = s->samples;
    s->header.status = s->status;
    s->header.sequences = s->sequences;
    s->header.n_segments = 2 * SAMPLES;
    s->header.segments = s->segments;
    fill_sequences(s, each);
    fill_columns(s, each);
}

// ---- the reader's thread ----

struct heard {
    int64_t *late_ns;
    size_t count, cap;
    uint64_t bytes;
    int64_t first_ns, last_ns; // sent, seen
};

struct reader {
    struct td_loop *loop;
    struct bench *bench;
    struct heard heard[PHASES];
    size_t ended; // partitions
};

static void on_record(void *user, const struct td_log_record *r) {
    struct reader *x = user;
    struct td_rollout_record *record = NULL;
    struct td_err err;
    if (td_rollout_record_decode(r->bytes, r->n, &record, &err) != TD_OK) {
        fail(err.msg);
        return;
    }
    uint64_t phase = record->header->attempt_term;
    if (phase == END) {
        if (++x->ended == (size_t)x->bench->set[PARTITIONS].value) {
            td_loop_stop(x->loop);
        }
    } else {
        struct heard *h = &x->heard[phase];
        int64_t sent = (int64_t)record->header->attempt;
        TD_GROW(h->late_ns, h->cap, h->count + 1);
        h->last_ns = td_clock_ns();
        h->late_ns[h->count++] = h->last_ns - sent;
        h->first_ns = h->first_ns && h->first_ns < sent ? h->first_ns : sent;
        h->bytes += r->n;
    }
    atomic_fetch_add(&x->bench->seen_count, 1);
    td_rollout_record_free(record);
}

static void on_error(void *user, const struct td_err *err) {
    (void)user;
    fail(err->msg);
}

static void print(struct reader *x) {
    printf("{\"log\":\"%s\",\"fsync\":%ld,\"bytes\":%zu",
           x->bench->logs.kind == TD_LOGS_KAFKA ? "kafka" : "file", x->bench->set[FSYNC].value,
           x->bench->bytes);
    for (int i = 0; i < PHASES; i++) {
        struct heard *h = &x->heard[i];
        double s = (double)(h->last_ns - h->first_ns) / 1e9;
        printf(",\"%s\":{\"n\":%zu,\"records_s\":%.1f,\"mb_s\":%.1f,", phase_names[i], h->count,
               (double)h->count / s, (double)h->bytes / 1e6 / s);
        print_percentiles(h->late_ns, h->count);
        printf("}");
    }
    printf("}\n");
    fflush(stdout);
}

static struct td_log *open_log(const struct bench *b, struct td_loop **loop) {
    struct td_log *log = NULL;
    struct td_err err;
    if (td_loop_new(loop, &err) != TD_OK ||
        td_logs_open(*loop, &b->logs, b->name, b->id, &log, &err) != TD_OK) {
        fail(err.msg);
    }
    return log;
}

static void on_closed(void *user) {
    td_loop_stop(user);
}

static void close_log(struct td_loop *loop, struct td_log *log) {
    td_log_close(log, on_closed, loop);
    td_loop_run(loop);
    td_loop_free(loop);
}

static void read_all(struct bench *b) {
    static const struct td_log_reader_fns fns = {.record = on_record, .error = on_error};
    struct td_log_reader *readers[TD_LOG_PARTITIONS_MAX];
    struct reader x = {.bench = b};
    struct td_log *log = open_log(b, &x.loop);
    uint32_t n = td_log_partitions(log);
    for (uint32_t p = 0; p < n; p++) {
        readers[p] = td_log_read(log, p, TD_LOG_FROM_START, &fns, &x);
    }
    td_loop_run(x.loop);
    print(&x);
    for (uint32_t p = 0; p < n; p++) {
        td_log_reader_close(readers[p]);
    }
    close_log(x.loop, log);
}

// ---- the writer ----

struct writer {
    struct bench *bench;
    struct td_loop *loop;
    struct td_timer *wait;
    struct td_log *log;
    struct source source;
    struct td_buf record;
    uint64_t sent, answered;
    enum phase phase;
    int64_t until_ns;
    int64_t phase_ns;
    uint32_t partitions;
};

static void on_appended(void *user, const struct td_log_result *result);

static void append(struct writer *w, uint32_t partition) {
    struct td_err err;
    w->source.header.attempt_term = w->phase;
    w->source.header.attempt = (uint64_t)td_clock_ns();
    w->source.header.index = w->sent++;
    td_buf_clear(&w->record);
    td_rollout_record_encode(&w->source.record, &w->record);
    struct td_log_append a = {.partition = partition,
                              .bytes = w->record.data,
                              .n = w->record.len,
                              .done = on_appended,
                              .user = w};
    if (td_log_append(w->log, &a, &err) != TD_OK) {
        fail(err.msg);
    }
}

static void send_more(struct writer *w) {
    uint64_t window = w->phase == FLOOD ? WINDOW : 1;
    if (w->phase != END && td_clock_ns() >= w->until_ns && w->sent == w->answered) {
        if (atomic_load(&w->bench->seen_count) < w->sent) {
            td_timer_start(w->wait, CATCH_UP_MS);
            return;
        }
        w->phase++;
        w->until_ns = td_clock_ns() + w->phase_ns;
        for (uint32_t p = 0; w->phase == END && p < w->partitions; p++) {
            append(w, p);
        }
    }
    while (w->phase != END && td_clock_ns() < w->until_ns && w->sent - w->answered < window) {
        append(w, (uint32_t)(w->sent % w->partitions));
    }
    if (w->sent == w->answered && w->phase == END) {
        td_loop_stop(w->loop);
    }
}

static void on_wait(void *user) {
    send_more(user);
}

static void on_appended(void *user, const struct td_log_result *result) {
    struct writer *w = user;
    if (result->outcome != TD_LOG_APPENDED) {
        fail(result->err->msg);
    }
    w->answered++;
    send_more(w);
}

static void write_all(struct bench *b) {
    struct writer *w = td_alloc(sizeof *w);
    w->bench = b;
    w->log = open_log(b, &w->loop);
    w->wait = td_timer_new(w->loop, on_wait, w);
    w->partitions = td_log_partitions(w->log);
    source_init(&w->source, b);
    w->phase_ns = 1000000000 * (int64_t)b->set[SECONDS].value;
    w->until_ns = td_clock_ns() + w->phase_ns;
    send_more(w);
    td_loop_run(w->loop);
    td_timer_close(w->wait);
    close_log(w->loop, w->log);
    td_buf_fini(&w->record);
    td_free((void *)(uintptr_t)w->source.record.tok);
    td_free((void *)(uintptr_t)w->source.record.logp);
    td_free((void *)(uintptr_t)w->source.record.loss_mask);
    td_free((void *)(uintptr_t)w->source.record.reward);
    td_free(w);
}

static void *read_thread(void *user) {
    read_all(user);
    return NULL;
}

static void measure(struct bench *b) {
    struct td_err err;
    pthread_t reader;
    b->seen_count = 0;
    b->id = (td_mix64((uint64_t)td_clock_ns()) ^ b->bytes) | 1;
    td_logs_rollout_name(b->id, b->name);
    if (td_logs_create(&b->logs, b->name, b->id, (uint32_t)b->set[PARTITIONS].value, &err) !=
        TD_OK) {
        fail(err.msg);
    }
    if (pthread_create(&reader, NULL, read_thread, b) != 0) {
        fail("no thread");
    }
    write_all(b);
    pthread_join(reader, NULL);
    if (td_logs_delete(&b->logs, b->name, &err) != TD_OK) {
        fail(err.msg);
    }
}

int main(int argc, char **argv) {
    struct bench b = {.set = {{"seconds", 4, 1, 3600},
                              {"partitions", 4, 1, TD_LOG_PARTITIONS_MAX},
                              {"fsync", 1, 0, 1}}};
    settings_parse("file|kafka FOLDER|HOST:PORT", b.set, SETTINGS, argc, argv);
    bool kafka = strcmp(argv[1], "kafka") == 0;
    if (!kafka && strcmp(argv[1], "file") != 0) {
        fail("the kinds are file and kafka");
    }
    b.logs = (struct td_logs){.kind = kafka ? TD_LOGS_KAFKA : TD_LOGS_FILE,
                              .folder = argv[2],
                              .brokers = argv[2],
                              .prefix = "bench",
                              .fsync = b.set[FSYNC].value != 0,
                              .timeout_ms = 30000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        b.bytes = sizes[i];
        measure(&b);
    }
    return 0;
}
