// Matrix products of the cpu backend against OpenBLAS, which is loaded at run time if it is there:
// bench_gemm [threads [isa]]. Prints a Markdown table of GFLOP/s, ours / theirs (ratio). The best
// of several rounds in turns counts, since the machine is seldom alone.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "lib/base/mem.h"
#include "lib/base/rng.h"
#include "workers/backend/backend.h"

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112, ROUNDS = 7 };

typedef void (*sgemm_fn)(int order, int ta, int tb, int m, int n, int k, float alpha,
                         const float *a, int lda, const float *b, int ldb, float beta, float *c,
                         int ldc);

struct peer { // OpenBLAS
    sgemm_fn sgemm;
    const char *core;
};

struct product {
    struct td_backend *be;
    struct peer peer;
    struct td_gemm_args args;
    int threads;
};

static double seconds(int threads) { // one thread: its own time, so that neighbours count less
    struct timespec t;
    clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static struct peer peer_load(int threads) {
    unsetenv("OPENBLAS_CORETYPE");
    unsetenv("OPENBLAS_L2_SIZE");
    struct peer peer = {0};
    void *lib = dlopen("libopenblas.so.0", RTLD_NOW);
    if (!lib) {
        printf("OpenBLAS is not installed: %s\n", dlerror());
        return peer;
    }
    void (*set_threads)(int) = (void (*)(int))dlsym(lib, "openblas_set_num_threads");
    char *(*core)(void) = (char *(*)(void))dlsym(lib, "openblas_get_corename");
    set_threads(threads);
    peer.sgemm = (sgemm_fn)dlsym(lib, "cblas_sgemm");
    peer.core = core();
    return peer;
}

static void ours(struct product *p) {
    p->be->ops->gemm(p->be, &p->args);
}

static void theirs(struct product *p) {
    const struct td_gemm_args *a = &p->args;
    int k = (int)(a->kind == TD_GEMM_TN ? a->a.rows : a->a.cols);
    p->peer.sgemm(ROW_MAJOR, a->kind == TD_GEMM_TN ? TRANS : NO_TRANS,
                  a->kind == TD_GEMM_NT ? TRANS : NO_TRANS, (int)a->c.rows, (int)a->c.cols, k, 1,
                  a->a.p, (int)a->a.ld, a->b.p, (int)a->b.ld, a->acc ? 1 : 0, a->c.p, (int)a->c.ld);
}

static double time_of(struct product *p, void (*run)(struct product *p), int times) {
    double start = seconds(p->threads);
    for (int i = 0; i < times; i++) {
        run(p);
    }
    return (seconds(p->threads) - start) / times;
}

static void cell(struct product *p, double flops) {
    int times = (int)(1e8 / flops) + 1;
    double best = 1e9, peer_best = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        double t = time_of(p, ours, times);
        best = t < best ? t : best;
        if (p->peer.sgemm) {
            t = time_of(p, theirs, times);
            peer_best = t < peer_best ? t : peer_best;
        }
    }
    printf(" %.1f / %.1f (%.2f) |", flops / best * 1e-9, flops / peer_best * 1e-9,
           peer_best / best);
    fflush(stdout);
}

static struct td_tensor filled(struct td_backend *be, struct td_rng *rng, int64_t rows,
                               int64_t cols) {
    float *p = be->ops->alloc(be, (size_t)(rows * cols) * sizeof *p);
    for (int64_t i = 0; i < rows * cols; i++) {
        p[i] = (float)(td_rng_unit(rng) - 0.5);
    }
    return td_tensor_of(be, p, rows, cols);
}

static const int rows_of_m[] = {1, 2, 4, 8, 64, 256, 2048};
enum { COLUMNS = sizeof rows_of_m / sizeof *rows_of_m, M_MAX = 2048 };

static void heading(const char *title) {
    printf("\n| %s |", title);
    for (int i = 0; i < COLUMNS; i++) {
        printf(" M=%d |", rows_of_m[i]);
    }
    printf("\n|---|");
    for (int i = 0; i < COLUMNS; i++) {
        printf("---|");
    }
    printf("\n");
}

// kind NT: C[M,N] = A[M,K] B[N,K]ᵀ; NN: B[K,N]; TN: C[N,K] += A[M,N]ᵀ B[M,K], M tokens.
static void line(struct td_backend *be, struct peer peer, enum td_gemm_kind kind, int threads,
                 const int shape[2]) {
    struct td_rng rng = {1};
    int64_t n = shape[0], k = shape[1];
    bool nt = kind == TD_GEMM_NT, tn = kind == TD_GEMM_TN;
    struct td_tensor a = filled(be, &rng, M_MAX, tn ? n : k);
    struct td_tensor b = filled(be, &rng, tn ? M_MAX : nt ? n : k, tn || nt ? k : n);
    struct td_tensor c = filled(be, &rng, tn ? n : M_MAX, tn ? k : n);
    void *packed = NULL;
    if (nt) {
        packed = be->ops->alloc(be, be->ops->gemm_prepared_bytes(be, n, k));
        be->ops->gemm_prepare(be, &b, packed);
    }
    printf("| %d x %d |", (int)n, (int)k);
    for (int i = 0; i < COLUMNS; i++) {
        int64_t m = rows_of_m[i];
        struct product p = {.be = be, .peer = peer, .threads = threads};
        p.args = (struct td_gemm_args){.kind = kind, .a = a, .b = b, .c = c, .packed = packed};
        p.args.acc = tn;
        p.args.a.rows = m;
        *(tn ? &p.args.b.rows : &p.args.c.rows) = m;
        if (n > 40000 && m > 256) {
            printf(" - |");
            continue;
        }
        cell(&p, 2.0 * (double)m * (double)n * (double)k);
    }
    printf("\n");
    be->ops->release(be, a.p);
    be->ops->release(be, b.p);
    be->ops->release(be, c.p);
    be->ops->release(be, packed);
}

int main(int argc, char **argv) {
    static const int shapes[][2] = {{256, 256},  {768, 256},  {256, 768},   {576, 576},
                                    {1536, 576}, {576, 1536}, {2048, 2048}, {49152, 576}};
    int threads = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 1;
    struct td_backend *be = NULL;
    struct td_err err;
    if (td_backend_cpu_new(threads, argc > 2 ? argv[2] : NULL, &be, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    struct peer peer = peer_load(threads);
    printf("GFLOP/s, ours / OpenBLAS (ratio); %d threads; OpenBLAS kernels: %s\n", threads,
           peer.core ? peer.core : "none");
    static const char *titles[] = {"NT, N x K", "NN, N x K", "TN, N x K, M tokens"};
    for (int kind = TD_GEMM_NT; kind <= TD_GEMM_TN; kind++) {
        heading(titles[kind]);
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            line(be, peer, (enum td_gemm_kind)kind, threads, shapes[i]);
        }
    }
    td_backend_free(be);
    return 0;
}
