option(TANDEM_BUILD_TESTS "Build tests and micro-benchmarks" ON)
option(TANDEM_WERROR "Treat warnings as errors" ON)
set(TANDEM_SANITIZE "" CACHE STRING "Sanitizers for every target: empty, 'address,undefined' or 'thread'")
option(TANDEM_FUZZ "Build the libFuzzer targets (needs clang)" OFF)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")

# Installed binaries find the libraries that travel with them (bin/../lib), wherever the folder lies.
set(CMAKE_INSTALL_RPATH "$ORIGIN/../lib")
set(CMAKE_BUILD_WITH_INSTALL_RPATH OFF)

find_program(TANDEM_CCACHE ccache)
if(TANDEM_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER "${TANDEM_CCACHE}")
  set(CMAKE_CXX_COMPILER_LAUNCHER "${TANDEM_CCACHE}")
endif()

# The compiler's own linker. LLD (14, as Debian 12 has it) keeps GCC's unwind entries of functions without code, which hide those
# of the functions that follow them: an exception that passed through one ended the process (tests/lint/unwind_table.py).

if(TANDEM_FUZZ)
  # Coverage feedback from the libraries too, not only from the fuzzers' own files.
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# Assembly of the text crates says nothing about the stack, which the linker takes for the wish to execute code on it.
add_link_options(-Wl,-z,noexecstack)

# See TANDEM_UNITY_LIBRARIES in TandemTargets.cmake.
if(CMAKE_UNITY_BUILD)
  add_compile_options(-Wno-subobject-linkage)  # a type local to a file, used in a class that is private to that file as well
endif()

if(TANDEM_SANITIZE)
  add_compile_options(-fsanitize=${TANDEM_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  if(TANDEM_SANITIZE STREQUAL "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Asio's fences are unknown to TSan, which GCC warns of; its queues are guarded by mutexes as well.
    add_compile_options(-Wno-tsan)
  endif()
  add_link_options(-fsanitize=${TANDEM_SANITIZE})
endif()
