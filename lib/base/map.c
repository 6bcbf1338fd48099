// A hash map: see map.h. Linear probing with backward-shift deletion. Owned by one thread at a
// time.
#include "lib/base/map.h"

#include <string.h>

#include "lib/base/crc.h"
#include "lib/base/mem.h"

struct slot {
    uint8_t *key; // NULL when free
    size_t n;
    uint64_t hash, value;
};

struct td_map {
    struct slot *slots;
    size_t cap, count;
};

enum { FIRST_CAP = 16 };

struct td_map *td_map_new(void) {
    struct td_map *map = td_alloc(sizeof *map);
    map->cap = FIRST_CAP;
    map->slots = td_alloc_array(map->cap, sizeof *map->slots);
    return map;
}

void td_map_free(struct td_map *map) {
    if (!map) {
        return;
    }
    for (size_t i = 0; i < map->cap; i++) {
        td_free(map->slots[i].key);
    }
    td_free(map->slots);
    td_free(map);
}

size_t td_map_count(const struct td_map *map) {
    return map->count;
}

static size_t find(const struct td_map *map, uint64_t hash, const void *key, size_t n) {
    size_t i = hash & (map->cap - 1);
    while (map->slots[i].key) {
        const struct slot *s = &map->slots[i];
        if (s->hash == hash && s->n == n && (n == 0 || memcmp(s->key, key, n) == 0)) {
            break;
        }
        i = (i + 1) & (map->cap - 1);
    }
    return i;
}

static void double_slots(struct td_map *map) {
    struct slot *old = map->slots;
    size_t old_cap = map->cap;
    map->cap *= 2;
    map->slots = td_alloc_array(map->cap, sizeof *map->slots);
    for (size_t i = 0; i < old_cap; i++) {
        if (old[i].key) {
            map->slots[find(map, old[i].hash, old[i].key, old[i].n)] = old[i];
        }
    }
    td_free(old);
}

bool td_map_put(struct td_map *map, const void *key, size_t n, uint64_t value) {
    uint64_t hash = td_digest64(0, key, n);
    size_t i = find(map, hash, key, n);
    if (map->slots[i].key) {
        map->slots[i].value = value;
        return false;
    }
    if ((map->count + 1) * 10 > map->cap * 7) {
        double_slots(map);
        i = find(map, hash, key, n);
    }
    // Never NULL, also for the empty key: that would be a free slot.
    map->slots[i] = (struct slot){td_memdup(key, n), n, hash, value};
    map->count++;
    return true;
}

bool td_map_get(const struct td_map *map, const void *key, size_t n, uint64_t *value) {
    const struct slot *s = &map->slots[find(map, td_digest64(0, key, n), key, n)];
    if (!s->key) {
        return false;
    }
    if (value) {
        *value = s->value;
    }
    return true;
}

bool td_map_remove(struct td_map *map, const void *key, size_t n) {
    size_t i = find(map, td_digest64(0, key, n), key, n);
    if (!map->slots[i].key) {
        return false;
    }
    td_free(map->slots[i].key);
    map->count--;
    size_t hole = i, mask = map->cap - 1;
    for (size_t j = (i + 1) & mask; map->slots[j].key; j = (j + 1) & mask) {
        size_t home = map->slots[j].hash & mask;
        if (((j - home) & mask) >= ((j - hole) & mask)) {
            map->slots[hole] = map->slots[j];
            hole = j;
        }
    }
    map->slots[hole] = (struct slot){0};
    return true;
}

bool td_map_next(const struct td_map *map, size_t *at, uint64_t *value) {
    for (; *at < map->cap; (*at)++) {
        if (map->slots[*at].key) {
            *value = map->slots[(*at)++].value;
            return true;
        }
    }
    return false;
}
