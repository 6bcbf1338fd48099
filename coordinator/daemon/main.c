// `tandem-coordinator`: the coordinator daemon.
#include "coordinator/daemon/daemon.h"
#include "lib/daemon/daemon_main.h"

int main(int argc, char **argv) {
    return td_daemon_main(TD_DAEMON_COORDINATOR, argc, argv, td_coordinator_daemon);
}
