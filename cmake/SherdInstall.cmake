# cmake --install: headers as <sherd/...>, the library, and package files for find_package(sherd) and pkg-config.
# Components: runtime (libsherd.so.0), dev, torch (the adapter), tools (programs).
include(CMakePackageConfigHelpers)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/sherd)
if(BUILD_SHARED_LIBS)
  install(TARGETS sherd EXPORT sherdTargets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT dev)
  file(RELATIVE_PATH prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  configure_file(cmake/sherd.pc.in ${PROJECT_BINARY_DIR}/sherd.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/sherd.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)
else()
  get_property(libraries GLOBAL PROPERTY SHERD_LIBRARIES)
  install(TARGETS sherd ${libraries} EXPORT sherdTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev)
endif()
sherd_public_headers(headers)
foreach(header IN LISTS headers)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sherd/${folder} COMPONENT dev)
endforeach()
install(FILES include/sherd/sherd.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sherd COMPONENT dev)

if(SHERD_TORCH)
  install(TARGETS sherd_torch EXPORT sherdTorchTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT torch)
  file(GLOB torch_headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/adapters/torch/*.h)
  install(FILES ${torch_headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sherd/torch COMPONENT torch)
  install(FILES include/sherd/torch.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sherd COMPONENT torch)
  install(FILES cmake/SherdTorch.cmake DESTINATION ${package_folder} COMPONENT torch)
  install(EXPORT sherdTorchTargets NAMESPACE sherd:: DESTINATION ${package_folder} COMPONENT torch)
endif()
install(EXPORT sherdTargets NAMESPACE sherd:: DESTINATION ${package_folder} COMPONENT dev)
configure_package_config_file(cmake/sherdConfig.cmake.in ${PROJECT_BINARY_DIR}/sherdConfig.cmake
  INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/sherdConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/sherdConfig.cmake ${PROJECT_BINARY_DIR}/sherdConfigVersion.cmake
  cmake/SherdDependencies.cmake DESTINATION ${package_folder} COMPONENT dev)
