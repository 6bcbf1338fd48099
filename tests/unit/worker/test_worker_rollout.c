// The rollout seat of a real worker: weights, sequences, results, and what is refused.
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "tests/unit/engine/batch_of.h"
#include "tests/unit/worker/client.h"
#include "workers/weights.h"

enum { VERSIONS = 2, PROMPT = 5, SAMPLES = 3, NEW_TOKENS = 12, SEQUENCES_MAX = 8 };

static struct tiny_job job;
static uint64_t digests[VERSIONS];       // of versions (0, 0) and (0, 1), made by a train worker
static struct td_weights_server *server; // of these two
static const int32_t prompt[PROMPT] = {17, 30, 11, 21, 60};

// From the train worker to the test, which goes on serving it.
static void take_snapshot(struct client *c, uint64_t at, uint64_t digest) {
    int fd = -1;
    const char *address = client_attach(c)->weights_address;
    const struct td_weights_want want = {.sources = &address,
                                         .count = 1,
                                         .step = at,
                                         .digest = digest,
                                         .deadline_ms = td_clock_ms() + CLIENT_WAIT_MS};
    assert_int_equal(td_weights_pull(&want, &fd, NULL), TD_OK);
    assert_int_equal(td_weights_serve(server, at, digest, fd, NULL), TD_OK);
    digests[at] = digest;
    close(fd);
}

static int make_job(void **state) {
    (void)state;
    struct client c;
    struct batch_of x;
    int fd = -1;
    tiny_job_new(&job, TD_JOB_GRPO, NULL);
    char *path = tiny_job_path(&job, "test.weights");
    assert_int_equal(td_weights_server_new(path, NULL, &server, NULL), TD_OK);
    td_free(path);
    client_start(&c, &job, 60);
    client_attach(&c);
    client_setup(&c, "actor", 1);
    Tandem__Worker__Load load = TANDEM__WORKER__LOAD__INIT;
    load.generation = 1;
    const td_frame *r =
        client_get(&c, FRAME(load, LOAD, &load), -1, TANDEM__WORKER__FRAME__BODY_DIGESTED);
    take_snapshot(&c, 0, r->digested->weight_digest);
    batch_of_fill(&x, TINY_JOB_VOCAB, 1, 1, 5);
    assert_int_equal(td_batch_write(&x.b, &fd, NULL), TD_OK);
    Tandem__Worker__Key key = TANDEM__WORKER__KEY__INIT;
    key.generation = 1;
    key.ref_offset = 1;
    Tandem__Worker__Prep prep = TANDEM__WORKER__PREP__INIT;
    Tandem__Worker__Step step = TANDEM__WORKER__STEP__INIT;
    Tandem__Worker__Finish finish = TANDEM__WORKER__FINISH__INIT;
    prep.key = step.key = finish.key = &key;
    step.k = 1;
    step.deadline_ms = 30000;
    client_get(&c, FRAME(prep, PREP, &prep), fd, TANDEM__WORKER__FRAME__BODY_STEPPED);
    client_get(&c, FRAME(step, STEP, &step), -1, TANDEM__WORKER__FRAME__BODY_STEPPED);
    r = client_get(&c, FRAME(finish, FINISH, &finish), -1, TANDEM__WORKER__FRAME__BODY_DIGESTED);
    take_snapshot(&c, 1, r->digested->weight_digest);
    close(fd);
    client_end(&c);
    return 0;
}

static int remove_job(void **state) {
    (void)state;
    td_weights_server_free(server);
    tiny_job_free(&job);
    return 0;
}

static void done(struct client *c, td_frame *f, int fd) {
    client_get(c, f, fd, TANDEM__WORKER__FRAME__BODY_DONE);
}

static td_frame *prepare_frame_of(uint64_t lineage, uint64_t step, uint64_t digest, td_frame *f) {
    static Tandem__Worker__Version version;
    static Tandem__Worker__Prepare m;
    static char *sources[1];
    tandem__worker__version__init(&version);
    tandem__worker__prepare__init(&m);
    version.lineage = lineage;
    version.step = step;
    sources[0] = (char *)td_weights_server_address(server);
    m.version = &version;
    m.digest = digest;
    m.sources = sources;
    m.n_sources = 1;
    m.deadline_ms = CLIENT_WAIT_MS / 2;
    tandem__worker__frame__init(f);
    f->body_case = TANDEM__WORKER__FRAME__BODY_PREPARE;
    f->prepare = &m;
    return f;
}

static td_frame *prepare_frame(uint64_t step, uint64_t digest, td_frame *f) {
    return prepare_frame_of(0, step, digest, f);
}

static td_frame *flip_frame(uint64_t step, td_frame *f) {
    static Tandem__Worker__Version version;
    static Tandem__Worker__Flip m;
    tandem__worker__version__init(&version);
    tandem__worker__flip__init(&m);
    version.step = step;
    m.version = &version;
    tandem__worker__frame__init(f);
    f->body_case = TANDEM__WORKER__FRAME__BODY_FLIP;
    f->flip = &m;
    return f;
}

static void hold(struct client *c, uint64_t step) {
    td_frame f;
    done(c, prepare_frame(step, digests[step], &f), -1);
    done(c, flip_frame(step, &f), -1);
}

static void start(struct client *c) {
    client_start(c, &job, 60);
    client_attach(c);
    client_setup(c, "rollout", 1);
}

static void open_prompt(struct client *c, uint64_t sequence) {
    Tandem__Worker__Open open = TANDEM__WORKER__OPEN__INIT;
    Tandem__Worker__Extend extend = TANDEM__WORKER__EXTEND__INIT;
    open.sequence = extend.sequence = sequence;
    extend.ids = (int32_t *)prompt;
    extend.n_ids = PROMPT;
    done(c, FRAME(open, OPEN, &open), -1);
    done(c, FRAME(extend, EXTEND, &extend), -1);
}

static Tandem__Worker__Generate generate_of(uint64_t sequence) {
    Tandem__Worker__Generate m = TANDEM__WORKER__GENERATE__INIT;
    m.sequence = sequence;
    m.key = 1000 + sequence % 10;
    m.temperature = 1;
    m.top_p = 1;
    m.top_k = -1;
    m.max_new_tokens = NEW_TOKENS;
    return m;
}

// A prompt and its forks, generated: the results in the order of sequences.
static void run_group(struct client *c, uint64_t first, struct result *out) {
    uint64_t children[SAMPLES - 1];
    for (uint64_t i = 1; i < SAMPLES; i++) {
        children[i - 1] = first + i;
    }
    open_prompt(c, first);
    Tandem__Worker__Fork fork = TANDEM__WORKER__FORK__INIT;
    fork.sequence = first;
    fork.children = children;
    fork.n_children = SAMPLES - 1;
    done(c, FRAME(fork, FORK, &fork), -1);
    c->result_count = 0;
    for (uint64_t i = 0; i < SAMPLES; i++) {
        Tandem__Worker__Generate m = generate_of(first + i);
        done(c, FRAME(generate, GENERATE, &m), -1);
    }
    client_wait_results(c, SAMPLES);
    for (int i = 0; i < SAMPLES; i++) {
        uint64_t at = c->results[i].sequence - first;
        assert_true(at < SAMPLES);
        out[at] = c->results[i];
    }
}

static void test_rollout_generates(void **state) {
    (void)state;
    struct client c;
    start(&c);
    hold(&c, 0);
    struct result one[SAMPLES], two[SAMPLES];
    run_group(&c, 10, one);
    run_group(&c, 20, two); // the same keys: the same samples
    for (int i = 0; i < SAMPLES; i++) {
        const struct result *r = &one[i];
        bool stopped = r->ids[r->n - 1] == TINY_JOB_EOS;
        assert_true(r->n >= 1 && r->n <= NEW_TOKENS && r->step == 0 && r->lineage == 0);
        assert_int_equal(r->finish, stopped ? TANDEM__WORKER__FINISHED__STOP_TOKEN
                                            : TANDEM__WORKER__FINISHED__LENGTH);
        assert_true(stopped || r->n == NEW_TOKENS);
        assert_int_equal(two[i].n, r->n);
        assert_memory_equal(two[i].ids, r->ids, (size_t)r->n * sizeof *r->ids);
        assert_memory_equal(two[i].logp, r->logp, (size_t)r->n * sizeof *r->logp);
    }
    assert_true(one[0].n != one[1].n || memcmp(one[0].ids, one[1].ids, sizeof one[0].ids) != 0);
    uint64_t tokens = 0;
    for (int i = 0; i < SAMPLES; i++) {
        tokens += 2 * (uint64_t)one[i].n;
    }
    const Tandem__Worker__Status *s = client_attach(&c);
    assert_int_equal(s->open_sequences, 0); // each was closed when it was given
    assert_int_equal(s->generated_tokens, tokens);
    client_end(&c);
}

// One engine: scoring the whole sequence gives the log-probs of sampling, bit for bit.
static void test_rollout_scores_as_sampled(void **state) {
    (void)state;
    struct client c;
    start(&c);
    hold(&c, 1);
    struct result r[SAMPLES];
    run_group(&c, 10, r);
    for (int i = 0; i < SAMPLES; i++) {
        int32_t ids[PROMPT + NEW_TOKENS];
        memcpy(ids, prompt, sizeof prompt);
        memcpy(ids + PROMPT, r[i].ids, (size_t)r[i].n * sizeof *ids);
        Tandem__Worker__Score m = TANDEM__WORKER__SCORE__INIT;
        m.ids = ids;
        m.n_ids = (size_t)(PROMPT + r[i].n);
        m.temperature = 1;
        const td_frame *f =
            client_get(&c, FRAME(score, SCORE, &m), -1, TANDEM__WORKER__FRAME__BODY_SCORED);
        assert_int_equal(f->scored->n_logp, m.n_ids - 1);
        for (int k = 0; k < r[i].n; k++) {
            assert_true((float)f->scored->logp[PROMPT - 1 + k] == r[i].logp[k]);
        }
    }
    client_end(&c);
}

// Another server says that it is what was asked for.
static void refuses_what_is_served(struct client *c) {
    struct td_weights_server *bad = NULL;
    char *path = tiny_job_path(&job, "bad.weights");
    const char *good = td_weights_server_address(server);
    td_frame f;
    int fd = -1, junk = memfd_create("junk", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(td_weights_server_new(path, NULL, &bad, NULL), TD_OK);
    const struct td_weights_want want = {.sources = &good,
                                         .count = 1,
                                         .digest = digests[0],
                                         .deadline_ms = td_clock_ms() + CLIENT_WAIT_MS};
    assert_int_equal(td_weights_pull(&want, &fd, NULL), TD_OK);
    assert_int_equal(td_weights_serve(bad, 0, digests[0] ^ 1, fd, NULL), TD_OK);
    assert_int_equal(td_weights_serve(bad, 1, digests[1], fd, NULL), TD_OK);
    char *address = (char *)td_weights_server_address(bad);
    prepare_frame(0, digests[0] ^ 1, &f)->prepare->sources[0] = address;
    client_refused(c, &f, -1, TD_ECORRUPT, "snapshot digest is");
    prepare_frame(1, digests[1], &f)->prepare->sources[0] = address;
    client_refused(c, &f, -1, TD_ECORRUPT, "snapshot of version (0, 0)");
    assert_int_equal(td_weights_serve(bad, 0, digests[0], junk, NULL), TD_OK);
    prepare_frame(0, digests[0], &f)->prepare->sources[0] = address;
    client_refused(c, &f, -1, TD_ECLOSED, "snapshot has 0 bytes");
    struct stat st;
    assert_true(fstat(fd, &st) == 0 && ftruncate(junk, st.st_size) == 0);
    client_refused(c, &f, -1, TD_ECORRUPT, "sealed");
    td_weights_server_free(bad);
    close(junk);
    close(fd);
    td_free(path);
}

static void test_rollout_weights(void **state) {
    (void)state;
    struct client c;
    td_frame f;
    start(&c);
    assert_false(client_attach(&c)->has_weights);
    open_prompt(&c, 1);
    Tandem__Worker__Generate g = generate_of(1);
    client_refused(&c, FRAME(generate, GENERATE, &g), -1, TD_ECONFLICT, "no weights yet");
    client_refused(&c, flip_frame(0, &f), -1, TD_ENOENT, "was not prepared");
    refuses_what_is_served(&c);
    prepare_frame(0, digests[0], &f)->prepare->version = NULL;
    client_refused(&c, &f, -1, TD_EINVAL, "without a version");
    prepare_frame(0, digests[0], &f)->prepare->n_sources = 0;
    client_refused(&c, &f, -1, TD_ECLOSED, "there are no sources");
    client_refused(&c, prepare_frame(0, 1, &f), -1, TD_ENOENT, "not held");
    prepare_frame(0, 1, &f)->prepare->deadline_ms = 0;
    client_refused(&c, &f, -1, TD_ETIMEOUT, "got 0 bytes");
    client_refused(&c, flip_frame(0, &f), -1, TD_ENOENT, "was not prepared");
    done(&c, prepare_frame(0, digests[0], &f), -1);
    client_refused(&c, flip_frame(0, &f), -1, TD_ECONFLICT, "1 sequences are open");
    Tandem__Worker__Close all = TANDEM__WORKER__CLOSE__INIT;
    all.all = true;
    done(&c, FRAME(close, CLOSE, &all), -1);
    done(&c, flip_frame(0, &f), -1);
    const Tandem__Worker__Status *s = client_attach(&c);
    assert_true(s->has_weights && s->weights->step == 0);
    assert_int_equal(s->held_digest, digests[0]);
    client_end(&c);
}

// Weights change only when nothing is open; afterwards results name the new version.
static void test_rollout_flip_drains(void **state) {
    (void)state;
    struct client c;
    td_frame f;
    struct result before[SAMPLES], after[SAMPLES];
    start(&c);
    hold(&c, 0);
    run_group(&c, 10, before);
    open_prompt(&c, 5);
    done(&c, prepare_frame(1, digests[1], &f), -1);
    client_refused(&c, flip_frame(1, &f), -1, TD_ECONFLICT, "sequences are open");
    done(&c, flip_frame(0, &f), -1); // it is there already
    uint64_t open[] = {5, 99};
    Tandem__Worker__Close m = TANDEM__WORKER__CLOSE__INIT;
    m.sequences = open;
    m.n_sequences = 2; // one that is not open is no error
    done(&c, FRAME(close, CLOSE, &m), -1);
    done(&c, flip_frame(1, &f), -1);
    run_group(&c, 20, after);
    assert_int_equal(after[0].step, 1);
    bool differ = false;
    for (int i = 0; i < SAMPLES; i++) {
        differ = differ || memcmp(before[i].logp, after[i].logp, sizeof before[i].logp) != 0;
    }
    assert_true(differ);
    // A FORK gives the same weights another name; they come from another machine, so it seems.
    char *remote = td_asprintf("elsewhere unix:/nowhere%s",
                               strstr(td_weights_server_address(server), " tcp:"));
    prepare_frame_of(3, 1, digests[1], &f)->prepare->sources[0] = remote;
    done(&c, &f, -1);
    td_free(remote);
    flip_frame(1, &f)->flip->version->lineage = 3;
    done(&c, &f, -1);
    const Tandem__Worker__Status *s = client_attach(&c);
    assert_true(s->weights->lineage == 3 && s->weights->step == 1);
    assert_int_equal(s->held_digest, digests[1]);
    client_end(&c);
}

static void test_rollout_refuses(void **state) {
    (void)state;
    struct client c;
    start(&c);
    hold(&c, 0);
    open_prompt(&c, 1);
    Tandem__Worker__Open open = TANDEM__WORKER__OPEN__INIT;
    open.sequence = 1;
    client_refused(&c, FRAME(open, OPEN, &open), -1, TD_ECONFLICT, "open already");
    int32_t bad_id = TINY_JOB_VOCAB;
    Tandem__Worker__Extend extend = TANDEM__WORKER__EXTEND__INIT;
    extend.sequence = 2;
    client_refused(&c, FRAME(extend, EXTEND, &extend), -1, TD_ENOENT, "sequence 2 is not open");
    extend.sequence = 1;
    extend.ids = &bad_id;
    extend.n_ids = 1;
    client_refused(&c, FRAME(extend, EXTEND, &extend), -1, TD_EINVAL, "token id 98");
    Tandem__Worker__Generate g = generate_of(2);
    client_refused(&c, FRAME(generate, GENERATE, &g), -1, TD_ENOENT, "not open");
    g = generate_of(1);
    g.top_p = 0;
    client_refused(&c, FRAME(generate, GENERATE, &g), -1, TD_EINVAL, "top_p");
    uint64_t children[SEQUENCES_MAX];
    for (uint64_t i = 0; i < SEQUENCES_MAX; i++) {
        children[i] = 100 + i;
    }
    Tandem__Worker__Fork fork = TANDEM__WORKER__FORK__INIT;
    fork.sequence = 1;
    fork.children = children;
    fork.n_children = SEQUENCES_MAX;
    client_refused(&c, FRAME(fork, FORK, &fork), -1, TD_ELIMIT, "8 sequences are open");
    Tandem__Worker__Score score = TANDEM__WORKER__SCORE__INIT;
    int32_t id = 3;
    score.ids = &id;
    score.n_ids = 1;
    score.temperature = 1;
    client_refused(&c, FRAME(score, SCORE, &score), -1, TD_EINVAL, "two tokens");
    Tandem__Worker__Load load = TANDEM__WORKER__LOAD__INIT;
    client_refused(&c, FRAME(load, LOAD, &load), -1, TD_EUNSUPPORTED, "rollout seat");
    Tandem__Worker__Flip flip = TANDEM__WORKER__FLIP__INIT;
    client_refused(&c, FRAME(flip, FLIP, &flip), -1, TD_EINVAL, "without a version");
    client_end(&c);
}

static void test_rollout_refuses_setup(void **state) {
    (void)state;
    struct client c;
    int32_t stop_ids[17] = {0};
    uint8_t allowed[TINY_JOB_VOCAB + 1] = {1};
    char *model = tiny_job_path(&job, "model");
    client_start(&c, &job, 60);
    client_attach(&c);
    Tandem__Worker__Setup m = TANDEM__WORKER__SETUP__INIT;
    m.job = TINY_JOB_ID;
    m.spec.data = job.canonical.data;
    m.spec.len = job.canonical.len;
    m.role = (char *)"rollout";
    m.threads = 1;
    m.model_dir = model;
    m.stop_ids = stop_ids;
    m.n_stop_ids = 17;
    client_refused(&c, FRAME(setup, SETUP, &m), -1, TD_ELIMIT, "17 end-of-text tokens");
    m.n_stop_ids = 1;
    m.allowed_ids.data = allowed;
    m.allowed_ids.len = sizeof allowed;
    client_refused(&c, FRAME(setup, SETUP, &m), -1, TD_EINVAL, "vocab_size is 98");
    client_setup(&c, "rollout", 1);
    client_end(&c);
    td_free(model);
}

// A controller that comes back finds the weights and no sequences; what was generated for the one
// before is given to nobody.
static void test_rollout_attached_again(void **state) {
    (void)state;
    struct client c;
    struct result want[SAMPLES], got[SAMPLES];
    start(&c);
    hold(&c, 1);
    run_group(&c, 10, want);
    for (int turn = 0; turn < 3; turn++) {
        open_prompt(&c, 40);
        Tandem__Worker__Generate g = generate_of(40);
        done(&c, FRAME(generate, GENERATE, &g), -1);
        c.result_count = 0;
        client_disconnect(&c);
        client_connect(&c);
        const Tandem__Worker__Status *s = client_attach(&c);
        assert_true(s->set_up && s->has_weights && s->weights->step == 1);
        assert_int_equal(s->open_sequences, 0);
        assert_int_equal(s->held_digest, digests[1]);
    }
    client_wait_beats(&c, 1);
    assert_int_equal(c.result_count, 0);
    run_group(&c, 10, got);
    assert_int_equal(got[2].n, want[2].n);
    assert_memory_equal(got[2].ids, want[2].ids, sizeof *want[2].ids * (size_t)want[2].n);
    client_end(&c);
}

// Sequences that were closed while they generated give no result, and heartbeats count the open.
static void test_rollout_close_while_generating(void **state) {
    (void)state;
    struct client c;
    start(&c);
    hold(&c, 0);
    open_prompt(&c, 1);
    open_prompt(&c, 2);
    Tandem__Worker__Generate g = generate_of(1);
    uint64_t one[] = {1};
    Tandem__Worker__Close m = TANDEM__WORKER__CLOSE__INIT;
    m.sequences = one;
    m.n_sequences = 1;
    kill(c.pid, SIGSTOP); // both wait when it goes on: not a step lies between
    client_send(&c, FRAME(generate, GENERATE, &g), -1);
    client_send(&c, FRAME(close, CLOSE, &m), -1);
    kill(c.pid, SIGCONT);
    c.seq--;
    client_reply(&c);
    c.seq++;
    client_reply(&c);
    g = generate_of(2);
    done(&c, FRAME(generate, GENERATE, &g), -1);
    client_wait_results(&c, 1);
    assert_int_equal(c.results[0].sequence, 2);
    open_prompt(&c, 3);
    g = generate_of(3);
    done(&c, FRAME(generate, GENERATE, &g), -1);
    client_wait_results(&c, 2);
    client_wait_beats(&c, 1);
    assert_int_equal(c.open_sequences, 0);
    assert_int_equal(c.result_count, 2);
    client_end(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rollout_generates),
        cmocka_unit_test(test_rollout_scores_as_sampled),
        cmocka_unit_test(test_rollout_weights),
        cmocka_unit_test(test_rollout_flip_drains),
        cmocka_unit_test(test_rollout_refuses),
        cmocka_unit_test(test_rollout_refuses_setup),
        cmocka_unit_test(test_rollout_attached_again),
        cmocka_unit_test(test_rollout_close_while_generating),
    };
    return cmocka_run_group_tests(tests, make_job, remove_job);
}
