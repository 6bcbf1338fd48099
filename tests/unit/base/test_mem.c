// Memory: zeroed, aligned, the failure hook, arenas, growth, overflow.
#include "lib/base/mem.h"

#include <string.h>

#include "tests/unit/base/child.h"

static void test_mem_is_zeroed_and_aligned(void **state) {
    (void)state;
    for (size_t n = 0; n < 300; n += 7) {
        unsigned char *p = td_try_alloc_aligned(n), *q = td_alloc(n), *r = td_try_alloc(n);
        assert_true(p && q && r);
        assert_int_equal((uintptr_t)p % 64, 0);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(p[i] | q[i] | r[i], 0);
        }
        memset(p, 0xff, n);
        memset(q, 0xff, n);
        memset(r, 0xff, n);
        td_free(p);
        td_free(q);
        td_free(r);
    }
    td_free(NULL);
    assert_null(td_try_alloc_aligned(SIZE_MAX));
}

static void test_mem_fails_where_the_hook_says(void **state) {
    (void)state;
    for (int at = 0; at < 4; at++) {
        td_mem_fail_at(at);
        for (int i = 0; i < 6; i++) {
            void *p = i % 2 ? td_try_alloc(8) : td_try_alloc_aligned(8);
            assert_int_equal(p == NULL, i == at);
            td_free(p);
        }
    }
    td_mem_fail_at(0);
    td_free(td_alloc(8)); // those that abort are not concerned
    td_mem_fail_at(-1);
    void *p = td_try_alloc(8);
    assert_non_null(p);
    td_free(p);
}

static void overflow_array(void) {
    td_free(td_alloc_array(SIZE_MAX / 2, 3));
}

static void overflow_realloc(void) {
    td_free(td_realloc_array(NULL, SIZE_MAX / 2, 3));
}

static void overflow_grow(void) {
    char *array = NULL;
    size_t cap = 0;
    TD_GROW(array, cap, SIZE_MAX - 1);
    td_free(array);
}

static void test_mem_overflow_aborts(void **state) {
    (void)state;
    void (*const fns[])(void) = {overflow_array, overflow_realloc, overflow_grow};
    for (size_t i = 0; i < 3; i++) {
        struct td_buf out = {0};
        int status = run_in_child(fns[i], &out);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
        assert_true(out.len > 0);
        td_buf_fini(&out);
    }
}

static void test_mem_copies(void **state) {
    (void)state;
    assert_null(td_strdup(NULL));
    assert_null(td_strndup(NULL, 3));
    char *a = td_strdup("abc"), *b = td_strndup("abcdef", 3), *c = td_strndup("ab", 30);
    char *d = td_memdup("a\0c", 3), *e = td_asprintf("%d%s", 7, "x");
    void *nothing = td_memdup(NULL, 0);
    assert_string_equal(a, "abc");
    assert_string_equal(b, "abc");
    assert_string_equal(c, "ab");
    assert_memory_equal(d, "a\0c", 3);
    assert_string_equal(e, "7x");
    assert_non_null(nothing);
    void *const all[] = {a, b, c, d, e, nothing};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        td_free(all[i]);
    }
}

static void test_mem_grow_keeps_what_is_there(void **state) {
    (void)state;
    int *array = NULL;
    size_t cap = 0;
    for (int i = 0; i < 5000; i++) {
        size_t before = cap;
        TD_GROW(array, cap, (size_t)i + 1);
        assert_true(cap >= (size_t)i + 1 && (cap == before || cap >= 2 * before));
        array[i] = i;
    }
    for (int i = 0; i < 5000; i++) {
        assert_int_equal(array[i], i);
    }
    td_free(array);
}

static void test_mem_arena(void **state) {
    (void)state;
    struct td_arena *arena = td_arena_new();
    unsigned char *pieces[2000];
    for (size_t i = 0; i < 2000; i++) {
        size_t n = i % 100 == 99 ? 100000 : i % 60;
        pieces[i] = td_arena_alloc(arena, n);
        assert_int_equal((uintptr_t)pieces[i] % 16, 0);
        for (size_t k = 0; k < n; k++) {
            assert_int_equal(pieces[i][k], 0);
        }
        memset(pieces[i], (int)i % 251, n);
    }
    for (size_t i = 0; i < 2000; i++) { // nobody wrote over another's
        size_t n = i % 100 == 99 ? 100000 : i % 60;
        for (size_t k = 0; k < n; k++) {
            assert_int_equal(pieces[i][k], i % 251);
        }
    }
    assert_string_equal(td_arena_strndup(arena, "abcdef", 3), "abc");
    td_arena_free(arena);
    td_arena_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mem_is_zeroed_and_aligned),
        cmocka_unit_test(test_mem_fails_where_the_hook_says),
        cmocka_unit_test(test_mem_overflow_aborts),
        cmocka_unit_test(test_mem_copies),
        cmocka_unit_test(test_mem_grow_keeps_what_is_there),
        cmocka_unit_test(test_mem_arena),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
