// The log of a new journal, for `tandem journal adopt`. Blocking.
#ifndef TD_CLI_JOURNAL_LOG_H
#define TD_CLI_JOURNAL_LOG_H

#include "lib/base/err.h"
#include "lib/journal/record.h"
#include "lib/spec/daemon_settings.h"

// TD_OK: there is no journal. TD_ECONFLICT: there is one, its log's id is named.
enum td_rc td_journal_log_absent(const struct td_daemon_settings *settings,
                                 struct td_err *err) TD_MUST_CHECK;
// Makes the log and writes its first record; returns once that is durable.
enum td_rc td_journal_log_make(const struct td_daemon_settings *settings, const td_record *first,
                               struct td_err *err) TD_MUST_CHECK;

#endif
