// Memory. The only place that names malloc and free. Small control-plane memory aborts when there
// is none; sizes that come from a peer are checked against a limit first and then tried.
#ifndef TD_BASE_MEM_H
#define TD_BASE_MEM_H

#include <stddef.h>

// Zeroed memory; aborts when there is none. size 0 gives a valid pointer. Release by td_free.
void *td_alloc(size_t size);
void *td_alloc_array(size_t count, size_t size);
// Grows or shrinks; new bytes are undefined. Aborts when there is none.
void *td_realloc_array(void *old, size_t count, size_t size);
// Zeroed memory, or NULL when there is none (or when the failure hook of a test says so).
void *td_try_alloc(size_t size);
// Zeroed, aligned to 64 bytes, for tensors; NULL when there is none. Release by td_free.
void *td_try_alloc_aligned(size_t size);
void td_free(void *p);

// Copies; abort when there is no memory. NULL gives NULL.
char *td_strdup(const char *s);
char *td_strndup(const char *s, size_t n);
void *td_memdup(const void *p, size_t n);
char *td_asprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

// Makes *array hold at least need elements of size bytes; *cap is its capacity. Doubles.
void td_grow(void **array, size_t *cap, size_t need, size_t size);
#define TD_GROW(array, cap, need) td_grow((void **)&(array), &(cap), (need), sizeof *(array))

// An arena: many small allocations, released together.
struct td_arena;
struct td_arena *td_arena_new(void);
void td_arena_free(struct td_arena *arena);
// Zeroed, 16-byte aligned; lives until td_arena_free.
void *td_arena_alloc(struct td_arena *arena, size_t size);
char *td_arena_strndup(struct td_arena *arena, const char *s, size_t n);

// Tests only: the n-th td_try_alloc from now (0 = the next) returns NULL; negative switches it off.
void td_mem_fail_at(long n);

#endif
