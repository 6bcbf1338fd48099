// Memory: see mem.h. Thread-safe as malloc is; the failure hook is per thread.
#include "lib/base/mem.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/check.h"

enum { ARENA_BLOCK = 64 << 10, ALIGN = 64 };

static _Thread_local long fail_at = -1;

void td_mem_fail_at(long n) {
    fail_at = n;
}

static _Noreturn void no_memory(size_t size) {
    fprintf(stderr, "out of memory: %zu bytes\n", size);
    abort();
}

void *td_try_alloc(size_t size) {
    if (fail_at >= 0 && fail_at-- == 0) {
        return NULL;
    }
    return calloc(1, size ? size : 1);
}

void *td_alloc(size_t size) {
    void *p = calloc(1, size ? size : 1);
    if (!p) {
        no_memory(size);
    }
    return p;
}

void *td_alloc_array(size_t count, size_t size) {
    size_t total;
    if (__builtin_mul_overflow(count, size, &total)) {
        no_memory(SIZE_MAX);
    }
    return td_alloc(total);
}

void *td_realloc_array(void *old, size_t count, size_t size) {
    size_t total;
    if (__builtin_mul_overflow(count, size, &total)) {
        no_memory(SIZE_MAX);
    }
    void *p = realloc(old, total ? total : 1);
    if (!p) {
        no_memory(total);
    }
    return p;
}

void *td_try_alloc_aligned(size_t size) {
    if (fail_at >= 0 && fail_at-- == 0) {
        return NULL;
    }
    if (size > SIZE_MAX - ALIGN) {
        return NULL;
    }
    size_t rounded = (size + ALIGN - 1) / ALIGN * ALIGN;
    void *p = aligned_alloc(ALIGN, rounded ? rounded : ALIGN);
    if (p) {
        memset(p, 0, rounded ? rounded : ALIGN);
    }
    return p;
}

void td_free(void *p) {
    free(p);
}

char *td_strndup(const char *s, size_t n) {
    if (!s) {
        return NULL;
    }
    size_t len = strnlen(s, n);
    char *copy = td_alloc(len + 1);
    memcpy(copy, s, len);
    return copy;
}

char *td_strdup(const char *s) {
    return s ? td_strndup(s, strlen(s)) : NULL;
}

void *td_memdup(const void *p, size_t n) {
    void *copy = td_alloc(n);
    if (n) {
        memcpy(copy, p, n);
    }
    return copy;
}

char *td_asprintf(const char *fmt, ...) {
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    td_assert_op(n, >=, 0);
    char *s = td_alloc((size_t)n + 1);
    vsnprintf(s, (size_t)n + 1, fmt, again);
    va_end(again);
    return s;
}

void td_grow(void **array, size_t *cap, size_t need, size_t size) {
    if (need <= *cap) {
        return;
    }
    td_assert(need <= SIZE_MAX / 4);
    size_t next = *cap ? *cap : 8;
    while (next < need) {
        next *= 2;
    }
    *array = td_realloc_array(*array, next, size);
    *cap = next;
}

struct arena_block {
    struct arena_block *next;
    size_t used, size;
    _Alignas(16) unsigned char bytes[];
};

struct td_arena {
    struct arena_block *head;
};

struct td_arena *td_arena_new(void) {
    return td_alloc(sizeof(struct td_arena));
}

void td_arena_free(struct td_arena *arena) {
    if (!arena) {
        return;
    }
    while (arena->head) {
        struct arena_block *next = arena->head->next;
        td_free(arena->head);
        arena->head = next;
    }
    td_free(arena);
}

void *td_arena_alloc(struct td_arena *arena, size_t size) {
    td_assert(size < SIZE_MAX / 4);
    size = (size + 15) / 16 * 16;
    struct arena_block *b = arena->head;
    if (!b || b->size - b->used < size) {
        size_t block = size > ARENA_BLOCK ? size : ARENA_BLOCK;
        b = td_alloc(sizeof *b + block);
        b->size = block;
        b->next = arena->head;
        arena->head = b;
    }
    void *p = b->bytes + b->used;
    b->used += size;
    return p;
}

char *td_arena_strndup(struct td_arena *arena, const char *s, size_t n) {
    char *copy = td_arena_alloc(arena, n + 1);
    memcpy(copy, s, n);
    return copy;
}
