// Own exp and log against libm's in double, over the whole range they are used in.
#include "tests/unit/cmocka_all.h"

#define TD_LANES 4
#include "workers/backend/cpu/lanes.h"

static float exp1(float x) {
    return exp_v(dup(x))[0];
}

static float log1(float x) {
    return log_v(dup(x))[0];
}

static void test_lanes_exp(void **state) {
    (void)state;
    double worst = 0;
    for (double x = -87.2; x < 88.7; x += 0.00037) {
        double want = exp((double)(float)x);
        worst = fmax(worst, fabs((double)exp1((float)x) / want - 1));
    }
    assert_true(worst < 1.3e-7);
    assert_true(exp1(0) == 1 && exp1(-87.4f) == 0 && exp1(-INFINITY) == 0);
    assert_true(isinf(exp1(89)) && isinf(exp1(INFINITY)) && isnan(exp1(NAN)));
}

static void test_lanes_log(void **state) {
    (void)state;
    double worst = 0;
    for (double x = 1e-30; x < 1e30; x *= 1.0003) {
        double want = log((double)(float)x);
        worst = fmax(worst, fabs((double)log1((float)x) - want) / fmax(fabs(want), 1e-30));
    }
    for (float x = 0.9f; x < 1.1f; x += 1.3e-6f) {
        double want = log((double)x);
        worst = x == 1 ? worst : fmax(worst, fabs((double)log1(x) / want - 1));
    }
    assert_true(worst < 1.3e-7);
    assert_true(log1(1) == 0 && isinf(log1(INFINITY)) && isnan(log1(NAN)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lanes_exp),
        cmocka_unit_test(test_lanes_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
