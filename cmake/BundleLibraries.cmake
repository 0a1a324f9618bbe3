# Runs at install time, after the programs are in place: copies the shared libraries that they need into PREFIX/lib.
set(bundle_root "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}")
file(GLOB programs "${bundle_root}/bin/tandem*")

# Shared memory and TCP are built into libuct, the rest are modules. All of them travel along: for one that is missing
# here UCX would look in the system's folder and might load that of another version.
file(GLOB modules "${TANDEM_BUNDLE_MODULES}/libuct_*.so*")

# glibc belongs to the system, and so does what must match its kernel or configuration.
set(system_libraries "^ld-linux" "^libc\\.so" "^libm\\.so" "^libpthread\\.so" "^libdl\\.so" "^librt\\.so" "^libresolv\\.so"
    "^libutil\\.so" "^linux-vdso")
file(GET_RUNTIME_DEPENDENCIES
  EXECUTABLES ${programs}
  MODULES ${modules}
  RESOLVED_DEPENDENCIES_VAR libraries
  UNRESOLVED_DEPENDENCIES_VAR unresolved
  PRE_EXCLUDE_REGEXES ${system_libraries})
if(unresolved)
  message(FATAL_ERROR "libraries that the bundle needs and that were not found: ${unresolved}")
endif()
foreach(library IN LISTS libraries)
  file(INSTALL DESTINATION "${CMAKE_INSTALL_PREFIX}/lib" TYPE SHARED_LIBRARY FOLLOW_SYMLINK_CHAIN FILES "${library}")
endforeach()
foreach(module IN LISTS modules)
  file(INSTALL DESTINATION "${CMAKE_INSTALL_PREFIX}/lib/ucx" TYPE SHARED_LIBRARY FOLLOW_SYMLINK_CHAIN FILES "${module}")
endforeach()
# A module with a RUNPATH of its own would look for its libraries in the system instead of here.
file(GLOB installed_modules "${bundle_root}/lib/ucx/*.so.*.*" "${bundle_root}/lib/*.so.*")
foreach(library IN LISTS installed_modules)
  if(NOT IS_SYMLINK "${library}")
    file(RPATH_REMOVE FILE "${library}")
  endif()
endforeach()
