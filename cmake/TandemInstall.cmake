# cmake --install build/release --prefix DIR makes a folder that runs wherever glibc is as new as here: programs, every
# shared library beside glibc, UCX's modules, models, cluster files and the licences of what is bundled.

# DT_RPATH instead of DT_RUNPATH: it also serves the libraries' own dependencies, which know nothing of this folder.
add_link_options(-Wl,--disable-new-dtags)

option(TANDEM_BUNDLE_CUDA "Copy cuBLASLt and NCCL (750 MB) into what cmake --install makes" OFF)

set(TANDEM_UCX_MODULES "${UCX_LIBDIR}/ucx" CACHE PATH "Folder of UCX's transport modules")

function(tandem_install_bundle)
  install(FILES LICENSE CHANGELOG.md deploy/bundle/README.md DESTINATION .)
  install(DIRECTORY models/ DESTINATION models)
  install(FILES deploy/quickstart.yaml DESTINATION deploy)
  install(DIRECTORY docs/ DESTINATION docs)
  install(DIRECTORY "${TANDEM_CRATE_LICENSES}/" DESTINATION share/licenses/rust)
  # What is compiled in from headers alone, so that no library tells of it.
  set(compiled_in "")
  foreach(header boost/beast.hpp CLI/CLI.hpp tl/expected.hpp xxhash.h)
    find_file(found_header "${header}" NO_CACHE)
    if(found_header)
      list(APPEND compiled_in "${found_header}")
    endif()
    unset(found_header)
  endforeach()
  install(CODE "set(TANDEM_BUNDLE_MODULES \"${TANDEM_UCX_MODULES}\")\nset(TANDEM_BUNDLE_COMPILED_IN \"${compiled_in}\")")
  install(SCRIPT cmake/BundleLibraries.cmake)
  install(SCRIPT cmake/BundleLicenses.cmake)
  if(TANDEM_HAVE_CUDA AND TANDEM_BUNDLE_CUDA)
    # Opened at run time by these names; without them in lib/ they are searched where docs/adr/0005 says.
    install(FILES "${TANDEM_CUDA_LIBDIR}/libcublasLt.so.13" "${TANDEM_NCCL_LIBDIR}/libnccl.so.2" DESTINATION lib)
  endif()
endfunction()
