// The lock of a run directory: one controller or one `tandem run` at a time.
#ifndef TD_IO_RUNLOCK_H
#define TD_IO_RUNLOCK_H

#include "lib/base/err.h"

// Locks run_dir/lock (made if missing) and writes this process's id into it. *lock is a descriptor,
// not inherited by exec; the lock ends when it is closed, thus also with the process.
// TD_ECONFLICT: another process holds it and does not let go for two seconds (blocks); the message
// names its id.
enum td_rc td_run_lock(const char *run_dir, int *lock, struct td_err *err) TD_MUST_CHECK;

#endif
