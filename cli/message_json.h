// Messages of the API as JSON: the fields by their names in proto/jobs.proto, all of them, in
// order. Numbers are numbers, but fixed64 (digests and ids) are strings of 16 hex digits; an enum
// is its word; the string `metrics`, which is JSON itself, is put in as what it is, null when
// empty.
#ifndef TD_CLI_MESSAGE_JSON_H
#define TD_CLI_MESSAGE_JSON_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>

#include "lib/base/buf.h"

// Appends the message and a newline; compact: in one line.
void td_message_json(const ProtobufCMessage *message, bool compact, struct td_buf *out);

#endif
