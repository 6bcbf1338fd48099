// The set of planted bugs that is switched on in this process.
#ifndef TD_TESTS_SIM_PLANT_H
#define TD_TESTS_SIM_PLANT_H

#include "lib/base/plant.h"

// names: "A" or "A,B"; none of them known: false.
bool sim_plant(const char *names);
void sim_plant_list(void);

#endif
