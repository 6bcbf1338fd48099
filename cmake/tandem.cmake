# td_library(NAME DEPS ...): a static library of every .c file in the current folder.
# Adding a file needs no change here; adding an arrow between folders does.
function(td_library name)
  cmake_parse_arguments(L "" "" "DEPS;PRIVATE" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.c)
  list(FILTER sources EXCLUDE REGEX "/main\\.c$")
  if(sources)
    add_library(${name} STATIC ${sources})
    target_link_libraries(${name} PUBLIC ${L_DEPS} PRIVATE ${L_PRIVATE})
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ${L_DEPS} ${L_PRIVATE})
  endif()
endfunction()

# td_unit(NAME LIBS...): tests/unit/.../NAME.c is one cmocka program and one ctest test.
function(td_unit name)
  add_executable(${name} ${name}.c)
  target_link_libraries(${name} PRIVATE ${ARGN} PkgConfig::CMOCKA)
  target_compile_definitions(${name} PRIVATE TD_TEST_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS unit TIMEOUT 300)
endfunction()
