// Assertions: programmer errors only, on in every build. Input from outside never asserts.
#ifndef TD_BASE_CHECK_H
#define TD_BASE_CHECK_H

#include <stdint.h>

// Prints place, expression and the two values (0 where there are none), then aborts.
_Noreturn void td_assert_failed(const char *file, int line, const char *expr, int64_t a, int64_t b);

#define td_assert(cond)                                                                            \
    do {                                                                                           \
        if (__builtin_expect(!(cond), 0)) {                                                        \
            td_assert_failed(__FILE__, __LINE__, #cond, 0, 0);                                     \
        }                                                                                          \
    } while (0)

// For two integers that an int64_t can hold; both values are printed.
#define td_assert_op(a, op, b)                                                                     \
    do {                                                                                           \
        int64_t td_a_ = (int64_t)(a), td_b_ = (int64_t)(b);                                        \
        if (__builtin_expect(!(td_a_ op td_b_), 0)) {                                              \
            td_assert_failed(__FILE__, __LINE__, #a " " #op " " #b, td_a_, td_b_);                 \
        }                                                                                          \
    } while (0)

#endif
