// The train seat of a real worker: what a round does, what is refused, and that a controller which
// comes back finds everything as it was.
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/ipc/snapshot.h"
#include "tests/unit/engine/batch_of.h"
#include "tests/unit/worker/client.h"
#include "workers/weights.h"

enum { UPDATES = 4, REF = 4096, REF_CRC = 0xabc };

static struct tiny_job job;
static int batch_fd = -1;

static int make_job(void **state) {
    (void)state;
    struct batch_of x;
    tiny_job_new(&job, TD_JOB_SFT, NULL);
    batch_of_fill(&x, TINY_JOB_VOCAB, UPDATES, 1, 5);
    assert_int_equal(td_batch_write(&x.b, &batch_fd, NULL), TD_OK);
    return 0;
}

static int remove_job(void **state) {
    (void)state;
    close(batch_fd);
    tiny_job_free(&job);
    return 0;
}

struct digests {
    uint64_t weight, state, lineage, step;
    size_t metrics;
    double loss;
};

static struct digests digests_of(const td_frame *f) {
    const Tandem__Worker__Digested *d = f->digested;
    struct digests x = {d->weight_digest, d->state_digest, d->version->lineage,
                        d->version->step, d->n_metrics,    -1};
    for (size_t i = 0; i < d->n_metrics; i++) {
        if (strcmp(d->metrics[i]->name, "train/loss") == 0) {
            x.loss = d->metrics[i]->value;
        }
    }
    return x;
}

static void expect_equal(struct digests a, struct digests b) {
    assert_int_equal(a.weight, b.weight);
    assert_int_equal(a.state, b.state);
    assert_true(a.lineage == b.lineage && a.step == b.step && a.metrics == b.metrics);
    assert_true(a.loss == b.loss);
}

static Tandem__Worker__Key key_of(uint64_t generation, uint64_t round) {
    Tandem__Worker__Key key = TANDEM__WORKER__KEY__INIT;
    key.generation = generation;
    key.ref_offset = REF + (int64_t)round;
    key.ref_crc = REF_CRC;
    return key;
}

static void start(struct client *c) {
    client_start(c, &job, 60);
    client_attach(c);
    client_setup(c, "actor", 1);
}

static struct digests load(struct client *c, uint64_t generation, const char *folder) {
    Tandem__Worker__Load m = TANDEM__WORKER__LOAD__INIT;
    m.generation = generation;
    m.folder = (char *)folder;
    return digests_of(
        client_get(c, FRAME(load, LOAD, &m), -1, TANDEM__WORKER__FRAME__BODY_DIGESTED));
}

static void prep(struct client *c, uint64_t generation, uint64_t round) {
    Tandem__Worker__Key key = key_of(generation, round);
    Tandem__Worker__Prep m = TANDEM__WORKER__PREP__INIT;
    m.key = &key;
    m.round = round;
    const td_frame *f =
        client_get(c, FRAME(prep, PREP, &m), batch_fd, TANDEM__WORKER__FRAME__BODY_STEPPED);
    assert_int_equal(f->stepped->k, 0);
}

static void step(struct client *c, uint64_t generation, uint64_t round, uint32_t k) {
    Tandem__Worker__Key key = key_of(generation, round);
    Tandem__Worker__Step m = TANDEM__WORKER__STEP__INIT;
    m.key = &key;
    m.k = k;
    m.deadline_ms = 30000;
    const td_frame *f =
        client_get(c, FRAME(step, STEP, &m), -1, TANDEM__WORKER__FRAME__BODY_STEPPED);
    assert_int_equal(f->stepped->k, k);
    assert_true(f->stepped->n_metrics > 0);
}

static struct digests finish(struct client *c, uint64_t generation, uint64_t round) {
    Tandem__Worker__Key key = key_of(generation, round);
    Tandem__Worker__Finish m = TANDEM__WORKER__FINISH__INIT;
    m.key = &key;
    return digests_of(
        client_get(c, FRAME(finish, FINISH, &m), -1, TANDEM__WORKER__FRAME__BODY_DIGESTED));
}

static struct digests whole_round(struct client *c, uint64_t generation, uint64_t round) {
    prep(c, generation, round);
    for (uint32_t k = 1; k <= UPDATES; k++) {
        step(c, generation, round, k);
    }
    return finish(c, generation, round);
}

static struct digests digest(struct client *c) {
    Tandem__Worker__Digest m = TANDEM__WORKER__DIGEST__INIT;
    return digests_of(
        client_get(c, FRAME(digest, DIGEST, &m), -1, TANDEM__WORKER__FRAME__BODY_DIGESTED));
}

static Tandem__Worker__Save save_of(char *folder, uint64_t generation, uint64_t state_digest) {
    Tandem__Worker__Save m = TANDEM__WORKER__SAVE__INIT;
    m.folder = folder;
    m.generation = generation;
    m.state_digest = state_digest;
    return m;
}

static enum td_rc pull(struct client *c, uint64_t step, uint64_t digest, int *fd) {
    struct td_err err;
    const char *address = client_attach(c)->weights_address;
    const struct td_weights_want want = {.sources = &address,
                                         .count = 1,
                                         .step = step,
                                         .digest = digest,
                                         .deadline_ms = td_clock_ms() + CLIENT_WAIT_MS};
    return td_weights_pull(&want, fd, &err);
}

static void test_train_rounds_and_snapshots(void **state) {
    (void)state;
    struct client c;
    start(&c);
    struct digests base = load(&c, 1, ""), after[4];
    assert_true(base.step == 0 && base.metrics == 0);
    for (uint64_t r = 1; r <= 3; r++) {
        after[r] = whole_round(&c, 1, r);
        assert_int_equal(after[r].step, r);
        assert_true(after[r].weight != after[r - 1].weight || r == 1);
        assert_true(after[r].metrics >= 3 && after[r].loss > 0);
        expect_equal(digest(&c), after[r]);
    }
    assert_true(after[1].weight != base.weight);
    for (uint64_t step = 2; step <= 3; step++) { // the last two are served
        struct td_snapshot s = {0};
        int fd = -1;
        assert_int_equal(pull(&c, step, after[step].weight, &fd), TD_OK);
        assert_int_equal(td_snapshot_map(fd, &s, NULL), TD_OK);
        assert_true(s.step == step && s.digest == after[step].weight);
        td_snapshot_unmap(&s);
        close(fd);
    }
    int fd = -1;
    assert_int_equal(pull(&c, 1, after[1].weight, &fd), TD_ENOENT);
    assert_int_equal(pull(&c, 3, after[2].weight, &fd), TD_ENOENT);
    assert_int_equal(fd, -1);
    client_end(&c);
}

// The state on disk is the state: another process goes on from it with equal digests.
static void test_train_save_and_load(void **state) {
    (void)state;
    struct client a, b;
    start(&a);
    load(&a, 1, "");
    struct digests one = whole_round(&a, 1, 1);
    char *folder = tiny_job_path(&job, "saved");
    Tandem__Worker__Save save = save_of(folder, 1, one.state);
    const td_frame *f =
        client_get(&a, FRAME(save, SAVE, &save), -1, TANDEM__WORKER__FRAME__BODY_SAVED);
    assert_int_equal(f->saved->n_files, 3);
    for (size_t i = 0; i < f->saved->n_files; i++) {
        char *path = td_asprintf("%s/%s", folder, f->saved->files[i]->name);
        uint64_t found = 0, size = 0;
        assert_int_equal(td_file_digest(path, &found, &size, NULL), TD_OK);
        assert_true(found == f->saved->files[i]->digest && size == f->saved->files[i]->size);
        td_free(path);
    }
    client_refused(&a, FRAME(save, SAVE, &save), -1, TD_ECONFLICT, "exists already");
    struct digests two = whole_round(&a, 1, 2);
    client_end(&a);
    start(&b);
    struct digests loaded = load(&b, 7, folder);
    assert_true(loaded.weight == one.weight && loaded.state == one.state && loaded.step == 1);
    expect_equal(whole_round(&b, 7, 2), two);
    client_end(&b);
    td_free(folder);
}

static void test_train_user_export(void **state) {
    (void)state;
    struct client c;
    start(&c);
    struct digests base = load(&c, 1, "");
    char *folder = tiny_job_path(&job, "global_step_0"), *model = tiny_job_path(&job, "model");
    Tandem__Worker__Save save = save_of(folder, 1, base.state);
    save.user = true;
    save.source_dir = model;
    client_get(&c, FRAME(save, SAVE, &save), -1, TANDEM__WORKER__FRAME__BODY_SAVED);
    static const char *const names[] = {
        "actor/huggingface/config.json", "actor/huggingface/model.safetensors",
        "actor/huggingface/tokenizer.json", "actor/optimizer.safetensors"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = td_asprintf("%s/%s", folder, names[i]);
        assert_true(td_file_exists(path));
        td_free(path);
    }
    client_end(&c);
    td_free(folder);
    td_free(model);
}

// Whatever is refused leaves the worker as it was.
static void test_train_refuses(void **state) {
    (void)state;
    struct client c;
    start(&c);
    Tandem__Worker__Digest none = TANDEM__WORKER__DIGEST__INIT;
    client_refused(&c, FRAME(digest, DIGEST, &none), -1, TD_ECONFLICT, "nothing loaded");
    Tandem__Worker__Key key = key_of(1, 1);
    Tandem__Worker__Prep bad_prep = TANDEM__WORKER__PREP__INIT;
    bad_prep.key = &key;
    client_refused(&c, FRAME(prep, PREP, &bad_prep), batch_fd, TD_ECONFLICT, "generation 1");
    load(&c, 5, "");
    struct digests one = whole_round(&c, 5, 1);

    Tandem__Worker__Load bad_load = TANDEM__WORKER__LOAD__INIT;
    Tandem__Worker__Ring ring = TANDEM__WORKER__RING__INIT;
    for (uint64_t g = 0; g <= 5; g++) { // the initial state must not overwrite what is held
        bad_load.generation = ring.generation = g;
        client_refused(&c, FRAME(load, LOAD, &bad_load), -1, TD_ECONFLICT, "not above");
        client_refused(&c, FRAME(ring, RING, &ring), -1, TD_ECONFLICT, "not above");
        expect_equal(digest(&c), one);
    }
    key = key_of(4, 2);
    client_refused(&c, FRAME(prep, PREP, &bad_prep), batch_fd, TD_ECONFLICT, "generation 4");
    key = key_of(5, 2);
    client_refused(&c, FRAME(prep, PREP, &bad_prep), -1, TD_EINVAL, "without its batch");
    int junk = memfd_create("junk", MFD_CLOEXEC);
    client_refused(&c, FRAME(prep, PREP, &bad_prep), junk, TD_ECORRUPT, "batch");
    close(junk);
    bad_prep.key = NULL;
    client_refused(&c, FRAME(prep, PREP, &bad_prep), batch_fd, TD_EINVAL, "key");

    Tandem__Worker__Step bad_step = TANDEM__WORKER__STEP__INIT;
    Tandem__Worker__Finish bad_finish = TANDEM__WORKER__FINISH__INIT;
    bad_step.key = bad_finish.key = &key;
    bad_step.k = 1;
    client_refused(&c, FRAME(step, STEP, &bad_step), -1, TD_ECONFLICT, "is not prepped");
    expect_equal(digest(&c), one); // a stale Step does not take the version away
    prep(&c, 5, 2);
    bad_step.k = 2;
    client_refused(&c, FRAME(step, STEP, &bad_step), -1, TD_ECONFLICT, "update 2 after 0");
    client_refused(&c, FRAME(finish, FINISH, &bad_finish), -1, TD_ECONFLICT, "0 of 4");
    expect_equal(digest(&c), one);
    step(&c, 5, 2, 1);
    client_refused(&c, FRAME(digest, DIGEST, &none), -1, TD_ECONFLICT, "middle of a round");
    bad_step.k = 1;
    client_refused(&c, FRAME(step, STEP, &bad_step), -1, TD_ECONFLICT, "update 1 after 1");
    bad_prep.key = &key;
    key = key_of(5, 3); // sealed anew: half of it is applied, so the state is lost
    client_refused(&c, FRAME(prep, PREP, &bad_prep), batch_fd, TD_ECONFLICT, "1 of 4");
    bad_step.key = bad_finish.key = NULL;
    client_refused(&c, FRAME(step, STEP, &bad_step), -1, TD_EINVAL, "without a key");
    client_refused(&c, FRAME(finish, FINISH, &bad_finish), -1, TD_EINVAL, "without a key");
    Tandem__Worker__Open open = TANDEM__WORKER__OPEN__INIT;
    client_refused(&c, FRAME(open, OPEN, &open), -1, TD_EUNSUPPORTED, "train seat takes no frame");
    client_end(&c);
}

// A Save names what it means: a worker that was replaced meanwhile writes nothing.
static void test_train_refuses_to_save(void **state) {
    (void)state;
    struct client c;
    start(&c);
    char *folder = tiny_job_path(&job, "wrong");
    Tandem__Worker__Save save = save_of(folder, 0, 0);
    client_refused(&c, FRAME(save, SAVE, &save), -1, TD_ECONFLICT, "no version");
    struct digests base = load(&c, 2, "");
    const struct {
        uint64_t generation, digest;
    } bad[] = {{1, base.state}, {3, base.state}, {2, base.state + 1}, {2, base.weight}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        save = save_of(folder, bad[i].generation, bad[i].digest);
        save.user = i % 2;
        client_refused(&c, FRAME(save, SAVE, &save), -1, TD_ECONFLICT, "this worker holds");
    }
    prep(&c, 2, 1);
    step(&c, 2, 1, 1);
    save = save_of(folder, 2, base.state);
    client_refused(&c, FRAME(save, SAVE, &save), -1, TD_ECONFLICT, "no version");
    assert_false(td_file_exists(folder));
    client_end(&c);
    td_free(folder);
}

// A base that cannot be read leaves nothing loaded, and says so.
static void test_train_load_fails(void **state) {
    (void)state;
    struct client c;
    start(&c);
    struct digests base = load(&c, 1, "");
    Tandem__Worker__Load m = TANDEM__WORKER__LOAD__INIT;
    m.generation = 2;
    m.folder = (char *)"/nowhere";
    client_refused(&c, FRAME(load, LOAD, &m), -1, TD_ENOENT, "/nowhere");
    const Tandem__Worker__Status *s = client_attach(&c);
    assert_true(s->generation == 0 && !s->finished && !s->prepped);
    Tandem__Worker__Digest none = TANDEM__WORKER__DIGEST__INIT;
    client_refused(&c, FRAME(digest, DIGEST, &none), -1, TD_ECONFLICT, "nothing loaded");
    expect_equal(load(&c, 3, ""), base);
    client_end(&c);
}

static const Tandem__Worker__Status *again(struct client *c) {
    client_disconnect(c);
    client_connect(c);
    return client_attach(c);
}

// A controller that dies at any place of a round: the next one finds prep, updates and digests, and
// the round ends as if nothing had been.
static void test_train_attached_again(void **state) {
    (void)state;
    struct client c;
    start(&c);
    load(&c, 1, "");
    struct digests want = whole_round(&c, 1, 1);
    client_end(&c);

    start(&c);
    load(&c, 1, "");
    const Tandem__Worker__Status *s = again(&c);
    assert_true(s->set_up && s->job == TINY_JOB_ID && s->generation == 1 && !s->prepped);
    assert_true(s->finished && s->version->step == 0 && s->finished_ref_offset == -1);
    prep(&c, 1, 1);
    s = again(&c);
    assert_true(s->prepped && s->applied == 0 && s->updates == UPDATES && s->finished);
    assert_true(s->ref_offset == REF + 1 && s->ref_crc == REF_CRC);
    for (uint32_t k = 1; k <= UPDATES; k++) {
        step(&c, 1, 1, k);
        s = again(&c);
        assert_true(s->prepped && s->applied == k && !s->finished);
        assert_int_equal(s->version->step, 0);
    }
    struct digests got = finish(&c, 1, 1);
    expect_equal(got, want); // the metrics too: nobody else has seen those of the steps
    s = again(&c);
    assert_true(s->finished && !s->prepped && s->applied == 0 && s->version->step == 1);
    assert_true(s->weight_digest == want.weight && s->state_digest == want.state);
    assert_true(s->finished_ref_offset == REF + 1 && s->finished_ref_crc == REF_CRC);
    assert_int_equal(s->n_round_metrics, want.metrics);
    int fd = -1;
    assert_int_equal(pull(&c, 1, want.weight, &fd), TD_OK); // it serves on
    close(fd);
    client_end(&c);
}

// What was asked before the controller died is carried out, once.
static void test_train_requests_of_the_dead(void **state) {
    (void)state;
    struct client c;
    start(&c);
    load(&c, 1, "");
    prep(&c, 1, 1);
    Tandem__Worker__Key key = key_of(1, 1);
    Tandem__Worker__Step m = TANDEM__WORKER__STEP__INIT;
    m.key = &key;
    m.deadline_ms = 30000;
    for (m.k = 1; m.k <= 2; m.k++) {
        client_send(&c, FRAME(step, STEP, &m), -1);
    }
    m.k = 2; // and one that is refused
    client_send(&c, FRAME(step, STEP, &m), -1);
    const Tandem__Worker__Status *s = again(&c);
    assert_true(s->applied == 2 && s->prepped);
    client_end(&c);
}

// ---- two ranks ----

static int half_batch(uint32_t rank) {
    struct batch_of x;
    batch_of_fill(&x, TINY_JOB_VOCAB, UPDATES, 1, 5);
    for (uint32_t u = 0; u < UPDATES; u++) { // one row of each mini-batch of two
        x.mini[2 * u] += rank;
        x.mini[2 * u + 1] = x.mini[2 * u] + 1;
    }
    int fd = -1;
    assert_int_equal(td_batch_write(&x.b, &fd, NULL), TD_OK);
    return fd;
}

// Sends the same to both, then waits for both: a collective needs the other one.
static void both(struct client *c, td_frame *f, const int *fds,
                 Tandem__Worker__Frame__BodyCase body, struct digests *out) {
    for (int i = 0; i < 2; i++) {
        client_send(&c[i], f, fds ? fds[i] : -1);
    }
    for (int i = 0; i < 2; i++) {
        const td_frame *reply = client_reply(&c[i]);
        if (reply->body_case == TANDEM__WORKER__FRAME__BODY_ERROR) {
            fail_msg("rank %d: %s", i, reply->error->message);
        }
        assert_int_equal(reply->body_case, body);
        if (out) {
            out[i] = digests_of(reply);
        }
    }
}

static void test_train_two_ranks(void **state) {
    (void)state;
    struct client c[2];
    char *addresses[2];
    for (int i = 0; i < 2; i++) {
        client_start_at(&c[i], &job, i ? "one.sock" : "zero.sock", 60);
        client_attach(&c[i]);
        client_setup(&c[i], "actor", 2);
        addresses[i] = td_strdup(client_attach(&c[i])->ring_address);
    }
    int fds[2] = {half_batch(0), half_batch(1)};
    Tandem__Worker__Ring ring = TANDEM__WORKER__RING__INIT;
    ring.generation = 1;
    ring.addresses = addresses;
    ring.n_addresses = 2;
    ring.deadline_ms = 30000;
    both(c, FRAME(ring, RING, &ring), NULL, TANDEM__WORKER__FRAME__BODY_DONE, NULL);
    Tandem__Worker__Load m = TANDEM__WORKER__LOAD__INIT;
    m.generation = 1;
    both(c, FRAME(load, LOAD, &m), NULL, TANDEM__WORKER__FRAME__BODY_DIGESTED, NULL);
    Tandem__Worker__Key key = key_of(1, 1);
    Tandem__Worker__Prep p = TANDEM__WORKER__PREP__INIT;
    Tandem__Worker__Step s = TANDEM__WORKER__STEP__INIT;
    Tandem__Worker__Finish f = TANDEM__WORKER__FINISH__INIT;
    p.key = s.key = f.key = &key;
    s.deadline_ms = 30000;
    both(c, FRAME(prep, PREP, &p), fds, TANDEM__WORKER__FRAME__BODY_STEPPED, NULL);
    for (s.k = 1; s.k <= UPDATES; s.k++) {
        both(c, FRAME(step, STEP, &s), NULL, TANDEM__WORKER__FRAME__BODY_STEPPED, NULL);
    }
    struct digests got[2];
    both(c, FRAME(finish, FINISH, &f), NULL, TANDEM__WORKER__FRAME__BODY_DIGESTED, got);
    assert_true(got[0].weight == got[1].weight && got[0].state == got[1].state);
    // A rank whose partner does not come gives up at its deadline, unchanged but lost.
    key = key_of(1, 2);
    both(c, FRAME(prep, PREP, &p), fds, TANDEM__WORKER__FRAME__BODY_STEPPED, NULL);
    s.k = 1;
    s.deadline_ms = 300;
    client_send(&c[0], FRAME(step, STEP, &s), -1);
    const td_frame *late = client_reply(&c[0]);
    assert_int_equal(late->body_case, TANDEM__WORKER__FRAME__BODY_ERROR);
    assert_int_equal(late->error->code, TD_ETIMEOUT);
    assert_int_equal(client_attach(&c[0])->applied, 0);
    for (int i = 0; i < 2; i++) {
        client_end(&c[i]);
        td_free(addresses[i]);
        close(fds[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_train_rounds_and_snapshots),
        cmocka_unit_test(test_train_save_and_load),
        cmocka_unit_test(test_train_user_export),
        cmocka_unit_test(test_train_refuses),
        cmocka_unit_test(test_train_refuses_to_save),
        cmocka_unit_test(test_train_load_fails),
        cmocka_unit_test(test_train_attached_again),
        cmocka_unit_test(test_train_requests_of_the_dead),
        cmocka_unit_test(test_train_two_ranks),
    };
    return cmocka_run_group_tests(tests, make_job, remove_job);
}
