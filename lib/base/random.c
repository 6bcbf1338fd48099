// Random ids: see random.h.
#include "lib/base/random.h"

#include <errno.h>
#include <sys/random.h>

#include "lib/base/check.h"

uint64_t td_random_id(void) {
    uint64_t id = 0;
    while (id == 0) {
        ssize_t n = getrandom(&id, sizeof id, 0);
        td_assert(n == (ssize_t)sizeof id || errno == EINTR);
    }
    return id;
}
