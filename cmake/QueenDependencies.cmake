# Libraries from outside, each as queen::<name>. `./dev deps` installs them.

find_package(Threads REQUIRED)

# queen_find(<name> <header> <library>...): an imported interface target.
function(queen_find name header)
  find_path(QUEEN_${name}_INCLUDE NAMES ${header})
  find_library(QUEEN_${name}_LIBRARY NAMES ${ARGN})
  if(NOT QUEEN_${name}_INCLUDE OR NOT QUEEN_${name}_LIBRARY)
    message(FATAL_ERROR "${name}: ${header} or library ${ARGN} not found. `./dev deps` installs what is missing.")
  endif()
  add_library(queen_dep_${name} INTERFACE)
  target_link_libraries(queen_dep_${name} INTERFACE "${QUEEN_${name}_LIBRARY}")
  if(NOT QUEEN_${name}_INCLUDE STREQUAL "/usr/include")
    target_include_directories(queen_dep_${name} SYSTEM INTERFACE "${QUEEN_${name}_INCLUDE}")
  endif()
  add_library(queen::${name} ALIAS queen_dep_${name})
endfunction()

# The static libraft needs only libc; the shared one brings libuv along. Another library of the same version can take
# its place: `.ci/raft-assert` makes one with assertions.
set(QUEEN_RAFT_LIBRARY "" CACHE FILEPATH "libraft.a to link with; empty: the installed one")
if(QUEEN_RAFT_LIBRARY)
  set(QUEEN_raft_LIBRARY "${QUEEN_RAFT_LIBRARY}" CACHE FILEPATH "" FORCE)
endif()
queen_find(raft raft.h libraft.a raft)
queen_find(rocksdb rocksdb/c.h rocksdb)
queen_find(microhttpd microhttpd.h microhttpd)
queen_find(simdjson simdjson.h simdjson)
queen_find(xxhash xxhash.h xxhash)
queen_find(crypto openssl/evp.h crypto)
queen_find(tls openssl/ssl.h ssl crypto)
queen_find(zstd zstd.h zstd)

# `struct raft` is allocated by us, so header and library must be one version; and
# 0.15.0, which a plain apt-get installs on Debian 12, loses agreement.
set(queen_raft_version "")
file(STRINGS "${QUEEN_raft_INCLUDE}/raft.h" queen_raft_lines
     REGEX "^#define RAFT_VERSION_(MAJOR|MINOR|RELEASE) ")
foreach(line IN LISTS queen_raft_lines)
  string(REGEX REPLACE "^.*[ \t]([0-9]+).*$" "\\1" number "${line}")
  list(APPEND queen_raft_version ${number})
endforeach()
list(JOIN queen_raft_version "." queen_raft_version)
if(NOT queen_raft_version STREQUAL "0.22.1")
  if(queen_raft_version STREQUAL "")
    set(queen_raft_version "older than 0.22 (no version in the header)")
  endif()
  message(FATAL_ERROR "libraft ${queen_raft_version} found in ${QUEEN_raft_INCLUDE}; "
    "exactly 0.22.1 is needed (libraft-dev of the bookworm-backports suite on Debian 12, "
    "of the standard suite on Debian 13). `./dev deps` installs it.")
endif()

# Measured with many lanes and after bursts: jemalloc, as src/base/memory.c sets it up, keeps least and gives back all.
set(queen_allocator_choice "${QUEEN_ALLOCATOR}")
if(queen_allocator_choice STREQUAL "")
  set(queen_allocator_choice jemalloc)
  if(queen_instrument)
    set(queen_allocator_choice system)
  endif()
endif()
if(NOT queen_allocator_choice MATCHES "^(system|jemalloc)$")
  message(FATAL_ERROR "QUEEN_ALLOCATOR=${QUEEN_ALLOCATOR}: choose system or jemalloc")
endif()
if(NOT queen_allocator_choice STREQUAL "system")
  if(queen_instrument)
    message(FATAL_ERROR "QUEEN_ALLOCATOR=${QUEEN_ALLOCATOR} hides what a sanitizer watches; use system")
  endif()
  find_library(QUEEN_ALLOCATOR_LIBRARY_${queen_allocator_choice} NAMES ${queen_allocator_choice} REQUIRED)
  # It replaces malloc by being loaded, no symbol asks for it: keep it linked.
  target_link_libraries(queen_allocator INTERFACE
    -Wl,--push-state,--no-as-needed "${QUEEN_ALLOCATOR_LIBRARY_${queen_allocator_choice}}" -Wl,--pop-state)
endif()
