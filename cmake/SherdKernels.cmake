# Kernels of one library, by family: a folder with the contract of its operations and their kernels.
#
#   <family>.h, *.cpp            arguments, table of kernels (kernels/device/kernel_set.h); checks and queueing
#   reference*.cpp, reference/   oracle
#   cpu*.cpp, cpu/               CPU kernels
#   cuda*.{cu,cpp}, cuda/        CUDA kernels; a build without CUDA has Table::cuda() return null instead

# CPU kernels are always optimised, also in debug builds. Multiplications and additions are fused only where
# the source says so (mul_add): an element's bits must not depend on whether it is in a vector body or in a
# tail.
set(SHERD_CPU_KERNEL_OPTIONS -O3 -fno-math-errno -fno-trapping-math -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)  # which otherwise makes branches and loops of choices between values
  list(APPEND SHERD_CPU_KERNEL_OPTIONS -fno-thread-jumps -fno-split-loops)
endif()
if(SHERD_CPU_ARCH AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND SHERD_CPU_KERNEL_OPTIONS -march=${SHERD_CPU_ARCH})
endif()

# sherd_kernel_family(sherd_kernels gemm GemmKernels): adds the sources of folder gemm/, whose table is GemmKernels.
# UNFUSED: sources outside of the CPU kernels that promise bits, so that no compiler may fuse their multiplications and
# additions. BASELINE: CPU kernels that are compiled as everything else, for any processor.
function(sherd_kernel_family library folder table)
  cmake_parse_arguments(arg "" "" "UNFUSED;BASELINE" ${ARGN})
  set(here ${CMAKE_CURRENT_SOURCE_DIR}/${folder})
  file(GLOB host CONFIGURE_DEPENDS ${here}/*.cpp ${here}/reference/*.cpp ${here}/cpu/*.cpp)
  list(FILTER host EXCLUDE REGEX "/cuda[^/]*$")
  target_sources(${library} PRIVATE ${host})

  set(fast ${host})
  list(FILTER fast INCLUDE REGEX "/cpu[^/]*$|/cpu/[^/]*$")
  foreach(source IN LISTS arg_BASELINE)
    list(REMOVE_ITEM fast ${here}/${source})
  endforeach()
  sherd_kernel_options(${library} "${SHERD_CPU_KERNEL_OPTIONS}" ${fast})
  list(TRANSFORM arg_UNFUSED PREPEND ${here}/)
  sherd_kernel_options(${library} -ffp-contract=off ${arg_UNFUSED})

  file(GLOB device CONFIGURE_DEPENDS ${here}/cuda*.cu ${here}/cuda*.cpp ${here}/cuda/*.cu ${here}/cuda/*.cpp)
  sherd_cuda_sources(${library} ${device})
  if(NOT SHERD_CUDA)
    file(RELATIVE_PATH family ${PROJECT_SOURCE_DIR} ${here})
    get_filename_component(name ${folder} NAME)
    configure_file(${PROJECT_SOURCE_DIR}/cmake/no_cuda_kernels.cpp.in ${CMAKE_CURRENT_BINARY_DIR}/${folder}/no_cuda.cpp @ONLY)
    sherd_cuda_twin(${library} ${CMAKE_CURRENT_BINARY_DIR}/${folder}/no_cuda.cpp)
  endif()
endfunction()

function(sherd_kernel_options library options)
  if(ARGN)
    set_source_files_properties(${ARGN} TARGET_DIRECTORY ${library} PROPERTIES COMPILE_OPTIONS "${options}")
    sherd_without_pch(${library} ${ARGN})
  endif()
endfunction()

# Source that replaces a CUDA source in builds without CUDA. It is an object of its own, where the emulation's
# replaces it.
function(sherd_cuda_twin library source)
  target_sources(${library} PRIVATE ${source})
  if(NOT SHERD_SANITIZE)  # no emulation there
    set_source_files_properties(${source} TARGET_DIRECTORY ${library} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()

# Sources of the CUDA backend: compiled in builds with CUDA, and by a host compiler for the emulation in tests/cuda_host,
# which takes them from the global property SHERD_CUDA_SOURCES. Those named *_hopper.cu are for chips of compute capability
# 9.0 alone (wgmma).
function(sherd_cuda_sources library)
  set_property(GLOBAL APPEND PROPERTY SHERD_CUDA_SOURCES ${ARGN})
  if(NOT SHERD_CUDA)
    return()
  endif()
  set(sources ${ARGN})
  set(hopper ${ARGN})
  list(FILTER sources EXCLUDE REGEX "_hopper\\.cu$")
  list(FILTER hopper INCLUDE REGEX "_hopper\\.cu$")
  target_sources(${library} PRIVATE ${sources})
  # Objects of their own: the emulation's take their place in its programs.
  set_source_files_properties(${sources} TARGET_DIRECTORY ${library} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  target_link_libraries(${library} PRIVATE CUDA::cudart)
  if(hopper)
    add_library(sherd_hopper OBJECT ${hopper})
    sherd_own_target(sherd_hopper)
    target_include_directories(sherd_hopper PRIVATE $<TARGET_PROPERTY:${library},INTERFACE_INCLUDE_DIRECTORIES>)
    # Accumulators that do not fit in registers would cost more than the kernel saves.
    target_compile_options(sherd_hopper PRIVATE -Xptxas=--warn-on-spills)
    set_target_properties(sherd_hopper PROPERTIES CUDA_ARCHITECTURES 90a-real POSITION_INDEPENDENT_CODE ON)
    target_sources(${library} PRIVATE $<TARGET_OBJECTS:sherd_hopper>)
  endif()
endfunction()
