// What the daemons' main functions share: arguments, settings, exit status.
#ifndef TD_DAEMON_DAEMON_MAIN_H
#define TD_DAEMON_DAEMON_MAIN_H

#include "lib/spec/daemon_settings.h"

typedef enum td_rc td_daemon_run_fn(const struct td_daemon_settings *settings, struct td_err *err);

// "PROGRAM -f FILE [--check-config] [key=value ...]", --help, --version, --example-config. Reads
// the settings, then run. The exit status: 0; 1: run failed; 2: arguments; 78: settings.
int td_daemon_main(enum td_daemon_role role, int argc, char **argv, td_daemon_run_fn *run);

#endif
