# cmake --install: headers as <sherd/...>, the library, and a package for find_package(sherd).
include(CMakePackageConfigHelpers)

get_property(libraries GLOBAL PROPERTY SHERD_LIBRARIES)
install(TARGETS sherd ${libraries} EXPORT sherdTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
sherd_public_headers(headers)
foreach(header IN LISTS headers)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sherd/${folder})
endforeach()
install(FILES include/sherd/sherd.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sherd)

if(SHERD_TORCH)
  install(TARGETS sherd_torch EXPORT sherdTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  file(GLOB torch_headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/adapters/torch/*.h)
  install(FILES ${torch_headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sherd/torch)
  install(FILES cmake/SherdTorch.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/sherd)
endif()
install(EXPORT sherdTargets NAMESPACE sherd:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/sherd)
configure_package_config_file(cmake/sherdConfig.cmake.in ${CMAKE_BINARY_DIR}/sherdConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/sherd)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/sherdConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${CMAKE_BINARY_DIR}/sherdConfig.cmake ${CMAKE_BINARY_DIR}/sherdConfigVersion.cmake
  cmake/SherdDependencies.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/sherd)
