// Every op of cpu against ref, over shapes that fit no vector, panel or block.
#include "tests/unit/backend/scripts.h"

static void compare(const struct script_row *row, const struct shape *s, struct td_backend *cpu,
                    struct td_backend *ref) {
    struct script_run a = {.be = ref, .s = *s, .only = -1, .rng = {11}};
    struct script_run b = {.be = cpu, .s = *s, .only = -1, .rng = {11}};
    run_script(&a, row->run);
    run_script(&b, row->run);
    assert_int_equal(a.outs, b.outs);
    for (int i = 0; i < a.outs; i++) {
        int64_t n = a.out[i].x.rows * a.out[i].x.cols;
        double largest = 0, worst = 0;
        for (int64_t j = 0; j < n; j++) {
            double off = fabs(a.out[i].values[j] - b.out[i].values[j]);
            largest = fmax(largest, fabs(a.out[i].values[j]));
            worst = off > worst || isnan(off) ? off : worst;
        }
        if (!(worst <= row->tolerance * largest)) {
            print_error("%s, output %d, T=%d: off by %g of %g\n", row->name, i, (int)s->t, worst,
                        largest);
            fail();
        }
    }
    run_free(&a);
    run_free(&b);
}

static void test_ops_cpu_agrees_with_ref(void **state) {
    (void)state;
    struct td_backend *cpu = cpu_new(2, NULL), *ref = td_backend_ref_new();
    FOR_EACH(s, shapes) {
        FOR_EACH(row, scripts) {
            compare(row, s, cpu, ref);
        }
    }
    td_backend_free(cpu);
    td_backend_free(ref);
}

static void test_ops_unknown_isa_is_refused(void **state) {
    (void)state;
    struct td_backend *be = NULL;
    struct td_err err = {0};
    assert_int_equal(td_backend_cpu_new(1, "mmx", &be, &err), TD_EUNSUPPORTED);
    assert_non_null(strstr(err.msg, "mmx"));
    assert_int_equal(td_backend_cpu_new(0, NULL, &be, &err), TD_EINVAL);
    assert_null(be);
}

static void test_ops_out_of_scratch_is_reported(void **state) {
    (void)state;
    struct td_backend *be = cpu_new(1, NULL);
    struct td_tensor x = td_tensor_of(be, be->ops->alloc(be, 4 * sizeof(float)), 2, 2);
    struct td_gemm_args a = {.kind = TD_GEMM_NN, .a = x, .b = x, .c = x};
    a.c.p = be->ops->alloc(be, 4 * sizeof(float));
    td_mem_fail_at(0);
    be->ops->gemm(be, &a);
    td_mem_fail_at(-1);
    struct td_err err = {0};
    assert_int_equal(be->ops->check(be, &err), TD_ENOMEM);
    assert_int_equal(be->ops->check(be, &err), TD_OK);
    be->ops->release(be, x.p);
    be->ops->release(be, a.c.p);
    td_backend_free(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ops_cpu_agrees_with_ref),
        cmocka_unit_test(test_ops_unknown_isa_is_refused),
        cmocka_unit_test(test_ops_out_of_scratch_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
