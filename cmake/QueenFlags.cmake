# Flags of our own code. queen_warnings: warnings only. queen_flags: warnings and
# what the chosen kind of build instruments.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()

set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}")
set(THREADS_PREFER_PTHREAD_FLAG ON)

# Assertions stay in release builds: no -DNDEBUG in any configuration.
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O2 -g")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g")
# Instrumented code takes long to compile at -O2 and gains little by it; -g1 is enough for names and lines.
if(QUEEN_SANITIZE OR QUEEN_FUZZ)
  set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O1 -g1")
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")
endif()
set(CMAKE_C_FLAGS_RELEASE "-O3")
set(CMAKE_CXX_FLAGS_RELEASE "-O3")

find_program(QUEEN_CCACHE ccache)
if(QUEEN_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER "${QUEEN_CCACHE}")
  set(CMAKE_CXX_COMPILER_LAUNCHER "${QUEEN_CCACHE}")
endif()

if(NOT QUEEN_SANITIZE MATCHES "^(|address|thread)$")
  message(FATAL_ERROR "QUEEN_SANITIZE=${QUEEN_SANITIZE}: choose address, thread or nothing")
endif()
if(QUEEN_FUZZ AND NOT CMAKE_C_COMPILER_ID STREQUAL "Clang")
  message(FATAL_ERROR "QUEEN_FUZZ needs clang: -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++")
endif()
if(QUEEN_FUZZ AND QUEEN_SANITIZE STREQUAL "thread")
  message(FATAL_ERROR "QUEEN_FUZZ uses ASan; it cannot be combined with QUEEN_SANITIZE=thread")
endif()

# Empty, so that a file which defines it itself says the same.
add_compile_definitions($<$<COMPILE_LANGUAGE:C>:_GNU_SOURCE=> QUEEN_VERSION="${PROJECT_VERSION}")
if(QUEEN_CRASH_POINTS)
  add_compile_definitions(QUEEN_CRASH_POINTS=1)
endif()

add_library(queen_warnings INTERFACE)
target_compile_options(queen_warnings INTERFACE
  -Wall -Wextra -Wshadow -Wconversion -fno-strict-aliasing -fno-common
  $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes -Wvla>
  $<$<COMPILE_LANGUAGE:CXX>:-fno-exceptions -fno-rtti>)
# libFuzzer's entry point has no header that could declare it.
if(NOT QUEEN_FUZZ)
  target_compile_options(queen_warnings INTERFACE $<$<COMPILE_LANGUAGE:C>:-Wmissing-prototypes>)
endif()
# SSE4.2 carries the CRC32C instruction the log's checksum is built on.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$" AND QUEEN_ARCH)
  target_compile_options(queen_warnings INTERFACE -march=${QUEEN_ARCH})
endif()
# `must(!"reason")` is how a state that cannot be is said.
if(CMAKE_C_COMPILER_ID STREQUAL "Clang")
  target_compile_options(queen_warnings INTERFACE -Wno-string-conversion)
endif()
# GCC's optimiser-driven "may be" warnings are unreliable in instrumented code.
if(QUEEN_WERROR AND NOT QUEEN_SANITIZE)
  target_compile_options(queen_warnings INTERFACE -Werror)
endif()
target_include_directories(queen_warnings INTERFACE "${CMAKE_SOURCE_DIR}/src")

add_library(queen_flags INTERFACE)
target_link_libraries(queen_flags INTERFACE queen_warnings)
target_link_options(queen_flags INTERFACE -Wl,--as-needed)

set(queen_instrument "")
if(QUEEN_SANITIZE STREQUAL "address" OR QUEEN_FUZZ)
  set(queen_instrument -fsanitize=address,undefined -fno-sanitize-recover=all)
elseif(QUEEN_SANITIZE STREQUAL "thread")
  set(queen_instrument -fsanitize=thread)
  if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
    target_compile_options(queen_flags INTERFACE -Wno-tsan)
  endif()
endif()
if(queen_instrument)
  target_compile_options(queen_flags INTERFACE ${queen_instrument} -fno-omit-frame-pointer)
  target_link_options(queen_flags INTERFACE ${queen_instrument})
  if(CMAKE_C_COMPILER_ID STREQUAL "Clang")
    target_compile_options(queen_flags INTERFACE -Wno-unknown-warning-option)
  endif()
endif()
if(QUEEN_FUZZ)
  target_compile_options(queen_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(QUEEN_LTO AND NOT queen_instrument)
  set(CMAKE_INTERPROCEDURAL_OPTIMIZATION ON)
endif()

add_library(queen_allocator INTERFACE)
