// Records and their bytes: see record.h. Pure, any thread.
#include "lib/journal/record.h"

#include <string.h>

#include "lib/base/check.h"
#include "lib/base/crc.h"

void td_record_encode(const td_record *record, struct td_buf *out, uint32_t *crc) {
    size_t n = tandem__journal__record__get_packed_size(record);
    uint8_t *to = td_buf_room(out, n);
    size_t packed = tandem__journal__record__pack(record, to);
    td_assert_op(packed, ==, n);
    out->len += n;
    if (crc) {
        *crc = td_crc32c(0, to, n);
    }
}

enum td_rc td_record_decode(const void *bytes, size_t n, td_record **out, struct td_err *err) {
    if (n > TD_RECORD_BYTES_MAX) {
        return td_fail(err, TD_ECORRUPT, "journal record of %zu bytes, at most %d are allowed", n,
                       TD_RECORD_BYTES_MAX);
    }
    td_record *record = tandem__journal__record__unpack(NULL, n, bytes);
    if (!record) {
        return td_fail(err, TD_ECORRUPT, "journal record of %zu bytes does not decode", n);
    }
    enum td_rc rc = TD_OK;
    if (record->format != TD_JOURNAL_FORMAT) {
        rc = td_fail(err, TD_ECORRUPT, "journal record of format %u, this program knows %d",
                     record->format, TD_JOURNAL_FORMAT);
    } else if (record->body_case == TANDEM__JOURNAL__RECORD__BODY__NOT_SET || !record->beat) {
        rc = td_fail(err, TD_ECORRUPT, "journal record without a body that this program knows");
    }
    if (rc) {
        tandem__journal__record__free_unpacked(record, NULL);
        return rc;
    }
    *out = record;
    return TD_OK;
}

const char *td_record_name(const td_record *record) {
    static const char *const names[] = {"INIT",   "LEAD",    "BEAT",       "STATE", "JOB",
                                        "GANG",   "RESTORE", "DRAW",       "DROP",  "SEAL",
                                        "RESEAL", "COMMIT",  "CHECKPOINT", "FORK",  "END"};
    size_t i = (size_t)record->body_case - TANDEM__JOURNAL__RECORD__BODY_INIT;
    return i < sizeof names / sizeof *names ? names[i] : "NOTHING";
}

void *td_message_dup(const void *message) {
    const ProtobufCMessage *m = message;
    if (!m) {
        return NULL;
    }
    uint8_t small[1024];
    struct td_buf large = {0};
    size_t n = protobuf_c_message_get_packed_size(m);
    uint8_t *bytes = n <= sizeof small ? small : td_buf_room(&large, n);
    protobuf_c_message_pack(m, bytes);
    void *copy = protobuf_c_message_unpack(m->descriptor, NULL, n, bytes);
    td_assert(copy);
    td_buf_fini(&large);
    return copy;
}

struct td_pos td_pos_of(const Tandem__Journal__Position *pos) {
    return pos ? (struct td_pos){pos->offset, pos->crc} : (struct td_pos){.offset = -1};
}

struct td_group td_group_of(const Tandem__Journal__Group *group) {
    return group ? (struct td_group){group->data_epoch, group->index} : (struct td_group){0};
}

struct td_version td_version_of(const Tandem__Journal__Version *version) {
    return version ? (struct td_version){version->lineage, version->step} : (struct td_version){0};
}

bool td_pos_equal(struct td_pos a, struct td_pos b) {
    return a.offset == b.offset && a.crc == b.crc;
}

bool td_version_equal(struct td_version a, struct td_version b) {
    return a.lineage == b.lineage && a.step == b.step;
}

int td_group_compare(struct td_group a, struct td_group b) {
    if (a.data_epoch != b.data_epoch) {
        return a.data_epoch < b.data_epoch ? -1 : 1;
    }
    return a.index < b.index ? -1 : a.index > b.index;
}
