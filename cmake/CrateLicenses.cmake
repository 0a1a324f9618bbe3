# cmake -DCARGO=... -DMANIFEST=.../Cargo.toml -DTARGET=TRIPLE -DOUT=DIR -P CrateLicenses.cmake
# Gathers what the crates of a Cargo.lock say about their licences: OUT/crates.txt names each crate with its terms,
# OUT/NAME-VERSION/ holds its licence files. Reads cargo's own copies of the crates, so it runs after cargo built them.
execute_process(
  COMMAND "${CARGO}" metadata --locked --offline --format-version 1 --filter-platform "${TARGET}" --manifest-path "${MANIFEST}"
  OUTPUT_VARIABLE metadata COMMAND_ERROR_IS_FATAL ANY)
string(JSON count LENGTH "${metadata}" packages)
math(EXPR last "${count} - 1")
file(REMOVE_RECURSE "${OUT}")
foreach(index RANGE ${last})
  string(JSON package GET "${metadata}" packages ${index})
  string(JSON source GET "${package}" source)
  if(NOT source)
    continue()  # our own crate
  endif()
  string(JSON name GET "${package}" name)
  string(JSON version GET "${package}" version)
  string(JSON manifest GET "${package}" manifest_path)
  string(JSON license ERROR_VARIABLE none GET "${package}" license)
  if(none OR NOT license)
    set(license "see its files")
  endif()
  cmake_path(GET manifest PARENT_PATH folder)
  # One folder down: C sources that a crate brings along.
  set(files "")
  foreach(word LICENSE LICENCE COPYING NOTICE UNLICENSE license)
    file(GLOB some "${folder}/${word}*" "${folder}/*/${word}*")
    list(APPEND files ${some})
  endforeach()
  foreach(path IN LISTS files)
    if(NOT IS_DIRECTORY "${path}")
      cmake_path(RELATIVE_PATH path BASE_DIRECTORY "${folder}" OUTPUT_VARIABLE relative)
      cmake_path(GET relative PARENT_PATH below)
      file(COPY "${path}" DESTINATION "${OUT}/${name}-${version}/${below}")
    endif()
  endforeach()
  string(APPEND list "${name} ${version}: ${license}\n")
endforeach()
file(WRITE "${OUT}/crates.txt" "${list}")
