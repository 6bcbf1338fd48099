// See plant.h. The switches are set once, before the first schedule.
#include "tests/sim/plant.h"

#include <stdio.h>
#include <string.h>

static const char *const names[TD_PLANT_COUNT] = {
#define X(name) #name,
    TD_PLANTS(X)
#undef X
};

static _Thread_local bool planted[TD_PLANT_COUNT];

bool td_planted(enum td_plant which) {
    return planted[which];
}

bool sim_plant(const char *list) {
    while (*list) {
        size_t n = strcspn(list, ","), i = 0;
        while (i < TD_PLANT_COUNT && (strlen(names[i]) != n || strncmp(names[i], list, n) != 0)) {
            i++;
        }
        if (i == TD_PLANT_COUNT) {
            return false;
        }
        planted[i] = true;
        list += n + (list[n] == ',');
    }
    return true;
}

void sim_plant_list(void) {
    for (size_t i = 0; i < TD_PLANT_COUNT; i++) {
        puts(names[i]);
    }
}
