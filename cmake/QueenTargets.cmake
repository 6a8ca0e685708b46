# Targets made by globbing, so that a new file needs no line here.

# q_<room> from src/<room>/*.c and *.cc, linked with the rooms added before it.
macro(queen_add_room room)
  file(GLOB queen_sources CONFIGURE_DEPENDS
       "${CMAKE_SOURCE_DIR}/src/${room}/*.c" "${CMAKE_SOURCE_DIR}/src/${room}/*.cc")
  list(REMOVE_ITEM queen_sources "${CMAKE_SOURCE_DIR}/src/cli/main.c")
  if(queen_sources)
    add_library(q_${room} STATIC ${queen_sources})
    target_link_libraries(q_${room} PRIVATE queen_flags)
    # Nearest room first: the order a static link resolves in.
    target_link_libraries(q_${room} PUBLIC ${QUEEN_LIBRARIES} ${QUEEN_NEEDS_${room}})
    list(PREPEND QUEEN_LIBRARIES q_${room})
  else()
    message(STATUS "Room ${room}: no source yet, skipped")
  endif()
endmacro()

# tests/unit/test_<x>.c: one cmocka executable and one ctest each.
function(queen_add_unit_tests)
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/unit/test_*.c")
  if(NOT sources)
    return()
  endif()
  find_path(QUEEN_CMOCKA_INCLUDE NAMES cmocka.h)
  find_library(QUEEN_CMOCKA_LIBRARY NAMES cmocka)
  if(NOT QUEEN_CMOCKA_INCLUDE OR NOT QUEEN_CMOCKA_LIBRARY)
    message(STATUS "cmocka not found: unit tests are not built. `./dev deps` installs it.")
    return()
  endif()
  foreach(source IN LISTS sources)
    get_filename_component(name "${source}" NAME_WE)
    add_executable(${name} "${source}")
    target_link_libraries(${name} PRIVATE queen_flags ${QUEEN_LIBRARIES} "${QUEEN_CMOCKA_LIBRARY}")
    target_compile_definitions(${name} PRIVATE QUEEN_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests/unit")
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES TIMEOUT 300)
  endforeach()
endfunction()

# tests/faults: a preload library (never sanitized: it is loaded into any build) and its driver.
function(queen_add_fault_tools)
  file(GLOB sources CONFIGURE_DEPENDS
       "${CMAKE_SOURCE_DIR}/tests/faults/lib_*.c" "${CMAKE_SOURCE_DIR}/tests/faults/powerloss.c")
  if(sources)
    add_library(q_faults SHARED ${sources})
    target_link_libraries(q_faults PRIVATE queen_warnings Threads::Threads ${CMAKE_DL_LIBS})
  endif()
  file(GLOB driver CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/faults/powercut.c")
  if(driver)
    add_executable(q_powercut ${driver})
    target_link_libraries(q_powercut PRIVATE queen_warnings Threads::Threads ${CMAKE_DL_LIBS})
  endif()
endfunction()

# tests/crash/load.c: the client that keeps a broker busy while it is killed.
function(queen_add_crash_tools)
  file(GLOB driver CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/crash/load.c")
  if(driver)
    add_executable(q_load ${driver})
    target_link_libraries(q_load PRIVATE queen_flags ${QUEEN_LIBRARIES} Threads::Threads m)
  endif()
endfunction()

# tests/fuzz/fuzz_<x>.c or .cc: one libFuzzer executable each.
function(queen_add_fuzzers)
  file(GLOB sources CONFIGURE_DEPENDS
       "${CMAKE_SOURCE_DIR}/tests/fuzz/fuzz_*.c" "${CMAKE_SOURCE_DIR}/tests/fuzz/fuzz_*.cc")
  set(names "")
  foreach(source IN LISTS sources)
    get_filename_component(name "${source}" NAME_WE)
    add_executable(${name} "${source}")
    target_link_libraries(${name} PRIVATE queen_flags ${QUEEN_LIBRARIES})
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    # libFuzzer's entry point has no header to declare it.
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:C>:-Wno-missing-prototypes>)
    target_compile_definitions(${name} PRIVATE QUEEN_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests/fuzz")
    list(APPEND names ${name})
  endforeach()
  add_custom_target(fuzzers DEPENDS ${names})
endfunction()
