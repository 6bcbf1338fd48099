// What cmocka.h needs before it, in one place.
#ifndef TD_TESTS_CMOCKA_ALL_H
#define TD_TESTS_CMOCKA_ALL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
