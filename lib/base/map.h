// A hash map from byte strings (or 64-bit numbers) to 64-bit values. Open addressing; keys are
// copied.
#ifndef TD_BASE_MAP_H
#define TD_BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct td_map;

struct td_map *td_map_new(void);
void td_map_free(struct td_map *map);
size_t td_map_count(const struct td_map *map);
// Sets or replaces; returns whether the key was new.
bool td_map_put(struct td_map *map, const void *key, size_t n, uint64_t value);
// Returns whether the key is there; *value (may be NULL) is untouched when it is not.
bool td_map_get(const struct td_map *map, const void *key, size_t n, uint64_t *value);
// Walks the values: *at starts at 0; false at the end. The map must not change meanwhile.
bool td_map_next(const struct td_map *map, size_t *at, uint64_t *value);
bool td_map_remove(struct td_map *map, const void *key, size_t n);

#endif
