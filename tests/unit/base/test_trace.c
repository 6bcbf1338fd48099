// Log lines: one event a line, the fields in order, levels, cut when too long.
#include "lib/base/trace.h"

#include <stdio.h>
#include <string.h>

#include "tests/unit/base/child.h"

static void write_lines(void) {
    td_trace_info("unseen", "n=%d", 1); // the default is WARN
    td_trace_set_level(TD_TRACE_INFO);
    td_trace_error("disk full", "job=%d path=\"%s\"", 7, "a\nb\tc");
    td_trace_warn("w", "x=1");
    td_trace_info("i", "x=2");
    td_trace_debug("unseen", "x=3");
    td_trace_set_level(TD_TRACE_DEBUG);
    td_trace_debug("d", "x=4");
}

static void test_trace_writes_one_line_per_event(void **state) {
    (void)state;
    struct td_buf out = {0};
    int status = run_in_child(write_lines, &out);
    assert_int_equal(status, 0);
    static const char *const ends[] = {
        " level=error event=\"disk full\" pid=", " level=warn event=\"w\" pid=",
        " level=info event=\"i\" pid=", " level=debug event=\"d\" pid="};
    static const char *const fields[] = {" job=7 path=\"a b c\"", " x=1", " x=2", " x=4"};
    char *line = (char *)out.data;
    for (int i = 0; i < 4; i++) {
        char *stop = strchr(line, '\n');
        assert_non_null(stop);
        *stop = 0;
        int year, month, day, hour, minute, second, ms, at = 0, pid = 0, length = 0;
        assert_int_equal(sscanf(line, "ts=%4d-%2d-%2dT%2d:%2d:%2d.%3dZ%n", &year, &month, &day,
                                &hour, &minute, &second, &ms, &at),
                         7);
        assert_int_equal(strncmp(line + at, ends[i], strlen(ends[i])), 0);
        const char *rest = line + at + strlen(ends[i]);
        assert_int_equal(sscanf(rest, "%d%n", &pid, &length), 1);
        assert_true(pid > 0);
        assert_string_equal(rest + length, fields[i]);
        line = stop + 1;
    }
    assert_string_equal(line, "");
    td_buf_fini(&out);
}

static void write_long(void) {
    char text[10000];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = 0;
    td_trace_error(text, "key=%s", text);
    td_trace_error("next", "key=1");
}

static void test_trace_cuts_long_lines(void **state) {
    (void)state;
    struct td_buf out = {0};
    assert_int_equal(run_in_child(write_long, &out), 0);
    char *first = strchr((char *)out.data, '\n');
    assert_non_null(first);
    assert_true(first + 1 - (char *)out.data <= 2048);
    assert_non_null(strstr(first, "event=\"next\""));
    assert_ptr_equal(strchr(first + 1, '\n') + 1, out.data + out.len);
    td_buf_fini(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trace_writes_one_line_per_event),
        cmocka_unit_test(test_trace_cuts_long_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
