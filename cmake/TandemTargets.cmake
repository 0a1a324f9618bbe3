# Warnings apply to Tandem's own sources only, never to generated or third-party code.
add_library(tandem_warnings INTERFACE)
target_compile_options(tandem_warnings INTERFACE -Wall -Wextra -Wconversion -Wshadow)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC bug 105651: false alarms on "literal" + std::string.
  target_compile_options(tandem_warnings INTERFACE -Wno-restrict)
endif()
if(TANDEM_WERROR)
  target_compile_options(tandem_warnings INTERFACE -Werror)
endif()

# Libraries of which the sanitizer presets compile several files as one: those that spend their time in Boost's headers. Two files
# of one of these must not give different things the same name.
set(TANDEM_UNITY_LIBRARIES
    tandem_base tandem_client tandem_config tandem_model tandem_net tandem_obs tandem_router_api tandem_router_cluster
    tandem_router_dispatch tandem_router_http tandem_router_stream tandem_run_dir tandem_supervise tandem_text)

# tandem_library(NAME SOURCES a.cc ... [DEPS ...] [PRIVATE_DEPS ...])
# One folder is one target; includes are relative to the repository root. Sources may be .cu where TANDEM_HAVE_CUDA is set.
function(tandem_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  tandem_cuda_objects(${name} ARG_SOURCES)
  add_library(${name} STATIC ${ARG_SOURCES})
  if(CMAKE_UNITY_BUILD AND NOT name IN_LIST TANDEM_UNITY_LIBRARIES)
    set_target_properties(${name} PROPERTIES UNITY_BUILD OFF)
  endif()
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  target_include_directories(${name} PUBLIC "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE tandem_warnings ${ARG_PRIVATE_DEPS})
endfunction()

# tandem_binary(NAME SOURCES main.cc ... DEPS ...) builds and installs build/<preset>/bin/NAME.
function(tandem_binary name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE tandem_warnings ${ARG_DEPS})
  install(TARGETS ${name} RUNTIME DESTINATION bin)
endfunction()

# Everything that a sanitizer build runs, without the rest: cmake --build build/tsan --target tandem_sims
add_custom_target(tandem_sims)
add_custom_target(tandem_fuzzers)
add_custom_target(tandem_integration_tests)
# And everything that wants a card, for tests/gpu/run.sh.
add_custom_target(tandem_gpu_tests)

# tandem_test(NAME LABEL unit|sim|integration|fuzz|bench|gpu|multi_gpu SOURCES ... DEPS ... [TIMEOUT seconds])
# Tests of the last two labels are built everywhere and skip, visibly, where no card is.
function(tandem_test name)
  cmake_parse_arguments(ARG "" "LABEL;TIMEOUT" "SOURCES;DEPS" ${ARGN})
  tandem_cuda_objects(${name} ARG_SOURCES)
  add_executable(${name} ${ARG_SOURCES})
  # Files of tests repeat each other's helpers by name.
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX UNITY_BUILD OFF)
  target_link_libraries(${name} PRIVATE tandem_warnings ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  target_compile_definitions(${name} PRIVATE TANDEM_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data"
                                             TANDEM_MODELS="${PROJECT_SOURCE_DIR}/models")
  # For what hangs, not for what is slow: a busy machine takes ten times as long.
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  if(ARG_LABEL STREQUAL "sim")
    add_dependencies(tandem_sims ${name})
  elseif(ARG_LABEL STREQUAL "integration")
    add_dependencies(tandem_integration_tests ${name})
  elseif(ARG_LABEL MATCHES "gpu")
    add_dependencies(tandem_gpu_tests ${name})
    # They travel to machines with cards: cmake --install build/release --component gpu-tests.
    install(TARGETS ${name} RUNTIME DESTINATION tests/bin COMPONENT gpu-tests EXCLUDE_FROM_ALL)
    set_target_properties(${name} PROPERTIES INSTALL_RPATH "$ORIGIN/../../lib")
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABEL}" TIMEOUT ${ARG_TIMEOUT})
endfunction()
