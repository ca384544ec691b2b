# Sanitizer options of every target that is compiled here, generated code included.
function(sherd_sanitize target)
  if(SHERD_SANITIZE)
    target_compile_options(${target} PUBLIC -fsanitize=${SHERD_SANITIZE} -fno-omit-frame-pointer
      -fno-sanitize-recover=all)
    target_compile_definitions(${target} PUBLIC SHERD_SANITIZED)
    target_link_options(${target} PUBLIC -fsanitize=${SHERD_SANITIZE})
  endif()
endfunction()

# Flags for the targets that are sherd's own.
function(sherd_own_target target)
  set(host -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wno-missing-field-initializers)
  if(SHERD_WERROR)
    list(APPEND host -Werror)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # GCC 12 sees overlaps in std::string's operator+ that are not there (GCC bug 105651).
    list(APPEND host -Wno-restrict)
    if(CMAKE_UNITY_BUILD)
      # It takes a source's anonymous namespace for that of a header when another source includes it.
      list(APPEND host -Wno-subobject-linkage)
    endif()
    if(CMAKE_UNITY_BUILD OR SHERD_SANITIZE)
      # Large or instrumented sources make GCC 12 see uninitialised members that are not.
      list(APPEND host -Wno-maybe-uninitialized)
    endif()
  else()
    # Clang warns of each `omp simd` loop that it does not vectorize, which is all of them below -O2.
    list(APPEND host -Wno-pass-failed)
  endif()
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${host}>)
  # nvcc's host code is generated: no -Wpedantic, -Wshadow, -Wconversion there.
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra $<$<BOOL:${SHERD_WERROR}>:--Werror=all-warnings>>)
  sherd_sanitize(${target})
endfunction()

# sherd_library(fsdp PUBLIC ... PRIVATE ...): the library of one folder, sherd_<folder>; its sources are added by the folder.
# PCH: the precompiled headers of its options.
# Headers are seen as <sherd/...> by the links in include/sherd, exactly as after installation.
function(sherd_library folder)
  cmake_parse_arguments(arg "" "PCH" "PUBLIC;PRIVATE" ${ARGN})
  set(target sherd_${folder})
  add_library(${target} STATIC)
  sherd_own_target(${target})
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target} PUBLIC ${arg_PUBLIC} PRIVATE ${arg_PRIVATE})
  set_property(GLOBAL APPEND PROPERTY SHERD_LIBRARIES ${target})
  if(NOT arg_PCH)
    set(arg_PCH sherd_pch)
  endif()
  sherd_use_pch(${target} ${arg_PCH})
endfunction()

# Code that queues kernels, or waits for files and messages: -O1 compiles it in three quarters of the time of -O2.
function(sherd_host_code)
  foreach(target IN LISTS ARGN)
    target_compile_options(${target} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
  endforeach()
endfunction()

# Puts sources that include CLI11 or nlohmann-json, seconds of compiling each, side by side, so that unity sources have
# them together. Called when all sources of the targets are known.
function(sherd_costly_together)
  foreach(target IN LISTS ARGN)
    get_target_property(sources ${target} SOURCES)
    get_target_property(folder ${target} SOURCE_DIR)
    set(ranked)
    foreach(source IN LISTS sources)
      get_filename_component(path ${source} ABSOLUTE BASE_DIR ${folder})
      set(rank 2)
      if(EXISTS ${path})
        file(STRINGS ${path} costly REGEX "#include .*(CLI/CLI\\.hpp|commands?\\.h|nlohmann/|/json_)")
        if(costly MATCHES "CLI|command")
          set(rank 0)
        elseif(costly)
          set(rank 1)
        endif()
      endif()
      list(APPEND ranked "${rank}${source}")
    endforeach()
    set(ordered)
    foreach(rank 0 1 2)
      set(these ${ranked})
      list(FILTER these INCLUDE REGEX "^${rank}")
      list(TRANSFORM these REPLACE "^${rank}" "")
      list(APPEND ordered ${these})
    endforeach()
    set_property(TARGET ${target} PROPERTY SOURCES ${ordered})
  endforeach()
endfunction()

# The headers that are installed, as kernels/device/tensor.h: all but those in detail/, of backends, and of comm/watch and
# comm/backend, which only backends include.
function(sherd_public_headers variable)
  list(TRANSFORM SHERD_FOLDERS REPLACE "(.+)" "${PROJECT_SOURCE_DIR}/\\1/*.h" OUTPUT_VARIABLE patterns)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} ${patterns})
  list(FILTER headers EXCLUDE REGEX "/detail/|comm/(watch|backend)/|kernels/.*/(reference|cpu|cuda)[^/]*(/|$)")
  set(${variable} ${headers} PARENT_SCOPE)
endfunction()

# Text of --version; called when all options are known.
function(sherd_version)
  set(nccl OFF)
  if(SHERD_NCCL)
    set(nccl ON)
  endif()
  set(features "CUDA ${SHERD_CUDA}, NCCL ${nccl}, cuDNN attention ${SHERD_CUDNN}, MPI ${SHERD_MPI}, ${CMAKE_BUILD_TYPE}")
  set_source_files_properties(${PROJECT_SOURCE_DIR}/kernels/device/build.cpp TARGET_DIRECTORY sherd_kernels PROPERTIES
    COMPILE_DEFINITIONS
    "SHERD_FEATURES=\"${features}, cpu kernels for ${SHERD_CPU_ARCH}\"")
  set_source_files_properties(${PROJECT_SOURCE_DIR}/base/version.cpp TARGET_DIRECTORY sherd_base PROPERTIES
    COMPILE_DEFINITIONS "SHERD_VERSION=\"${PROJECT_VERSION}\"")
endfunction()
