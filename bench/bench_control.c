// Load on a coordinator: N controllers, one of them the train member, each with W workers that only
// let time pass, at one job of groups; every member reports twice a second and whenever something
// changed, as real ones do. Prints a line of JSON. Order latency is the time from the call that
// sends a report until the orders that it caused are with its member:
//   answer  every report and its answer, what is new in it or not
//   lease   those answers that bring the member a new unit
//   step    from the trainer's report of a finished step, through the COMMIT in the journal, to
//   each
//           rollout member's order to take the new weights
// cpu_percent is the coordinator's, of one processor.
//
//   bench_control ADDRESS LOG_FOLDER PID [controllers=16] [workers=8] [seconds=20] [warmup=5]
//                 [group_ms=8000] [train_ms=500] [batch=0: two groups a worker]
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/control.h"
#include "bench/settings.h"
#include "lib/base/buf.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "proto/jobs.pb-c.h"

enum { CONTROLLERS, WORKERS, SECONDS, WARMUP, GROUP_MS, TRAIN_MS, BATCH, SETTINGS };
enum { START_MS = 120000, LOOK_MS = 50 };

const Tandem__Journal__DataIndex control_index = {
    PROTOBUF_C_MESSAGE_INIT(&tandem__journal__data_index__descriptor), 200000, 1, 2, 3, 4, 0};

struct bench {
    struct control control;
    struct setting set[SETTINGS];
    int pid;
    struct td_rpc_channel *channel;
    struct td_timer *timer;
    int64_t began_ms, submitted_ms, measure_ns;
    double cpu_s;     // of the coordinator, when the measurement began
    uint64_t commits; // likewise
    bool submitted;
};

void control_fail(const char *what) {
    fprintf(stderr, "bench_control: %s\n", what);
    exit(1);
}

void control_note(struct control *c, struct latencies *to, int64_t since_ns) {
    if (c->measuring) {
        TD_GROW(to->v, to->cap, to->count + 1);
        to->v[to->count++] = td_clock_ns() - since_ns;
    }
}

// ---- the coordinator's process ----

static bool read_proc(int pid, const char *name, char *text, size_t size) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, size - 1, f) : 0;
    text[n] = 0;
    if (f) {
        fclose(f);
    }
    return n > 0;
}

static double cpu_seconds(int pid) {
    char text[1024];
    const char *at = read_proc(pid, "stat", text, sizeof text) ? strrchr(text, ')') : NULL;
    unsigned long user = 0, kernel = 0;
    if (!at ||
        sscanf(at, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &kernel) != 2) {
        control_fail("the coordinator is gone");
    }
    return (double)(user + kernel) / (double)sysconf(_SC_CLK_TCK);
}

static double status_mib(int pid, const char *key) {
    char text[4096];
    const char *at = read_proc(pid, "status", text, sizeof text) ? strstr(text, key) : NULL;
    return at ? (double)strtol(at + strlen(key), NULL, 10) / 1024 : 0;
}

// ---- the job ----

static void on_submitted(void *user, const struct td_rpc_outcome *outcome) {
    (void)user;
    if (outcome->status != TD_RPC_OK) {
        control_fail(outcome->text);
    }
}

static void submit(struct bench *b) {
    static char text[] = "{data: {train_files: /none/train.jsonl, max_prompt_length: 512,"
                         " max_response_length: 1024}, actor_rollout_ref: {model: {path: /none},"
                         " actor: {ppo_max_token_len_per_gpu: 16384, use_dynamic_bsz: true},"
                         " rollout: {n: 8, temperature: 1.0}},"
                         " trainer: {total_epochs: 1000, total_training_steps: 1000000},"
                         " tandem: {kind: grpo, rollout: {unit_groups: 1},"
                         " rewards: [{data_source: none, grader: exact}]}}";
    char batch[64], mini[64], *overrides[] = {batch, mini};
    snprintf(batch, sizeof batch, "data.train_batch_size=%ld", b->set[BATCH].value);
    snprintf(mini, sizeof mini, "actor_rollout_ref.actor.ppo_mini_batch_size=%ld",
             b->set[BATCH].value);
    Tandem__V1__SubmitJobRequest request = TANDEM__V1__SUBMIT_JOB_REQUEST__INIT;
    request.request_id = "bench";
    request.job_file = text;
    request.name = "bench";
    request.n_overrides = 2;
    request.overrides = overrides;
    td_rpc_request(b->channel, &(struct td_rpc_request_opts){.path = "/tandem.v1.Jobs/SubmitJob",
                                                             .request = &request.base,
                                                             .out = &tandem__v1__job__descriptor,
                                                             .deadline_ms = START_MS,
                                                             .done = on_submitted,
                                                             .user = b});
    b->submitted = true;
}

// ---- the run ----

static size_t greeted(const struct control *c) {
    size_t n = c->trainer.member.greeted;
    for (size_t i = 0; i < c->roller_count; i++) {
        n += c->rollers[i].member.greeted;
    }
    return n;
}

static bool all_work(const struct control *c) {
    bool all = c->trainer.reports > 0;
    for (size_t i = 0; i < c->roller_count; i++) {
        all = all && c->rollers[i].attempt > 0;
    }
    return all;
}

static uint64_t steps_of(const struct control *c) {
    const struct td_job_state *j =
        td_journal_job(&c->trainer.follow.state, c->trainer.member.serves);
    return j && j->has_head ? j->head.step : 0;
}

static void begin_measuring(struct bench *b) {
    b->control.measuring = true;
    b->measure_ns = td_clock_ns();
    b->cpu_s = cpu_seconds(b->pid);
    b->commits = steps_of(&b->control);
}

static void print(const char *name, struct latencies *l) {
    printf(",\"%s\":{\"n\":%zu,", name, l->count);
    print_percentiles(l->v, l->count);
    printf("}");
}

static void finish(struct bench *b) {
    struct control *c = &b->control;
    double s = (double)(td_clock_ns() - b->measure_ns) / 1e9;
    c->measuring = false;
    printf("{\"controllers\":%zu,\"workers\":%u,\"batch\":%ld,\"seconds\":%.1f,\"steps\":%" PRIu64
           ",\"reports_s\":%.0f,\"report_bytes\":%.0f,\"orders_s\":%.0f",
           c->roller_count + 1, c->workers, b->set[BATCH].value, s, steps_of(c) - b->commits,
           (double)c->reports / s, (double)c->report_bytes / (double)(c->reports + !c->reports),
           (double)c->orders / s);
    print("answer", &c->answers);
    print("lease", &c->leases);
    print("step", &c->steps);
    printf(",\"cpu_percent\":%.1f,\"rss_mib\":%.1f,\"rss_max_mib\":%.1f}\n",
           100 * (cpu_seconds(b->pid) - b->cpu_s) / s, status_mib(b->pid, "VmRSS:"),
           status_mib(b->pid, "VmHWM:"));
    fflush(stdout);
    _exit(0); // nothing of it is wanted any more
}

static void on_timer(void *user) {
    struct bench *b = user;
    int64_t now = td_clock_ms();
    if (!b->submitted_ms && !b->submitted && greeted(&b->control) == b->control.roller_count + 1) {
        submit(b);
    } else if (!b->submitted_ms && all_work(&b->control)) {
        b->submitted_ms = now;
    } else if (!b->submitted_ms && now - b->began_ms > START_MS) {
        fprintf(stderr, "bench_control: %zu members greeted, %s\n", greeted(&b->control),
                b->submitted ? "submitted" : "not submitted");
        control_fail("the members did not come to work");
    } else if (b->submitted_ms && !b->control.measuring &&
               now - b->submitted_ms >= 1000 * b->set[WARMUP].value) {
        begin_measuring(b);
    } else if (b->control.measuring &&
               td_clock_ns() - b->measure_ns >= 1000000000 * (int64_t)b->set[SECONDS].value) {
        finish(b);
    }
    td_timer_start(b->timer, LOOK_MS);
}

static void start(struct bench *b, const char *address, const char *log_folder) {
    struct control *c = &b->control;
    struct td_err err;
    if (td_loop_new(&c->loop, &err) != TD_OK || td_rpc_new(c->loop, &c->rpc, &err) != TD_OK ||
        td_rpc_channel_new(c->rpc, address, NULL, &b->channel, &err) != TD_OK) {
        control_fail(err.msg);
    }
    c->trainer.member = (struct member){.control = c, .id = 1};
    trainer_start(&c->trainer, address, log_folder);
    c->rollers = td_alloc_array(c->roller_count, sizeof *c->rollers);
    for (size_t i = 0; i < c->roller_count; i++) {
        c->rollers[i].member = (struct member){.control = c, .id = i + 2};
        roller_start(&c->rollers[i], address);
    }
    b->began_ms = td_clock_ms();
    b->timer = td_timer_new(c->loop, on_timer, b);
    td_timer_start(b->timer, LOOK_MS);
}

int main(int argc, char **argv) {
    struct bench *b = td_alloc(sizeof *b);
    static const struct setting defaults[SETTINGS] = {
        {"controllers", 16, 2, 1000000}, {"workers", 8, 1, 1000000},
        {"seconds", 20, 1, 1000000},     {"warmup", 5, 0, 1000000},
        {"group_ms", 8000, 0, 1000000},  {"train_ms", 500, 0, 1000000},
        {"batch", 0, 0, 1000000}};
    memcpy(b->set, defaults, sizeof defaults);
    settings_parse("ADDRESS LOG_FOLDER PID", b->set, SETTINGS, argc, argv);
    b->pid = (int)strtol(argv[3], NULL, 10);
    struct control *c = &b->control;
    c->roller_count = (size_t)b->set[CONTROLLERS].value - 1;
    c->workers = (uint32_t)b->set[WORKERS].value;
    c->group_ms = b->set[GROUP_MS].value;
    c->train_ms = b->set[TRAIN_MS].value;
    c->rng.state = 1;
    if (b->set[BATCH].value == 0) {
        b->set[BATCH].value = 2 * (long)(c->roller_count * c->workers);
    }
    start(b, argv[1], argv[2]);
    td_loop_run(c->loop);
    return 1;
}
