# A module's files are compiled together, eight at a time, which takes a third of the time, most of
# which headers take; -DCMAKE_UNITY_BUILD=OFF is for working on a few of them. These are compiled
# alone: they name something as a neighbour does ("redefinition" means that another one does; better
# rename it), or are read once for each instruction set themselves.
set(CMAKE_UNITY_BUILD_BATCH_SIZE 8)
string(JOIN "|" PROTEAN_ALONE "chat/text_methods" "device/cpu/[a-z0-9_]+" "worker/sampler_test")

# protean_module(NAME DEPS ...): a folder is a module. Every x.cc is library, every x_test.cc goes
# into NAME_test, every x_fuzz.cc is a libFuzzer program of its own, main.cc is left to the caller.
# TEST_DEPS are for the test only.
function(protean_module name)
  cmake_parse_arguments(ARG "" "" "DEPS;TEST_DEPS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  set(tests ${sources})
  set(fuzzers ${sources})
  set(alone ${sources})
  list(FILTER alone INCLUDE REGEX "/src/(${PROTEAN_ALONE})\\.cc$")
  set_source_files_properties(${alone} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER fuzzers INCLUDE REGEX "_fuzz\\.cc$")
  list(FILTER sources EXCLUDE REGEX "(_test|_fuzz|/main)\\.cc$")

  if(sources)
    add_library(${name} STATIC ${sources})
    target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(${name} PUBLIC ${ARG_DEPS})
  else()
    add_library(${name} INTERFACE)
    target_include_directories(${name} INTERFACE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(${name} INTERFACE ${ARG_DEPS})
  endif()
  if(PROTEAN_TESTS AND tests)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE ${name} ${ARG_TEST_DEPS} GTest::gtest_main)
    target_compile_options(${name}_test PRIVATE -O1)  # what is tested is optimised; a test need not be
    protean_add_test(${name}_test)
  endif()
  if(PROTEAN_FUZZ)
    foreach(fuzzer ${fuzzers})
      get_filename_component(target ${fuzzer} NAME_WE)
      add_executable(${target} ${fuzzer})
      target_link_libraries(${target} PRIVATE ${name} -fsanitize=fuzzer)
    endforeach()
  endif()
endfunction()

# Tests run in the source folder and find data through base/test_data.h.
function(protean_add_test target)
  add_test(NAME ${target} COMMAND ${target})
  set_tests_properties(${target} PROPERTIES WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} TIMEOUT 600)
endfunction()
