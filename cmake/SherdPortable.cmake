# Programs that run on other Linux machines with an older or newer distribution: what Debian has static archives of is
# linked from those, the rest is looked for in lib/ beside bin/ (scripts/gpu_check.sh --pack puts it there).
#
#   static: protobuf, RE2, xxHash, PCRE2, utf8proc, LAPACK, BLAS and Fortran's runtime (netlib's: no program depends on their speed); fmt from
#           its headers
#   shared: oneDNN (no archive), and with it libgomp and libstdc++, of which a program must not have two; libcrypto, which
#           is large; CUDA, NCCL
option(SHERD_PORTABLE "Link statically where possible, for running on another machine" OFF)
if(NOT SHERD_PORTABLE)
  return()
endif()

set(Protobuf_USE_STATIC_LIBS ON)
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH "$ORIGIN/../lib:$ORIGIN/../cuda/lib64:/usr/local/cuda/lib64")
# RPATH, not RUNPATH: it holds for what oneDNN needs, too (libOpenCL).
add_link_options(-Wl,--disable-new-dtags)
set(RE2_LIBRARY_NAMES libre2.a)
set(XXHASH_LIBRARY_NAMES libxxhash.a)
set(PCRE2_LIBRARY_NAMES libpcre2-8.a)
set(UTF8PROC_LIBRARY_NAMES libutf8proc.a)

find_path(FMT_INCLUDE_DIR fmt/core.h REQUIRED)
add_library(fmt::fmt INTERFACE IMPORTED)
target_compile_definitions(fmt::fmt INTERFACE FMT_HEADER_ONLY=1)
target_include_directories(fmt::fmt INTERFACE ${FMT_INCLUDE_DIR})

# Not the alternatives' links, which may lead to OpenBLAS: tens of megabytes of kernels for every processor.
find_library(LAPACK_ARCHIVE liblapack.a PATH_SUFFIXES lapack REQUIRED)
find_library(BLAS_ARCHIVE libblas.a PATH_SUFFIXES blas REQUIRED)
foreach(name gfortran quadmath)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=lib${name}.a
    OUTPUT_VARIABLE ${name}_archive OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT EXISTS "${${name}_archive}")
    message(FATAL_ERROR "SHERD_PORTABLE needs lib${name}.a; the package libgfortran-12-dev has it")
  endif()
endforeach()
add_library(LAPACK::LAPACK INTERFACE IMPORTED)
target_link_libraries(LAPACK::LAPACK INTERFACE
  ${LAPACK_ARCHIVE} ${BLAS_ARCHIVE} ${gfortran_archive} ${quadmath_archive} m)
