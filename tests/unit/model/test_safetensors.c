// safetensors: conversions over all bit patterns, files that must be refused, atomic writing.
#include "workers/model/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <signal.h>

#include "lib/base/buf.h"
#include "lib/base/file.h"
#include "lib/base/mem.h"
#include "lib/base/rng.h"
#include "tests/unit/cmocka_all.h"
#include "workers/model/convert.h"

static char dir[] = "/tmp/td_test_st_XXXXXX";
static char path[64];

static int make_dir(void **state) {
    (void)state;
    if (!mkdtemp(dir)) {
        return -1;
    }
    snprintf(path, sizeof path, "%s/x.safetensors", dir);
    return 0;
}

static int drop_dir(void **state) {
    (void)state;
    return td_remove_tree(dir, NULL) == TD_OK ? 0 : -1;
}

// Every 16-bit pattern survives a round trip, but for the payload of NaNs.
static void test_safetensors_16_bit_round_trip(void **state) {
    (void)state;
    static const enum td_dtype dtypes[] = {TD_BF16, TD_F16};
    for (int d = 0; d < 2; d++) {
        for (uint32_t bits = 0; bits < 65536; bits++) {
            uint16_t in = (uint16_t)bits, out;
            float x;
            td_convert_to_f32(dtypes[d], &in, 1, &x);
            int64_t bad = td_convert_from_f32(dtypes[d], &x, 1, &out);
            assert_int_equal(bad, isfinite(x) ? -1 : 0);
            assert_true(isnan(x) ? (out & 0x7fff) > (d ? 0x7c00 : 0x7f80) : in == out);
        }
    }
}

// Rounding: the nearest of all 16-bit values, ties to the even one. The seed is printed.
static void test_safetensors_rounds_to_nearest_even(void **state) {
    (void)state;
    static const struct {
        float x;
        uint16_t bf16, f16;
    } rows[] = {{1, 0x3f80, 0x3c00},
                {1 + 0x1p-8f, 0x3f80, 0x3c04},
                {1 + 0x1p-8f + 0x1p-20f, 0x3f81, 0x3c04},
                {1 + 3 * 0x1p-8f, 0x3f82, 0x3c0c},
                {1 + 0x1p-11f, 0x3f80, 0x3c00},
                {1 + 3 * 0x1p-11f, 0x3f80, 0x3c02},
                {-65504, 0xc780, 0xfbff},
                {65519.996f, 0x4780, 0x7bff},
                {65520, 0x4780, 0x7c00},
                {0x1p-24f, 0x3380, 0x0001},
                {0x1p-25f, 0x3300, 0x0000},
                {0x1.8p-24f, 0x33c0, 0x0002},
                {0x1.000002p-25f, 0x3300, 0x0001},
                {-0.0f, 0x8000, 0x8000},
                {3.4e38f, 0x7f80, 0x7c00}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint16_t b, h;
        (void)td_convert_from_f32(TD_BF16, &rows[i].x, 1, &b);
        (void)td_convert_from_f32(TD_F16, &rows[i].x, 1, &h);
        assert_int_equal(b, rows[i].bf16);
        assert_int_equal(h, rows[i].f16);
    }
    struct td_rng rng = {20240607};
    print_message("seed 20240607\n");
    for (int i = 0; i < 200000; i++) {
        float x = (float)ldexp(td_rng_unit(&rng) * 2 - 1, (int)td_rng_below(&rng, 36) - 20);
        for (int d = 0; d < 2; d++) {
            enum td_dtype dtype = d ? TD_F16 : TD_BF16;
            uint16_t h;
            float got, above, below;
            (void)td_convert_from_f32(dtype, &x, 1, &h);
            uint16_t up = (uint16_t)(h + 1), down = (uint16_t)(h - 1);
            td_convert_to_f32(dtype, &h, 1, &got);
            td_convert_to_f32(dtype, &up, 1, &above);
            if ((h & 0x7fff) != 0) {
                td_convert_to_f32(dtype, &down, 1, &below);
            } else {
                below = -above;
            }
            double e = fabs((double)x - got), ea = fabs((double)x - above),
                   eb = fabs((double)x - below);
            assert_true(e <= ea && e <= eb);
            assert_true((e < ea && e < eb) || h % 2 == 0);
        }
    }
}

// header as text, length as given (−1: its own), then n zero bytes of data.
static void write_file(const char *header, int64_t length, size_t n) {
    struct td_buf b = {0};
    uint64_t bytes = length < 0 ? strlen(header) : (uint64_t)length;
    td_buf_put(&b, &bytes, sizeof bytes);
    td_buf_puts(&b, header);
    memset(td_buf_room(&b, n + 1), 0, n);
    b.len += n;
    assert_int_equal(td_file_write(path, b.data, b.len, NULL), TD_OK);
    td_buf_fini(&b);
}

#define T(name, dtype, shape, from, to)                                                            \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]" \
    "}"

static void test_safetensors_refuses(void **state) {
    (void)state;
    static const struct {
        const char *header;
        int64_t length;
        size_t data;
        const char *part;
    } rows[] = {
        {"{" T("a", "F32", "[2,3]", "0", "24") "}", -1, 23, "truncated"},
        {"{" T("a", "F32", "[2,3]", "0", "24") "}", -1, 25, "overlong"},
        {"{" T("a", "F32", "[2,3]", "0", "24") "}", 1000, 24, "truncated"},
        {"{" T("a", "F32", "[2,3]", "0", "24") "}", 100000001, 24, "100000001"},
        {"{" T("a", "F32", "[2,3]", "0", "24") "}", 10, 24, "header"},
        {"[]", -1, 0, "must be a JSON object"},
        {"{" T("a", "F32", "[2,3]", "0", "24") "," T("a", "F32", "[2,3]", "0", "24") "}", -1, 24,
         "duplicate"},
        {"{" T("a", "F32", "[2,3]", "0", "24") "," T("b", "F32", "[2,3]", "0", "24") "}", -1, 24,
         "tensor b begins at byte 0 of the data, expected 24"},
        {"{" T("a", "F32", "[2]", "0", "8") "," T("b", "F32", "[2]", "16", "24") "}", -1, 24,
         "tensor b begins at byte 16 of the data, expected 8"},
        {"{" T("a", "F32", "[2]", "8", "16") "}", -1, 16, "begins at byte 8"},
        {"{" T("a", "F32", "[3,3]", "0", "24") "}", -1, 24, "tensor a: data_offsets [0, 24]"},
        {"{" T("a", "F32", "[6]", "24", "0") "}", -1, 24, "data_offsets [24, 0]"},
        {"{" T("a", "F33", "[6]", "0", "24") "}", -1, 24, "tensor a: unknown dtype \"F33\""},
        {"{" T("a", "F4", "[3]", "0", "1") "}", -1, 1, "data_offsets"},
        {"{" T("a", "F32", "[4294967296,4294967296]", "0", "0") "}", -1, 0, "data_offsets"},
        {"{" T("a", "F32", "[-2]", "0", "8") "}", -1, 8, "shape"},
        {"{" T("a", "F32", "[2.0]", "0", "8") "}", -1, 8, "shape"},
        {"{" T("a", "F32", "2", "0", "8") "}", -1, 8, "shape"},
        {"{" T("a", "F32", "[1,1,1,1,1,1,1,1,2]", "0", "8") "}", -1, 8, "at most 8"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}", -1, 8,
         "must be an object of dtype, shape and data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", -1, 8, "must be an"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-1,7]}}", -1, 8, "must be an"},
        {"{\"a\":3}", -1, 0, "must be an object"},
        {"{\"__metadata__\":{\"format\":1}}", -1, 0, "__metadata__"},
        {"{\"__metadata__\":\"pt\"}", -1, 0, "__metadata__"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct td_safetensors *st = NULL;
        struct td_err err = {0};
        write_file(rows[i].header, rows[i].length, rows[i].data);
        enum td_rc rc = td_safetensors_open(path, &st, &err);
        if (rc != TD_ECORRUPT || !strstr(err.msg, rows[i].part) || !strstr(err.msg, path)) {
            fail_msg("%s: code %d, message \"%s\"", rows[i].header, rc, err.msg);
        }
        assert_null(st);
    }
    assert_int_equal(td_file_write(path, "1234567", 7, NULL), TD_OK);
    struct td_safetensors *st = NULL;
    assert_int_equal(td_safetensors_open(path, &st, NULL), TD_ECORRUPT);
    assert_int_equal(td_safetensors_open("/nonexistent", &st, NULL), TD_ENOENT);
}

// White space around the header, scalars, empty tensors, foreign dtypes.
static void test_safetensors_accepts(void **state) {
    (void)state;
    write_file(" \n{" T("s", "F32", "[]", "0", "4") "," T("e", "I64", "[0,5]", "4", "4") "," T(
                   "i", "I64", "[1]", "4", "12") ",\"__metadata__\":{\"format\":\"pt\"}}  \n",
               -1, 12);
    struct td_safetensors *st;
    struct td_err err = {0};
    assert_int_equal(td_safetensors_open(path, &st, &err), TD_OK);
    assert_int_equal(td_safetensors_count(st), 3);
    assert_string_equal(td_safetensors_entry(st, 0)->name, "s");
    assert_string_equal(td_safetensors_entry(st, 2)->name, "i");
    float x = 1;
    assert_int_equal(td_safetensors_read(st, 0, 0, 1, &x, &err), TD_OK);
    assert_true(x == 0);
    assert_int_equal(td_safetensors_read(st, 2, 0, 1, &x, &err), TD_EUNSUPPORTED);
    assert_non_null(strstr(err.msg, "dtype I64 cannot be read as weights"));
    td_safetensors_close(st);
}

static void read_ramp(void *user, int item, int64_t first, int64_t n, float *out) {
    const float *step = user;
    for (int64_t i = 0; i < n; i++) {
        out[i] = step[item] * (float)(first + i);
    }
}

static void test_safetensors_write_is_whole_or_nothing(void **state) {
    (void)state;
    static const struct td_safetensors_item items[] = {{"z", 2, {300, 400}}, {"a", 1, {7}}};
    float steps[] = {0.5f, 2};
    struct td_safetensors_source source = {
        .dtype = TD_F32, .items = items, .count = 2, .read = read_ramp, .user = steps};
    assert_int_equal(td_safetensors_write(path, &source, NULL), TD_OK);
    struct td_safetensors *st;
    assert_int_equal(td_safetensors_open(path, &st, NULL), TD_OK);
    const struct td_safetensors_entry *e = td_safetensors_entry(st, 1);
    assert_string_equal(e->name, "z"); // by name
    assert_true(e->dims == 2 && e->shape[0] == 300 && e->shape[1] == 400);
    float tail[3];
    assert_int_equal(td_safetensors_read(st, 1, 119997, 3, tail, NULL), TD_OK);
    assert_true(tail[2] == 0.5f * 119999);
    td_safetensors_close(st);
    uint64_t before, after, size;
    assert_int_equal(td_file_digest(path, &before, &size, NULL), TD_OK);

    // a number that F16 cannot hold, then a full disk: the old file stays, nothing else does
    struct td_err err = {0};
    source.dtype = TD_F16;
    steps[0] = 1;
    assert_int_equal(td_safetensors_write(path, &source, &err), TD_EINVAL);
    assert_non_null(strstr(err.msg, "tensor z: element 65520 (65520) is not finite in F16"));
    source.dtype = TD_F32;
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 100000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    enum td_rc rc = td_safetensors_write(path, &source, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(rc, TD_ENOSPC);
    assert_non_null(strstr(err.msg, path));
    assert_int_equal(td_file_digest(path, &after, &size, NULL), TD_OK);
    assert_true(before == after);
    char *temporary = td_asprintf("%s.tmp", path);
    assert_false(td_file_exists(temporary));
    td_free(temporary);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_safetensors_16_bit_round_trip),
        cmocka_unit_test(test_safetensors_rounds_to_nearest_even),
        cmocka_unit_test(test_safetensors_refuses),
        cmocka_unit_test(test_safetensors_accepts),
        cmocka_unit_test(test_safetensors_write_is_whole_or_nothing),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
