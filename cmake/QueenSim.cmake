# tests/sim: the simulator of whole clusters. It links the product's libraries as they are; what it replaces (loop, clocks, log, store,
# net, files) it defines itself, so that those members are never taken out of the libraries; a few functions and system calls are
# redirected by the linker.

set(QUEEN_SIM_WRAPPED
  random_bytes uuid_mint nanosleep _exit engine_apply
  open close read pread write pwrite fsync fdatasync ftruncate flock rename unlink rmdir link mkdir
  stat lstat fstat access statvfs)

function(queen_sim_link name)
  target_link_libraries(${name} PRIVATE queen_flags queen_allocator ${ARGN})
  foreach(function IN LISTS QUEEN_SIM_WRAPPED)
    target_link_options(${name} PRIVATE "-Wl,--wrap=${function}")
  endforeach()
endfunction()

# queen_sim: the proof. queen_sim_planted: the same over rooms compiled with QUEEN_PLANT, where a bug can be switched on.
function(queen_add_sim)
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/sim/*.c")
  if(NOT sources)
    return()
  endif()
  add_executable(queen_sim EXCLUDE_FROM_ALL ${sources})
  queen_sim_link(queen_sim ${QUEEN_LIBRARIES})

  set(planted "")
  foreach(room engine replica broker)
    file(GLOB room_sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/src/${room}/*.c")
    list(APPEND planted ${room_sources})
  endforeach()
  add_library(q_planted STATIC EXCLUDE_FROM_ALL ${planted})
  target_compile_definitions(q_planted PRIVATE QUEEN_PLANT=1)
  target_link_libraries(q_planted PRIVATE queen_flags queen::raft)
  add_executable(queen_sim_planted EXCLUDE_FROM_ALL ${sources})
  target_compile_definitions(queen_sim_planted PRIVATE QUEEN_PLANT=1)
  queen_sim_link(queen_sim_planted q_planted ${QUEEN_LIBRARIES})
endfunction()
