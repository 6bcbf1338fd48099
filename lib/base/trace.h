// Log lines: one event a line, logfmt, to stderr. ERROR means that a person must act. Never
// prompts, tokens or secrets. (td_log is the record log; these are for people.)
#ifndef TD_BASE_TRACE_H
#define TD_BASE_TRACE_H

enum td_trace_level { TD_TRACE_ERROR, TD_TRACE_WARN, TD_TRACE_INFO, TD_TRACE_DEBUG };

// Process-wide; the default is WARN. Any thread.
void td_trace_set_level(enum td_trace_level level);
// event: a few words; fmt: "key=value key=value". Lines longer than 2 KiB are cut. Any thread.
void td_trace(enum td_trace_level level, const char *event, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#define td_trace_error(event, ...) td_trace(TD_TRACE_ERROR, event, __VA_ARGS__)
#define td_trace_warn(event, ...) td_trace(TD_TRACE_WARN, event, __VA_ARGS__)
#define td_trace_info(event, ...) td_trace(TD_TRACE_INFO, event, __VA_ARGS__)
#define td_trace_debug(event, ...) td_trace(TD_TRACE_DEBUG, event, __VA_ARGS__)

#endif
