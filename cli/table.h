// A table of text with aligned columns, as kubectl prints them.
#ifndef TD_CLI_TABLE_H
#define TD_CLI_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "lib/base/buf.h"

enum { TD_TABLE_COLUMNS_MAX = 16 };

struct td_table { // zeroed at first
    size_t columns, cells;
    struct td_buf text; // every cell, each ended by a zero byte
    size_t width[TD_TABLE_COLUMNS_MAX];
};

// Headers, once, with bars between them: "ID|KIND|STATE".
void td_table_head(struct td_table *t, const char *headers);
// The next cell, row by row. Control characters become spaces; an empty one shows as "-".
void td_table_put(struct td_table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
// Appends the table to out. The last row must be whole.
void td_table_print(const struct td_table *t, struct td_buf *out);
void td_table_fini(struct td_table *t);

// "850ms", "12s", "3m5s", "2h10m", "5d3h".
void td_put_duration(struct td_buf *out, int64_t ms);

#endif
