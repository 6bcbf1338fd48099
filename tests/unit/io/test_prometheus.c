// Metrics text: word by word, and every line against a strict reading of the format.
#include "lib/io/prometheus.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "tests/unit/cmocka_all.h"

// ---- a strict reader of text format 0.0.4

struct reader {
    const char *at;
    char family[128], type[16]; // of the last TYPE line
    int samples;
};

static void expect(struct reader *r, const char *text) {
    if (strncmp(r->at, text, strlen(text)) != 0) {
        fail_msg("expected \"%s\" at \"%.60s\"", text, r->at);
    }
    r->at += strlen(text);
}

static size_t read_name(struct reader *r, char *out, bool colons) {
    size_t n = 0;
    while (isalnum((unsigned char)r->at[n]) || r->at[n] == '_' || (colons && r->at[n] == ':')) {
        n++;
    }
    if (n == 0 || n > 100 || isdigit((unsigned char)*r->at)) {
        fail_msg("not a name: \"%.60s\"", r->at);
    }
    memcpy(out, r->at, n);
    out[n] = 0;
    r->at += n;
    return n;
}

static void read_labels(struct reader *r) {
    char name[128], seen[16][128];
    int count = 0;
    expect(r, "{");
    do {
        read_name(r, name, false);
        for (int i = 0; i < count; i++) {
            assert_string_not_equal(seen[i], name);
        }
        assert_true(count < 16);
        memcpy(seen[count++], name, sizeof name);
        expect(r, "=\"");
        while (*r->at != '"') {
            if (*r->at == '\\') {
                r->at++;
                assert_non_null(strchr("\\\"n", *r->at));
            }
            assert_true(*r->at && *r->at != '\n');
            r->at++;
        }
        r->at++;
    } while (*r->at == ',' && r->at++);
    expect(r, "} ");
}

static void read_number(struct reader *r) {
    char *end;
    size_t n = strcspn(r->at, " \n");
    static const char *const words[] = {"NaN", "+Inf", "-Inf"};
    for (size_t i = 0; i < 3; i++) {
        if (strlen(words[i]) == n && strncmp(words[i], r->at, n) == 0) {
            r->at += n;
            return;
        }
    }
    assert_int_equal(strspn(r->at, "0123456789+-.e"), n);
    strtod(r->at, &end);
    assert_ptr_equal(end, r->at + n);
    r->at = end;
}

static void read_sample(struct reader *r) {
    char name[128];
    size_t n = strlen(r->family);
    read_name(r, name, true);
    if (strncmp(name, r->family, n) != 0) {
        fail_msg("%s is not of the family %s", name, r->family);
    }
    if (strcmp(r->type, "histogram") == 0) {
        assert_true(strcmp(name + n, "_bucket") == 0 || strcmp(name + n, "_sum") == 0 ||
                    strcmp(name + n, "_count") == 0);
    } else {
        assert_string_equal(name + n, "");
    }
    if (*r->at == '{') {
        read_labels(r);
    } else {
        expect(r, " ");
    }
    read_number(r);
    expect(r, "\n");
    r->samples++;
}

static void read_family(struct reader *r) {
    char name[128];
    expect(r, "# HELP ");
    read_name(r, r->family, true);
    expect(r, " ");
    for (; *r->at != '\n'; r->at++) {
        assert_true(*r->at);
        if (*r->at == '\\') {
            r->at++;
            assert_true(*r->at == '\\' || *r->at == 'n');
        }
    }
    expect(r, "\n# TYPE ");
    read_name(r, name, true);
    assert_string_equal(name, r->family);
    expect(r, " ");
    read_name(r, r->type, false);
    assert_true(strcmp(r->type, "counter") == 0 || strcmp(r->type, "gauge") == 0 ||
                strcmp(r->type, "histogram") == 0);
    expect(r, "\n");
}

static int check_text(const struct td_buf *text) {
    struct reader r = {.at = td_buf_str(text)};
    assert_int_equal(strlen(r.at), text->len);
    while (*r.at) {
        if (*r.at == '#') {
            read_family(&r);
        } else {
            read_sample(&r);
        }
    }
    return r.samples;
}

// ---- tests

static void test_prometheus_escapes(void **state) {
    (void)state;
    struct td_buf out = {0};
    const struct td_prometheus_label labels[] = {
        {"a", "quote\" back\\ line\nend"},
        {"b", ""},
        {"c", "Grüße € \xf0\x9f\x98\x80"},
        {"d", "\xff|\xc0\x80|\xed\xa0\x80|\xe2\x82|\xf4\x90\x80\x80"}};
    td_prometheus_family(&out, "td:x_total", TD_PROMETHEUS_COUNTER, "two\nlines, \"q\" and \\");
    td_prometheus_sample(&out, "td:x_total", labels, 4, 1);
#define BAD "\xef\xbf\xbd"
    assert_string_equal(td_buf_str(&out), "# HELP td:x_total two\\nlines, \"q\" and \\\\\n"
                                          "# TYPE td:x_total counter\n"
                                          "td:x_total{a=\"quote\\\" back\\\\ line\\nend\",b=\"\","
                                          "c=\"Grüße € \xf0\x9f\x98\x80\",d=\"" BAD "|" BAD BAD
                                          "|" BAD BAD BAD "|" BAD "|" BAD BAD BAD BAD "\"} 1\n");
    assert_int_equal(check_text(&out), 1);
    td_buf_fini(&out);
}

static void test_prometheus_numbers(void **state) {
    static const struct {
        double value;
        const char *want;
    } rows[] = {
        {0, "0"},
        {-0.0, "-0"},
        {3, "3"},
        {-17, "-17"},
        {9007199254740992.0, "9007199254740992"},
        {123456789012345678.0, "123456789012345680"}, // the double nearest to it
        {1e21, "1e+21"},
        {0.1, "0.1"},
        {1.0 / 3, "0.3333333333333333"},
        {2.5e-9, "2.5e-09"},
        {INFINITY, "+Inf"},
        {-INFINITY, "-Inf"},
        {NAN, "NaN"},
        {-NAN, "NaN"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct td_buf out = {0};
        td_prometheus_family(&out, "g", TD_PROMETHEUS_GAUGE, "");
        td_buf_clear(&out);
        td_prometheus_sample(&out, "g", NULL, 0, rows[i].value);
        assert_int_equal(strncmp(td_buf_str(&out), "g ", 2), 0);
        td_buf_shift(&out, 2);
        char *end;
        double back = strtod(td_buf_str(&out), &end);
        assert_string_equal(end, "\n");
        assert_true(back == rows[i].value || isnan(rows[i].value));
        out.data[out.len - 1] = 0;
        assert_string_equal(td_buf_str(&out), rows[i].want);
        td_buf_fini(&out);
    }
}

static void test_prometheus_histogram(void **state) {
    (void)state;
    struct td_buf out = {0};
    const struct td_prometheus_label label = {"job", "7"};
    const double bounds[] = {0.005, 1};
    const uint64_t counts[] = {2, 18446744073709551614u};
    const struct td_prometheus_histogram h = {bounds, counts, 2, 3.5, 18446744073709551615u};
    td_prometheus_family(&out, "h", TD_PROMETHEUS_HISTOGRAM, "Times.");
    td_prometheus_histogram(&out, "h", &label, 1, &h);
    td_prometheus_histogram(&out, "h", NULL, 0, &(struct td_prometheus_histogram){0});
    assert_string_equal(td_buf_str(&out), "# HELP h Times.\n"
                                          "# TYPE h histogram\n"
                                          "h_bucket{job=\"7\",le=\"0.005\"} 2\n"
                                          "h_bucket{job=\"7\",le=\"1\"} 18446744073709551614\n"
                                          "h_bucket{job=\"7\",le=\"+Inf\"} 18446744073709551615\n"
                                          "h_sum{job=\"7\"} 3.5\n"
                                          "h_count{job=\"7\"} 18446744073709551615\n"
                                          "h_bucket{le=\"+Inf\"} 0\n"
                                          "h_sum 0\n"
                                          "h_count 0\n");
    assert_int_equal(check_text(&out), 8);
    td_buf_fini(&out);
}

static double value_of(const struct td_buf *out, const char *name) {
    const char *at = strstr(td_buf_str(out), name);
    assert_non_null(at);
    return strtod(at + strlen(name), NULL);
}

static void test_prometheus_process(void **state) {
    (void)state;
    struct td_buf out = {0};
    td_prometheus_process(&out, "0.1.0", "abc\"");
    assert_int_equal(check_text(&out), 5);
    double rss = value_of(&out, "\nprocess_resident_memory_bytes ");
    double fds = value_of(&out, "\nprocess_open_fds ");
    assert_true(rss > 1 << 18 && rss < 1e12);
    assert_true(fds >= 3 && fds < 1e6);
    double start = value_of(&out, "\nprocess_start_time_seconds ");
    assert_true(fabs(start - (double)td_clock_wall_s()) < 3600);
    assert_true(value_of(&out, "\nprocess_cpu_seconds_total ") > 0);
    assert_non_null(
        strstr(td_buf_str(&out), "\ntandem_build_info{version=\"0.1.0\",build=\"abc\\\"\"} 1\n"));
    int fd = dup(0);
    td_buf_clear(&out);
    td_prometheus_process(&out, "", "");
    assert_true(value_of(&out, "\nprocess_open_fds ") == fds + 1);
    close(fd);
    td_buf_fini(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prometheus_escapes),
        cmocka_unit_test(test_prometheus_numbers),
        cmocka_unit_test(test_prometheus_histogram),
        cmocka_unit_test(test_prometheus_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
