# cmake -DIN=FILE -DOUT=FILE.c -P descriptors.cmake: the bytes of IN as proto/descriptors.h has them.
file(READ ${IN} bytes HEX)
string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes "${bytes}")
file(WRITE ${OUT} "// Made from the .proto files.
#include \"proto/descriptors.h\"

static const uint8_t descriptors[] = {
${bytes}};

const uint8_t *td_proto_descriptors(size_t *n) {
    *n = sizeof descriptors;
    return descriptors;
}
")
