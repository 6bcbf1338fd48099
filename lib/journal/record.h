// Records of the journal as C structs, and their bytes. docs/journal.md has the meaning of every
// field.
#ifndef TD_JOURNAL_RECORD_H
#define TD_JOURNAL_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/buf.h"
#include "lib/base/err.h"
#include "proto/journal.pb-c.h"

// The generated structs are the records: a second set of structs would only be copied to and fro.
// Short names for those used most.
typedef Tandem__Journal__Record td_record;
typedef Tandem__Journal__Entry td_entry;

struct td_pos { // of a journal record; offset −1: none
    int64_t offset;
    uint32_t crc;
};
struct td_group {
    uint64_t data_epoch, index;
};
struct td_version {
    uint64_t lineage, step;
};

enum { TD_RECORD_BYTES_MAX = 16 << 20, TD_JOURNAL_FORMAT = 1 };

// Appends the bytes of record to out; *crc (may be NULL) receives their CRC-32C, the one the log
// frames them with.
void td_record_encode(const td_record *record, struct td_buf *out, uint32_t *crc);
// Free by tandem__journal__record__free_unpacked(record, NULL). TD_ECORRUPT: undecodable, wrong
// format or no body.
enum td_rc td_record_decode(const void *bytes, size_t n, td_record **out,
                            struct td_err *err) TD_MUST_CHECK;
// "SEAL" ...
const char *td_record_name(const td_record *record);

// A deep copy of any generated message (of its packed fields); free by the message's free_unpacked.
void *td_message_dup(const void *message);

struct td_pos td_pos_of(const Tandem__Journal__Position *pos); // NULL: offset −1
struct td_group td_group_of(const Tandem__Journal__Group *group);
struct td_version td_version_of(const Tandem__Journal__Version *version); // NULL: (0, 0)

bool td_pos_equal(struct td_pos a, struct td_pos b);
bool td_version_equal(struct td_version a, struct td_version b);
int td_group_compare(struct td_group a, struct td_group b); // by (data epoch, index)

#endif
