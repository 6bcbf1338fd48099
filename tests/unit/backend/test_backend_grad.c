// Every backward op of ref against finite differences of its forward op: loss = Σ c·out for fixed
// random c, each input element moved by ±step.
#include "tests/unit/backend/fixture.h"

enum { INPUTS_MAX = 4, OUT_MAX = 4 };

struct check { // one op: its inputs, its outputs and their weights, its gradients
    struct script_run r;
    struct td_tensor x[INPUTS_MAX], dx[INPUTS_MAX], y[OUT_MAX], dy[OUT_MAX];
    int inputs, outputs;
    const int32_t *ids;
};

static const struct shape shape = {.t = 7, .h = 6, .d = 4, .k = 2, .heads = 4, .f = 5, .v = 9};
static const int32_t cu[] = {0, 3, 4, 7};

static double loss(struct check *c, void (*forward)(struct check *c)) {
    forward(c);
    double sum = 0;
    for (int i = 0; i < c->outputs; i++) {
        for (int64_t j = 0; j < c->y[i].rows * c->y[i].cols; j++) {
            int64_t row = j / c->y[i].cols, col = j % c->y[i].cols;
            sum += get(c->r.be, c->y[i].p, row * c->y[i].ld + col) *
                   get(c->r.be, c->dy[i].p, row * c->dy[i].ld + col);
        }
    }
    return sum;
}

static void add_input(struct check *c, int64_t rows, int64_t cols) {
    c->x[c->inputs] = in(&c->r, rows, cols, 1);
    c->dx[c->inputs] = in(&c->r, rows, cols, 1);
    c->r.be->ops->fill(c->r.be, &(struct td_fill_args){.y = c->dx[c->inputs]});
    c->inputs++;
}

static void add_output(struct check *c, int64_t rows, int64_t cols) {
    c->y[c->outputs] = in(&c->r, rows, cols, 1);
    c->dy[c->outputs++] = in(&c->r, rows, cols, 1);
}

static void embed_init(struct check *c) {
    add_input(c, shape.v, shape.h);
    add_output(c, shape.t, shape.h);
    c->ids = ints(&c->r, shape.t, shape.v, false);
}
static void embed_fwd(struct check *c) {
    c->r.be->ops->embed_fwd(c->r.be,
                            &(struct td_embed_args){.w = c->x[0], .y = c->y[0], .ids = c->ids});
}
static void embed_bwd(struct check *c) {
    c->r.be->ops->embed_bwd(c->r.be,
                            &(struct td_embed_args){.w = c->dx[0], .y = c->dy[0], .ids = c->ids});
}

static void gather_fwd(struct check *c) {
    c->r.be->ops->rows_gather(c->r.be,
                              &(struct td_rows_args){.x = c->x[0], .y = c->y[0], .idx = c->ids});
}
static void gather_bwd(struct check *c) {
    c->r.be->ops->rows_scatter_add(
        c->r.be, &(struct td_rows_args){.x = c->dx[0], .y = c->dy[0], .idx = c->ids});
}

static void rmsnorm_init(struct check *c) {
    add_input(c, shape.t, shape.h);
    add_input(c, 1, shape.h);
    add_output(c, shape.t, shape.h);
    c->dx[2] = in(&c->r, 1, shape.t, 1); // rstd, of the last forward
}
static void rmsnorm_fwd(struct check *c) {
    c->r.be->ops->rmsnorm_fwd(
        c->r.be, &(struct td_rmsnorm_args){
                     .x = c->x[0], .w = c->x[1], .y = c->y[0], .rstd = c->dx[2], .eps = 1e-5});
}
static void rmsnorm_bwd(struct check *c) {
    c->r.be->ops->rmsnorm_bwd(c->r.be, &(struct td_rmsnorm_bwd_args){.dy = c->dy[0],
                                                                     .x = c->x[0],
                                                                     .w = c->x[1],
                                                                     .rstd = c->dx[2],
                                                                     .dx = c->dx[0],
                                                                     .dw = c->dx[1],
                                                                     .acc = true});
}

static void linear_init(struct check *c) {
    add_input(c, shape.t, shape.h);
    add_input(c, shape.f, shape.h);
    add_input(c, 1, shape.f);
    add_output(c, shape.t, shape.f);
}
static void linear_fwd(struct check *c) {
    c->r.be->ops->gemm(
        c->r.be,
        &(struct td_gemm_args){
            .kind = TD_GEMM_NT, .a = c->x[0], .b = c->x[1], .bias = c->x[2], .c = c->y[0]});
}
static void linear_bwd(struct check *c) {
    const struct td_backend_ops *ops = c->r.be->ops;
    ops->gemm(c->r.be, &(struct td_gemm_args){
                           .kind = TD_GEMM_NN, .a = c->dy[0], .b = c->x[1], .c = c->dx[0]});
    ops->gemm(c->r.be,
              &(struct td_gemm_args){
                  .kind = TD_GEMM_TN, .a = c->dy[0], .b = c->x[0], .c = c->dx[1], .acc = true});
    ops->bias_grad(c->r.be, &(struct td_bias_grad_args){.dy = c->dy[0], .db = c->dx[2]});
}

static void rope_init(struct check *c) {
    add_input(c, shape.t, shape.heads * shape.d);
    add_output(c, shape.t, shape.heads * shape.d);
    c->x[1] = in(&c->r, shape.v, shape.d, 1); // the table: d/2 cosines, d/2 sines
    c->ids = ints(&c->r, shape.t, shape.v, false);
}
static void rope_of(struct check *c, struct td_tensor from, struct td_tensor to, bool inverse) {
    c->r.be->ops->axpby(c->r.be, &(struct td_axpby_args){.x = from, .y = to, .alpha = 1});
    c->r.be->ops->rope(c->r.be, &(struct td_rope_args){.x = to,
                                                       .tab = &c->x[1],
                                                       .pos = c->ids,
                                                       .heads = (int)shape.heads,
                                                       .head_dim = (int)shape.d,
                                                       .inverse = inverse});
}
static void rope_fwd(struct check *c) {
    rope_of(c, c->x[0], c->y[0], false);
}
static void rope_bwd(struct check *c) {
    rope_of(c, c->dy[0], c->dx[0], true);
}

static void attn_init(struct check *c) {
    add_input(c, shape.t, shape.heads * shape.d);
    add_input(c, shape.t, shape.k * shape.d);
    add_input(c, shape.t, shape.k * shape.d);
    add_output(c, shape.t, shape.heads * shape.d);
    c->y[1] = in(&c->r, shape.t, shape.heads, 1); // lse
}
static struct td_attn_args attn_args(const struct check *c) {
    return (struct td_attn_args){.q = c->x[0],
                                 .k = c->x[1],
                                 .v = c->x[2],
                                 .o = c->y[0],
                                 .lse = c->y[1],
                                 .cu = cu,
                                 .batch = 3,
                                 .heads = (int)shape.heads,
                                 .kv_heads = (int)shape.k,
                                 .head_dim = (int)shape.d,
                                 .scale = 0.6};
}
static void attn_fwd(struct check *c) {
    struct td_attn_args a = attn_args(c);
    c->r.be->ops->attn_fwd(c->r.be, &a);
}
static void attn_bwd(struct check *c) {
    c->r.be->ops->attn_bwd(
        c->r.be,
        &(struct td_attn_bwd_args){
            .fwd = attn_args(c), .d_o = c->dy[0], .dq = c->dx[0], .dk = c->dx[1], .dv = c->dx[2]});
}

static void swiglu_init(struct check *c) {
    add_input(c, shape.t, 2 * shape.f);
    add_output(c, shape.t, shape.f);
}
static void swiglu_fwd(struct check *c) {
    c->r.be->ops->swiglu_fwd(c->r.be, &(struct td_swiglu_args){.gu = c->x[0], .y = c->y[0]});
}
static void swiglu_bwd(struct check *c) {
    c->r.be->ops->swiglu_bwd(
        c->r.be, &(struct td_swiglu_args){.gu = c->x[0], .dy = c->dy[0], .dgu = c->dx[0]});
}

static void logprob_init(struct check *c) {
    add_input(c, shape.t, shape.h);
    add_input(c, shape.v, shape.h);
    add_output(c, shape.t, 1); // logp
    add_output(c, shape.t, 1); // entropy
    c->y[2] = in(&c->r, shape.t, 1, 1);
    c->ids = ints(&c->r, shape.t, shape.v, false);
}
static struct td_logprob_args logprob_args(const struct check *c) {
    return (struct td_logprob_args){.x = c->x[0],
                                    .w = c->x[1],
                                    .target = c->ids,
                                    .inv_temp = 1.4,
                                    .chunk = 2,
                                    .logp = c->y[0],
                                    .entropy = c->y[1],
                                    .lse = c->y[2]};
}
static void logprob_fwd(struct check *c) {
    struct td_logprob_args a = logprob_args(c);
    c->r.be->ops->logprob_fwd(c->r.be, &a);
}
static void logprob_bwd(struct check *c) {
    c->r.be->ops->logprob_bwd(c->r.be, &(struct td_logprob_bwd_args){.fwd = logprob_args(c),
                                                                     .dlogp = c->dy[0],
                                                                     .dentropy = c->dy[1],
                                                                     .dx = c->dx[0],
                                                                     .dw = c->dx[1]});
}

static const struct {
    const char *name;
    void (*init)(struct check *c), (*forward)(struct check *c), (*backward)(struct check *c);
} ops[] = {
    {"embed", embed_init, embed_fwd, embed_bwd},
    {"gather, scatter_add", embed_init, gather_fwd, gather_bwd},
    {"rmsnorm", rmsnorm_init, rmsnorm_fwd, rmsnorm_bwd},
    {"gemm NT: NN, TN, bias_grad", linear_init, linear_fwd, linear_bwd},
    {"rope", rope_init, rope_fwd, rope_bwd},
    {"attention", attn_init, attn_fwd, attn_bwd},
    {"swiglu", swiglu_init, swiglu_fwd, swiglu_bwd},
    {"logprob", logprob_init, logprob_fwd, logprob_bwd},
};

static void check_input(struct check *c, int i, void (*forward)(struct check *c),
                        const char *name) {
    const double step = 1e-5;
    for (int64_t j = 0; j < c->x[i].rows * c->x[i].cols; j++) {
        int64_t row = j / c->x[i].cols, col = j % c->x[i].cols, at = row * c->x[i].ld + col;
        double x = get(c->r.be, c->x[i].p, at);
        put(c->r.be, c->x[i].p, at, x + step);
        double up = loss(c, forward);
        put(c->r.be, c->x[i].p, at, x - step);
        double down = loss(c, forward);
        put(c->r.be, c->x[i].p, at, x);
        double numeric = (up - down) / (2 * step);
        double exact = get(c->r.be, c->dx[i].p, row * c->dx[i].ld + col);
        if (!(fabs(numeric - exact) <= 1e-7 * (1 + fabs(exact)))) {
            print_error("%s: input %d [%d,%d]: %.10g, by differences %.10g\n", name, i, (int)row,
                        (int)col, exact, numeric);
            fail();
        }
    }
}

static void test_grad_by_finite_differences(void **state) {
    (void)state;
    struct td_backend *be = td_backend_ref_new();
    FOR_EACH(op, ops) {
        struct check c = {.r = {.be = be, .s = shape, .only = -1, .rng = {21}}};
        op->init(&c);
        op->forward(&c);
        op->backward(&c);
        for (int i = 0; i < c.inputs; i++) {
            check_input(&c, i, op->forward, op->name);
        }
        for (int i = 0; i < c.r.owned_count; i++) {
            be->ops->release(be, c.r.owned[i]);
        }
    }
    td_backend_free(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_grad_by_finite_differences)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
