# Run by CPack before it makes packages; Debian's programs have no RPATH.
if(CPACK_GENERATOR STREQUAL DEB)
  file(GLOB_RECURSE programs ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/*/bin/*)
  foreach(program IN LISTS programs)
    file(RPATH_REMOVE FILE ${program})
  endforeach()
endif()
