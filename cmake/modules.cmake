# A module's files are compiled together, which takes less than a third of the time, most of which
# headers take; -DCMAKE_UNITY_BUILD=OFF is for working on a few. These are compiled alone: they name
# something as a neighbour does ("redefinition" means that another one does; better rename it). So are
# those that Highway reads once for each instruction set.
set(CMAKE_UNITY_BUILD_BATCH_SIZE 48)
string(JOIN "|" PROTEAN_ALONE "jinja/text_methods" "worker/sampler_test")

# Under sanitizers only these are optimised, for the rest waits for them, and compiles twice as fast
# without. And these tests, which compute as much themselves.
set(PROTEAN_COMPUTES base chat control cost device engine fleet grammar jinja model quality quant scheduler sim
                     tokenizer trace worker)
set(PROTEAN_TESTS_COMPUTE chat control device engine fleet jinja scheduler sim tokenizer)
if(PROTEAN_SANITIZE STREQUAL "thread")  # few tests run then, and those that compute with these are short
  list(REMOVE_ITEM PROTEAN_COMPUTES chat grammar jinja quality sim tokenizer trace)
endif()

# In a release these have -O3, because of their loops, and all else -O2, which compiles sooner.
set(PROTEAN_LOOPS device model quality quant tokenizer worker)

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
  foreach(source ${sources})
    file(STRINGS ${source} reads_itself REGEX "hwy/foreach_target")
    if(reads_itself)
      list(APPEND alone ${source})
    endif()
  endforeach()
  set_source_files_properties(${alone} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER fuzzers INCLUDE REGEX "_fuzz\\.cc$")
  list(FILTER sources EXCLUDE REGEX "(_test|_fuzz|/main)\\.cc$")

  if(sources)
    add_library(${name} STATIC ${sources})
    target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(${name} PUBLIC ${ARG_DEPS})
    if(PROTEAN_SANITIZE AND name IN_LIST PROTEAN_COMPUTES)
      target_compile_options(${name} PRIVATE -O1)
    elseif(NOT PROTEAN_SANITIZE AND name IN_LIST PROTEAN_LOOPS)
      target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O3>)
    endif()
    if(PROTEAN_FUZZ AND fuzzers)
      target_compile_options(${name} PRIVATE -fsanitize=fuzzer-no-link)
    endif()
    if(PROTEAN_SANITIZE STREQUAL "address" AND (fuzzers OR name STREQUAL "grammar"))  # whose fuzzer is in tests/
      target_compile_options(${name} PRIVATE -fsanitize=${PROTEAN_POINTER_CHECKS})
    endif()
  else()
    add_library(${name} INTERFACE)
    target_include_directories(${name} INTERFACE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(${name} INTERFACE ${ARG_DEPS})
  endif()
  if(PROTEAN_TESTS AND tests)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE ${name} ${ARG_TEST_DEPS} GTest::gtest_main)
    # What is tested is optimised; a test need not be. In a release, tests of
    # PROTEAN_LOOPS have -O1 too, because they instantiate the loops' templates.
    if(name IN_LIST PROTEAN_TESTS_COMPUTE OR (NOT PROTEAN_SANITIZE AND name IN_LIST PROTEAN_LOOPS))
      target_compile_options(${name}_test PRIVATE -O1)
    else()
      target_compile_options(${name}_test PRIVATE -O0)
    endif()
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

# These take longest. They start first and in this order, so that none is left to run alone at the end.
set(PROTEAN_LONG_TESTS replica_test sim_test worker_test reference_test device_test control_test fleet_test)

# Tests run in the source folder and find data through base/test_data.h.
function(protean_add_test target)
  add_test(NAME ${target} COMMAND ${target})
  set_tests_properties(${target} PROPERTIES WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} TIMEOUT 1200)
  if(PROTEAN_SANITIZE)
    set_tests_properties(${target} PROPERTIES ENVIRONMENT PROTEAN_SANITIZED=1)  # base/repetitions_for_test.h
  endif()
  list(FIND PROTEAN_LONG_TESTS ${target} place)
  if(place GREATER -1)
    math(EXPR cost "10 - ${place}")
    set_tests_properties(${target} PROPERTIES COST ${cost})
  endif()
endfunction()
