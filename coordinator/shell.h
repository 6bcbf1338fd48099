// The coordinator's shell: turns what the journal's log, the members and the clock say into events
// of the machine and carries out its effects. Loop thread. Decides nothing.
#ifndef TD_COORDINATOR_SHELL_H
#define TD_COORDINATOR_SHELL_H

#include "coordinator/coordinator.h"
#include "lib/io/log.h"
#include "lib/io/loop.h"

struct td_coordinator_shell;

struct td_coordinator_shell_fns {
    void (*accepted)(void *user, const char *request_id, uint64_t job);
    void (*refused)(void *user, const char *request_id, const char *cause);
    void (*ended)(void *user, uint64_t job, enum _Tandem__Journal__Outcome outcome,
                  const char *cause);
    // The process cannot go on: the journal is damaged or belongs to another cluster.
    void (*stop)(void *user, const char *cause);
    void (*trim_rollout)(void *user, uint64_t job, const struct td_log_position *positions,
                         size_t n);
    // Packed Orders for a member.
    void (*orders)(void *user, uint64_t member, const uint8_t *bytes, size_t n);
    // Something was decided or read: views may have changed.
    void (*changed)(void *user);
};

struct td_coordinator_shell_config {
    struct td_loop *loop;
    struct td_log *journal; // one partition
    struct td_coordinator_config machine;
    struct td_coordinator_shell_fns fns;
    void *user;
};

struct td_coordinator_shell *
td_coordinator_shell_new(const struct td_coordinator_shell_config *config);
// Stops reading and deciding. An append under way is answered to nobody.
void td_coordinator_shell_free(struct td_coordinator_shell *s);
// A member's packed Report (td_link_report_fn): user = the shell.
void td_coordinator_shell_report(void *user, uint64_t member, const uint8_t *bytes, size_t n);
void td_coordinator_shell_submit(struct td_coordinator_shell *s, const struct td_submit *submit);
void td_coordinator_shell_cancel(struct td_coordinator_shell *s, uint64_t job);
const struct td_coordinator *td_coordinator_shell_machine(const struct td_coordinator_shell *s);

#endif
