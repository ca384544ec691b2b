# Precompiled headers: much of what a source costs to compile is the same standard headers again. Each set of targets
# with the same options shares one: the kernels and nn (compiled with OpenMP), the other libraries with the programs' parts, the
# tests. Sources with options of their own (CPU kernels, the emulated CUDA kernels) go without.
#
# They hide a missing #include. test_headers compiles every header alone, and a build with -DSHERD_PCH=OFF every source.
# ccache needs settings of its own for them (CONTRIBUTING.md), and packages and other projects compile the library alone.
set(default OFF)
if(PROJECT_IS_TOP_LEVEL AND SHERD_TESTS AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(default ON)
endif()
option(SHERD_PCH "Precompile the headers that most sources include" ${default})

# sherd_pch_holder(NAME HEADERS...): the target that compiles them, for sherd_use_pch. It needs the options of those
# that use them.
function(sherd_pch_holder name)
  file(GENERATE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp CONTENT "// Nothing but its precompiled headers.\n")
  add_library(${name} OBJECT ${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp)
  target_precompile_headers(${name} PRIVATE ${ARGN})
endfunction()

function(sherd_use_pch target holder)
  if(NOT SHERD_PCH)
    return()
  endif()
  target_precompile_headers(${target} REUSE_FROM ${holder})
  # With precompiled headers GCC 12 warns of overlong copies inside std::string that do not exist. A build without
  # them has these warnings.
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread>)
  endif()
  # The compiler takes headers precompiled with -fPIC for that alone, and CMake compiles programs with -fPIE.
  get_target_property(type ${target} TYPE)
  if(type STREQUAL EXECUTABLE AND CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fPIC>)
  endif()
endfunction()

# For sources with options that the headers are not compiled with.
function(sherd_without_pch target)
  set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
endfunction()

# The libraries' own, with what else is linked for its options; called when the functions of SherdTargets are known.
function(sherd_library_pch name)
  if(SHERD_PCH)
    sherd_pch_holder(${name} <algorithm> <cstdint> <filesystem> <functional> <map> <memory> <optional> <string>
      <string_view> <vector> <fmt/format.h>)
    sherd_own_target(${name})
    target_link_libraries(${name} PRIVATE fmt::fmt ${ARGN})
  endif()
endfunction()
