# cmake -DROOT=… -DOUT=… -DVERSION=… -P build_id.cmake: writes build_id.c with a digest over the sources of the products.
file(GLOB_RECURSE sources RELATIVE ${ROOT} ${ROOT}/lib/*.[ch] ${ROOT}/proto/*.proto ${ROOT}/coordinator/*.[ch]
     ${ROOT}/controllers/*.[ch] ${ROOT}/workers/*.[ch] ${ROOT}/cli/*.[ch])
list(SORT sources)
set(all "")
foreach(source ${sources})
  file(SHA256 ${ROOT}/${source} digest)
  string(APPEND all "${source} ${digest}\n")
endforeach()
string(SHA256 id "${all}")
string(SUBSTRING ${id} 0 16 id)
set(text "#include \"lib/spec/build_id.h\"\n
const char *td_version(void)\n{\n    return \"${VERSION}\";\n}\n
const char *td_build_id(void)\n{\n    return \"${id}\";\n}\n")
set(old "")
if(EXISTS ${OUT})
  file(READ ${OUT} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE ${OUT} "${text}")
endif()
