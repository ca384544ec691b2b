# sherd_shared_library(sherd): the folders' libraries as one shared library. sherd.map.in says what it exports, so that headers
# need no macro; generated messages are hidden where they are compiled. Built in place of static libraries with
# BUILD_SHARED_LIBS, and by the test of its symbols.
function(sherd_shared_library target)
  get_property(libraries GLOBAL PROPERTY SHERD_LIBRARIES)
  add_library(${target} SHARED ${PROJECT_SOURCE_DIR}/include/sherd/sherd.h)
  foreach(library IN LISTS libraries)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${library}>)
  endforeach()
  target_link_libraries(${target} PRIVATE ${libraries})  # what they link, and objects of generated messages
  target_include_directories(${target} INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(${target} INTERFACE cxx_std_20)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/sherd.map.in ${PROJECT_BINARY_DIR}/sherd.map @ONLY)
  target_link_options(${target} PRIVATE -Wl,--version-script=${PROJECT_BINARY_DIR}/sherd.map)
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX LINK_DEPENDS ${PROJECT_BINARY_DIR}/sherd.map)
  if(NOT SKBUILD)  # a wheel would have three copies, for it has no symbolic links
    set_target_properties(${target} PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
  endif()
endfunction()
