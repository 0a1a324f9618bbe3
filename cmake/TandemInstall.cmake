# cmake --install build/release --prefix DIR makes a folder that runs wherever glibc is as new as here: programs, every
# shared library beside glibc, UCX's modules, models, cluster files and the licences of what is bundled.

# DT_RPATH instead of DT_RUNPATH: it also serves the libraries' own dependencies, which know nothing of this folder.
add_link_options(-Wl,--disable-new-dtags)

set(TANDEM_UCX_MODULES "${UCX_LIBDIR}/ucx" CACHE PATH "Folder of UCX's transport modules")

function(tandem_install_bundle)
  install(FILES LICENSE README.md CHANGELOG.md DESTINATION .)
  install(DIRECTORY models/ DESTINATION models)
  install(FILES deploy/quickstart.yaml DESTINATION deploy)
  install(FILES docs/configuration.md docs/architecture.md DESTINATION docs)
  install(CODE "set(TANDEM_BUNDLE_MODULES \"${TANDEM_UCX_MODULES}\")")
  install(SCRIPT cmake/BundleLibraries.cmake)
endfunction()
