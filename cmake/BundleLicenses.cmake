# Runs at install time, after BundleLibraries.cmake: share/licenses/PACKAGE/copyright for every package of the distribution
# that travels along, as a shared library (the list "libraries") or compiled in (TANDEM_BUNDLE_COMPILED_IN, one file of each).
find_program(dpkg_query dpkg-query)
if(dpkg_query)
  foreach(file IN LISTS libraries TANDEM_BUNDLE_COMPILED_IN)
    file(REAL_PATH "${file}" real)
    execute_process(COMMAND "${dpkg_query}" -S "${real}" OUTPUT_VARIABLE owner RESULT_VARIABLE code ERROR_QUIET)
    if(NOT code EQUAL 0)
      # Merged /usr: the package may list the file under the other spelling.
      string(REGEX REPLACE "^/usr/" "/" other "${real}")
      execute_process(COMMAND "${dpkg_query}" -S "${other}" OUTPUT_VARIABLE owner RESULT_VARIABLE code ERROR_QUIET)
    endif()
    string(REGEX REPLACE "[:,].*" "" package "${owner}")
    if(code EQUAL 0 AND EXISTS "/usr/share/doc/${package}/copyright")
      file(INSTALL DESTINATION "${CMAKE_INSTALL_PREFIX}/share/licenses/${package}" TYPE FILE
           FILES "/usr/share/doc/${package}/copyright")
    endif()
  endforeach()
endif()
