// The promise of cpu: bits depend on an element's inputs only. Not on the instruction set, the
// threads, the rows beside it, how a batch is split, or where keys lie.
#include "tests/unit/backend/scripts.h"

static const struct shape large = {
    .t = 9, .h = 1100, .d = 64, .k = 2, .heads = 4, .f = 390, .v = 300};

static void assert_same_out(const char *what, const char *name, const struct script_run *a,
                            const struct script_run *b) {
    assert_int_equal(a->outs, b->outs);
    for (int i = 0; i < a->outs; i++) {
        size_t n = (size_t)(a->out[i].x.rows * a->out[i].x.cols);
        if (memcmp(a->out[i].values, b->out[i].values, n * sizeof(double)) != 0) {
            print_error("%s: %s, output %d of T=%d, h=%d\n", what, name, i, (int)a->s.t,
                        (int)a->s.h);
            fail();
        }
    }
}

static struct script_run whole(struct td_backend *be, const struct shape *s, script fn) {
    struct script_run r = {.be = be, .s = *s, .only = -1, .rng = {5}};
    run_script(&r, fn);
    return r;
}

enum { VARIANTS_MAX = 9 };

struct variant {
    struct td_backend *be;
    char name[32];
};

static int variants_new(struct variant *v) {
    static const char *isas[] = {"scalar", "avx2", "avx512"};
    int n = 0;
    FOR_EACH(isa, isas) {
        for (int threads = 1; threads <= 3; threads++) {
            struct td_backend *be = cpu_new(threads, *isa);
            if (!be) {
                break;
            }
            v[n].be = be;
            snprintf(v[n++].name, sizeof v->name, "%s, %d threads", *isa, threads);
        }
    }
    return n;
}

static void test_bits_equal_for_isas_and_threads(void **state) {
    (void)state;
    struct variant v[VARIANTS_MAX];
    int n = variants_new(v), shape_count = sizeof shapes / sizeof *shapes;
    for (int i = 0; i <= shape_count; i++) {
        const struct shape *s = i < shape_count ? &shapes[i] : &large;
        FOR_EACH(row, scripts) {
            struct script_run first = whole(v[0].be, s, row->run);
            for (int j = 1; j < n; j++) {
                struct script_run other = whole(v[j].be, s, row->run);
                assert_same_out(v[j].name, row->name, &first, &other);
                run_free(&other);
            }
            run_free(&first);
        }
    }
    for (int j = 0; j < n; j++) {
        td_backend_free(v[j].be);
    }
}

// Every token alone gives what it gave in company.
static void token_alone(struct td_backend *be, const struct script_row *row,
                        const struct shape *s) {
    struct script_run all = whole(be, s, row->run);
    for (int t = 0; t < s->t; t += 1 + (int)s->t / 5) {
        struct script_run one = {.be = be, .s = *s, .only = t, .rng = {5}};
        run_script(&one, row->run);
        for (int i = 0; i < all.outs; i++) {
            int64_t cols = all.out[i].x.cols;
            if (all.out[i].per_token && memcmp(all.out[i].values + t * cols, one.out[i].values,
                                               (size_t)cols * sizeof(double)) != 0) {
                print_error("%s: token %d of %d alone\n", row->name, t, (int)s->t);
                fail();
            }
        }
        run_free(&one);
    }
    run_free(&all);
}

static void test_bits_of_a_token_alone_and_in_company(void **state) {
    (void)state;
    struct td_backend *be = cpu_new(2, NULL);
    FOR_EACH(row, scripts) {
        if (!row->per_token) {
            continue;
        }
        FOR_EACH(s, shapes) {
            token_alone(be, row, s);
        }
        token_alone(be, row, &large);
    }
    td_backend_free(be);
}

// M = 1 .. 40 covers every tile height and every count of panels at once.
static void test_bits_of_a_row_for_every_row_count(void **state) {
    (void)state;
    static const char *isas[] = {"scalar", "avx2", "avx512"};
    FOR_EACH(isa, isas) {
        struct td_backend *be = cpu_new(2, *isa);
        if (!be) {
            continue;
        }
        struct shape s = large;
        s.t = 40;
        s.h = 70;
        s.f = 270;
        struct script_run all = whole(be, &s, script_gemm_nt_prepared);
        struct script_run again = {.be = be, .s = s, .only = -1, .rng = {5}};
        struct td_tensor x = in(&again, 40, s.h, 1);
        struct td_gemm_args a = {.kind = TD_GEMM_NT, .a = x, .b = in(&again, s.f, s.h, 0.3)};
        a.bias = in(&again, 1, s.f, 1);
        a.c = in(&again, 40, s.f, 1);
        void *packed = own(&again, be->ops->alloc(be, be->ops->gemm_prepared_bytes(be, s.f, s.h)));
        be->ops->gemm_prepare(be, &a.b, packed);
        a.packed = packed;
        for (int64_t m = 1; m <= 40; m++) {
            a.a.rows = a.c.rows = m;
            be->ops->gemm(be, &a);
            for (int64_t i = 0; i < m * s.f; i++) {
                double got = get(be, a.c.p, i / s.f * a.c.ld + i % s.f);
                assert_memory_equal(&got, &all.out[0].values[i], sizeof got);
            }
        }
        for (int i = 0; i < again.owned_count; i++) {
            be->ops->release(be, again.owned[i]);
        }
        run_free(&all);
        td_backend_free(be);
    }
}

// One sum over tokens, taken in one piece or in several.
struct sums {
    struct td_tensor dy, x, rstd, w, dx, dw, db, dnorm, dembed;
    const int32_t *ids;
};

static struct td_tensor cut(struct td_tensor x, int64_t lo, int64_t n) {
    x.p = (float *)x.p + lo * x.ld;
    x.rows = n;
    return x;
}

static void add_piece(struct td_backend *be, const struct sums *s, int64_t lo, int64_t n) {
    be->ops->gemm(be, &(struct td_gemm_args){.kind = TD_GEMM_TN,
                                             .a = cut(s->dy, lo, n),
                                             .b = cut(s->x, lo, n),
                                             .c = s->dw,
                                             .acc = true});
    be->ops->bias_grad(be, &(struct td_bias_grad_args){.dy = cut(s->dy, lo, n), .db = s->db});
    be->ops->rmsnorm_bwd(be, &(struct td_rmsnorm_bwd_args){.dy = cut(s->dy, lo, n),
                                                           .x = cut(s->x, lo, n),
                                                           .w = s->w,
                                                           .rstd = cut(s->rstd, lo, n),
                                                           .dx = cut(s->dx, lo, n),
                                                           .dw = s->dnorm});
    be->ops->embed_bwd(
        be, &(struct td_embed_args){.w = s->dembed, .y = cut(s->dy, lo, n), .ids = s->ids + lo});
}

static void script_sums(struct script_run *r) {
    struct sums s = {.ids = ints(r, r->s.t, 5, false)};
    s.dy = in(r, r->s.t, r->s.h, 1);
    s.x = in(r, r->s.t, r->s.h, 1);
    s.rstd = in(r, r->s.t, 1, 1);
    s.w = in(r, 1, r->s.h, 1);
    s.dx = in(r, r->s.t, r->s.h, 1);
    s.dw = out(r, r->s.h, r->s.h);
    s.db = out(r, 1, r->s.h);
    s.dnorm = out(r, 1, r->s.h);
    s.dembed = out(r, 5, r->s.h);
    for (int64_t t = 0; t < r->s.t; t++) { // one column, no gaps, as rstd has
        put(r->be, s.rstd.p, t, 0.5 + 0.001 * (double)t);
    }
    s.rstd.ld = 1;
    int64_t piece = r->s.f; // tokens in a piece
    for (int64_t lo = 0; lo < r->s.t; lo += piece) {
        add_piece(r->be, &s, lo, r->s.t - lo < piece ? r->s.t - lo : piece);
    }
}

static void test_bits_of_sums_over_split_batches(void **state) {
    (void)state;
    static const struct {
        int64_t tokens, pieces[4];
    } rows[] = {{8, {8, 4, 2, 1}}, {800, {800, 400, 385, 3}}};
    struct td_backend *be = cpu_new(2, NULL);
    FOR_EACH(row, rows) {
        struct shape s = {.t = row->tokens, .h = 70, .f = row->pieces[0]};
        struct script_run one = whole(be, &s, script_sums);
        for (int i = 1; i < 4; i++) {
            s.f = row->pieces[i];
            struct script_run many = whole(be, &s, script_sums);
            assert_same_out("split batch", "sums", &one, &many);
            run_free(&many);
        }
        run_free(&one);
    }
    td_backend_free(be);
}

enum { PAGES = 64, TOKENS = 37 };

// Sequences of TOKENS, 1 and 20 tokens through pages, `chunk` tokens a step, all sequences in each.
static void paged(struct td_backend *be, const struct td_attn_args *a, int page_tokens, int chunk,
                  struct td_tensor o) {
    int stride = (TOKENS + page_tokens - 1) / page_tokens;
    int64_t width = (int64_t)a->kv_heads * a->head_dim;
    float *pages = be->ops->alloc(be, (size_t)(PAGES * 2 * page_tokens * width) * sizeof(float));
    int32_t *table = td_alloc_array((size_t)(a->batch * stride), sizeof *table);
    for (int i = 0; i < a->batch * stride; i++) {
        table[i] = (i * 29 + 7) % PAGES;
    }
    for (int32_t done = 0; done < TOKENS; done += chunk) {
        for (int b = 0; b < a->batch; b++) {
            int32_t length = a->cu[b + 1] - a->cu[b],
                    n = length - done < chunk ? length - done : chunk;
            if (n <= 0) {
                continue;
            }
            int64_t slot[TOKENS];
            for (int32_t i = 0; i < n; i++) {
                int32_t at = done + i;
                slot[i] =
                    (int64_t)table[b * stride + at / page_tokens] * page_tokens + at % page_tokens;
            }
            int64_t row = a->cu[b] + done;
            be->ops->kv_store(be, &(struct td_kv_store_args){.k = cut(a->k, row, n),
                                                             .v = cut(a->v, row, n),
                                                             .pages = pages,
                                                             .slot = slot,
                                                             .page_tokens = page_tokens,
                                                             .kv_heads = a->kv_heads,
                                                             .head_dim = a->head_dim});
            be->ops->attn_paged(be,
                                &(struct td_attn_paged_args){.q = cut(a->q, row, n),
                                                             .o = cut(o, row, n),
                                                             .pages = pages,
                                                             .table = table + b * stride,
                                                             .table_stride = stride,
                                                             .qcu = (const int32_t[]){0, n},
                                                             .kvlen = (const int32_t[]){done + n},
                                                             .batch = 1,
                                                             .heads = a->heads,
                                                             .kv_heads = a->kv_heads,
                                                             .head_dim = a->head_dim,
                                                             .page_tokens = page_tokens,
                                                             .scale = a->scale});
        }
    }
    be->ops->release(be, pages);
    td_free(table);
}

static void test_bits_of_attention_packed_and_paged(void **state) {
    (void)state;
    static const struct {
        int heads, kv_heads, head_dim;
    } rows[] = {{6, 2, 12}, {3, 1, 64}, {4, 4, 16}, {1, 1, 80}, {20, 1, 32}};
    static const int32_t cu[] = {0, TOKENS, TOKENS + 1, TOKENS + 21};
    struct td_backend *be = cpu_new(2, NULL);
    FOR_EACH(row, rows) {
        struct script_run r = {.be = be, .rng = {9}};
        int64_t t = cu[3], q = (int64_t)row->heads * row->head_dim,
                kv = (int64_t)row->kv_heads * row->head_dim;
        struct td_attn_args a = {.q = in(&r, t, q, 1),
                                 .cu = cu,
                                 .batch = 3,
                                 .heads = row->heads,
                                 .kv_heads = row->kv_heads,
                                 .head_dim = row->head_dim,
                                 .scale = 0.2};
        a.k = in(&r, t, kv, 1);
        a.v = in(&r, t, kv, 1);
        a.o = in(&r, t, q, 1);
        be->ops->attn_fwd(be, &a);
        struct td_tensor o = in(&r, t, q, 1);
        for (int chunk = 1; chunk <= TOKENS; chunk += 12) {
            paged(be, &a, 4, chunk, o);
            for (int64_t i = 0; i < t; i++) {
                assert_memory_equal(cut(o, i, 1).p, cut(a.o, i, 1).p, (size_t)q * sizeof(float));
            }
            paged(be, &a, 16, chunk, o);
            for (int64_t i = 0; i < t; i++) {
                assert_memory_equal(cut(o, i, 1).p, cut(a.o, i, 1).p, (size_t)q * sizeof(float));
            }
        }
        for (int i = 0; i < r.owned_count; i++) {
            be->ops->release(be, r.owned[i]);
        }
    }
    td_backend_free(be);
}

// A digest is a sum: of parts in any order, and it sees place, name and sign of zero.
static void test_bits_digest(void **state) {
    (void)state;
    struct td_backend *be = cpu_new(2, NULL), *plain = cpu_new(1, "scalar");
    struct script_run r = {.be = be, .rng = {3}};
    struct td_tensor x = in(&r, 3, 9000, 1);
    uint64_t all = 0, parts = 0, other = 0, moved = 0, zero = 0;
    struct td_digest_args a = {.x = x, .name = 77, .out = &all};
    be->ops->digest(be, &a);
    for (int64_t i = 2; i >= 0; i--) {
        a = (struct td_digest_args){.x = cut(x, i, 1), .name = 77, .out = &parts};
        a.first_index = (uint64_t)(i * 9000);
        plain->ops->digest(plain, &a);
    }
    assert_true(all == parts && all != 0);
    a = (struct td_digest_args){.x = x, .name = 78, .out = &other};
    be->ops->digest(be, &a);
    a = (struct td_digest_args){.x = x, .name = 77, .first_index = 1, .out = &moved};
    be->ops->digest(be, &a);
    ((float *)x.p)[5] = 0.0f;
    a = (struct td_digest_args){.x = x, .name = 77, .out = &zero};
    be->ops->digest(be, &a);
    uint64_t minus = 0;
    ((float *)x.p)[5] = -0.0f;
    a.out = &minus;
    be->ops->digest(be, &a);
    assert_true(all != other && all != moved && zero != minus);
    be->ops->release(be, r.owned[0]);
    td_backend_free(be);
    td_backend_free(plain);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits_equal_for_isas_and_threads),
        cmocka_unit_test(test_bits_of_a_token_alone_and_in_company),
        cmocka_unit_test(test_bits_of_a_row_for_every_row_count),
        cmocka_unit_test(test_bits_of_sums_over_split_batches),
        cmocka_unit_test(test_bits_of_attention_packed_and_paged),
        cmocka_unit_test(test_bits_digest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
