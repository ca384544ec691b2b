# CPack: Debian packages and an archive of what cmake --install installs, by its components (scripts/package.sh). For the
# prefix /usr.
#
#   component   Debian package      contents
#   runtime     libsherd0           libsherd.so.0
#   dev         libsherd-dev        headers, package files of CMake and pkg-config, gdb printers
#   torch       libsherd-torch-dev  the adapter for libtorch, in builds with SHERD_TORCH
#   tools       sherd-tools         train_gpt and sherd
#
# A build with CUDA makes packages of the same contents named libsherd0-cuda and so on, which replace the others.
set(suffix "")
if(SHERD_CUDA)
  set(suffix -cuda)
endif()
set(CPACK_COMPONENTS_ALL runtime dev)
set(package_runtime libsherd${PROJECT_VERSION_MAJOR})
set(package_dev libsherd-dev)
if(SHERD_TOOLS)
  list(APPEND CPACK_COMPONENTS_ALL tools)
  set(package_tools sherd-tools)
endif()
if(SHERD_TORCH)
  list(APPEND CPACK_COMPONENTS_ALL torch)
  set(package_torch libsherd-torch-dev)
endif()
set(contents_runtime "the shared library")
set(contents_dev "the headers and package files of CMake and pkg-config")
set(contents_tools "the programs train_gpt and sherd")
set(contents_torch "the adapter for modules of libtorch")

set(CPACK_GENERATOR DEB TGZ)
set(CPACK_PACKAGE_NAME sherd${suffix})
set(CPACK_PACKAGE_VENDOR "sherd maintainers")
set(CPACK_PACKAGE_CONTACT "sherd maintainers <maintainers@sherd.invalid>")
set(CPACK_PACKAGE_DESCRIPTION "ZeRO-0 to ZeRO-3 and hybrid sharding of parameters, gradients and
optimizer state over threads, MPI or NCCL, with AdamW, Muon and checkpoints
that resume on any number of ranks.")
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_THREADS 0)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY "=")
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR})  # libsherd.so.0 of the tools
set(same_version "(= ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})")
set(runtime "${package_runtime}${suffix} ${same_version}")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/packaging/debian/triggers)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS ${runtime})
set(CPACK_DEBIAN_TORCH_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_TORCH_PACKAGE_DEPENDS "${package_dev}${suffix} ${same_version}")
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION science)
set(CPACK_DEBIAN_TOOLS_PACKAGE_DEPENDS ${runtime})
if(SHERD_MPI)
  set(CPACK_DEBIAN_TOOLS_PACKAGE_SUGGESTS openmpi-bin)
endif()

configure_file(packaging/debian/changelog.in ${PROJECT_BINARY_DIR}/debian/changelog @ONLY)
execute_process(COMMAND gzip -9n -f -k ${PROJECT_BINARY_DIR}/debian/changelog COMMAND_ERROR_IS_FATAL ANY)
foreach(component IN LISTS CPACK_COMPONENTS_ALL)
  string(TOUPPER ${component} upper)
  set(package ${package_${component}}${suffix})
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${package})
  set(CPACK_DEBIAN_${upper}_DESCRIPTION "${CPACK_PACKAGE_DESCRIPTION}\n.\nThis package has ${contents_${component}}.")
  if(SHERD_CUDA)
    foreach(field CONFLICTS REPLACES PROVIDES)
      set(CPACK_DEBIAN_${upper}_PACKAGE_${field} ${package_${component}})
    endforeach()
  endif()
  set(doc ${CMAKE_INSTALL_DATAROOTDIR}/doc/${package})
  install(FILES packaging/debian/copyright DESTINATION ${doc} COMPONENT ${component})
  install(FILES ${PROJECT_BINARY_DIR}/debian/changelog.gz RENAME changelog.Debian.gz DESTINATION ${doc} COMPONENT ${component})
endforeach()
# Manual pages are what --help says, where help2man is installed.
find_program(HELP2MAN help2man)
if(HELP2MAN AND SHERD_TOOLS)
  function(manual_page target name summary)
    set(page ${PROJECT_BINARY_DIR}/debian/${name}.1)
    add_custom_command(OUTPUT ${page}.gz COMMAND ${HELP2MAN} --no-info --name=${summary} --output=${page} $<TARGET_FILE:${target}>
      COMMAND gzip -9n -f ${page} DEPENDS ${target} VERBATIM)
    add_custom_target(manual_${name} ALL DEPENDS ${page}.gz)
    install(FILES ${page}.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT tools)
  endfunction()
  manual_page(train_gpt train_gpt "train GPT models on sharded ranks")
  manual_page(sherd_tool sherd "checkpoints, layouts, plans, traces and supervised runs")
endif()
# gdb loads the printers by the library's path.
install(FILES packaging/gdb/sherd.py RENAME libsherd.so.${PROJECT_VERSION}-gdb.py COMPONENT dev
  DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/gdb/auto-load${CMAKE_INSTALL_FULL_LIBDIR})
# Debian's packages find libsherd.so.0 in the system's folder, all others by RPATH.
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/packaging/debian/remove_rpath.cmake)
include(CPack)
