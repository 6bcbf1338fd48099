// The coordinator daemon: settings in, a process's life out. One leads, any number follow.
#ifndef TD_COORDINATOR_DAEMON_H
#define TD_COORDINATOR_DAEMON_H

#include "lib/spec/daemon_settings.h"

// Runs until SIGTERM or SIGINT (TD_OK), or until it cannot go on.
enum td_rc td_coordinator_daemon(const struct td_daemon_settings *settings,
                                 struct td_err *err) TD_MUST_CHECK;

#endif
