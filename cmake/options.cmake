# Flags every target shares. Contraction is off because a row must give the same bits whatever
# tile it was computed in: a fused and an unfused multiply-add round differently.
add_compile_options(-Wall -Wextra -Werror -ffp-contract=off -fno-math-errno)
# Designated initialisers leave fields at their defaults on purpose.
add_compile_options(-Wno-missing-field-initializers)
# GCC takes files that are compiled together for headers.
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(-Wno-subobject-linkage)
endif()

if(PROTEAN_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
  # These checks of each pointer take long to compile, and ASan stops at most of what they find: accesses through null or
  # outside of objects. Modules with fuzzers keep them (cmake/modules.cmake), except maybe in functions of headers, of which
  # the linker keeps any module's copy.
  set(PROTEAN_POINTER_CHECKS null,object-size)
  add_compile_options(-fno-sanitize=${PROTEAN_POINTER_CHECKS})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    # Clang 14 cannot lay out its function-type prologue before a coroutine.
    add_compile_options(-fno-sanitize=function)
  endif()
elseif(PROTEAN_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
elseif(PROTEAN_SANITIZE)
  message(FATAL_ERROR "PROTEAN_SANITIZE is '${PROTEAN_SANITIZE}': use address, thread or leave it empty")
endif()

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()
