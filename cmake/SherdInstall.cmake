# cmake --install: headers as <sherd/...>, the library, and a package for find_package(sherd).
include(CMakePackageConfigHelpers)

install(TARGETS sherd EXPORT sherdTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
foreach(folder IN LISTS SHERD_FOLDERS)
  install(DIRECTORY ${folder}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sherd/${folder} FILES_MATCHING PATTERN "*.h"
    # Private: backends, and what the sources of one folder share.
    PATTERN cpu EXCLUDE PATTERN cuda EXCLUDE PATTERN reference EXCLUDE PATTERN local EXCLUDE PATTERN queue_stream.h EXCLUDE
    PATTERN argument_check.h EXCLUDE PATTERN door.h EXCLUDE PATTERN counters.h EXCLUDE
    PATTERN even_shard.h EXCLUDE PATTERN ragged_placement.h EXCLUDE PATTERN strided_copy.h EXCLUDE
    PATTERN safetensors_format.h EXCLUDE PATTERN manifest_message.h EXCLUDE PATTERN json_text.h EXCLUDE PATTERN plain_path.h EXCLUDE
    PATTERN saved_offsets.h EXCLUDE PATTERN piece_index.h EXCLUDE PATTERN verified_files.h EXCLUDE
    PATTERN weights_writer.h EXCLUDE PATTERN name_words.h EXCLUDE PATTERN role_words.h EXCLUDE PATTERN temporaries.h EXCLUDE
    PATTERN checked_communicator.h EXCLUDE PATTERN socket.h EXCLUDE PATTERN store_server.h EXCLUDE PATTERN store_table.h EXCLUDE
    PATTERN store_wire.h EXCLUDE PATTERN tcp_store.h EXCLUDE
    REGEX "nccl/(agreement|api|collectives|handle|nccl_communicator|session)\\.h$" EXCLUDE
    PATTERN muon_schedule.h EXCLUDE PATTERN muon_team.h EXCLUDE PATTERN plan_cost.h EXCLUDE)
endforeach()
install(FILES cmake/sherd.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sherd)

install(EXPORT sherdTargets NAMESPACE sherd:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/sherd)
configure_package_config_file(cmake/sherdConfig.cmake.in ${CMAKE_BINARY_DIR}/sherdConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/sherd)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/sherdConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/sherdConfig.cmake ${CMAKE_BINARY_DIR}/sherdConfigVersion.cmake
  cmake/SherdDependencies.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/sherd)
