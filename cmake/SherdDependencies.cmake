# Everything sherd links; all of it is packaged by Debian 12 (scripts/install_deps.sh).
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
if(NOT TARGET LAPACK::LAPACK)
  find_package(LAPACK REQUIRED)
endif()
if(NOT TARGET fmt::fmt)
  find_package(fmt REQUIRED)
endif()
find_package(nlohmann_json REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(Protobuf REQUIRED)

# Not by its package file, which insists on OpenCL headers that the library does not need here.
find_library(DNNL_LIBRARY dnnl REQUIRED)
find_path(DNNL_INCLUDE_DIR dnnl.h REQUIRED)
if(NOT TARGET DNNL::dnnl)
  add_library(DNNL::dnnl UNKNOWN IMPORTED)
  set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${DNNL_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${DNNL_INCLUDE_DIR})
endif()

# A newer one links Abseil, which its package file finds; Debian 12 has no such file.
if(NOT TARGET re2::re2 AND NOT SHERD_PORTABLE)
  find_package(re2 CONFIG QUIET)
endif()
if(NOT TARGET re2::re2)
  find_library(RE2_LIBRARY NAMES ${RE2_LIBRARY_NAMES} re2 REQUIRED)
  find_path(RE2_INCLUDE_DIR re2/re2.h REQUIRED)
  add_library(re2::re2 UNKNOWN IMPORTED)
  set_target_properties(re2::re2 PROPERTIES IMPORTED_LOCATION ${RE2_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${RE2_INCLUDE_DIR})
endif()

find_library(XXHASH_LIBRARY NAMES ${XXHASH_LIBRARY_NAMES} xxhash REQUIRED)
find_path(XXHASH_INCLUDE_DIR xxhash.h REQUIRED)
if(NOT TARGET xxHash::xxhash)
  add_library(xxHash::xxhash UNKNOWN IMPORTED)
  set_target_properties(xxHash::xxhash PROPERTIES IMPORTED_LOCATION ${XXHASH_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${XXHASH_INCLUDE_DIR})
endif()

# Text of prompts is split by PCRE2 and normalised by utf8proc.
find_library(PCRE2_LIBRARY NAMES ${PCRE2_LIBRARY_NAMES} pcre2-8 REQUIRED)
find_path(PCRE2_INCLUDE_DIR pcre2.h REQUIRED)
if(NOT TARGET PCRE2::8BIT)
  add_library(PCRE2::8BIT UNKNOWN IMPORTED)
  set_target_properties(PCRE2::8BIT PROPERTIES IMPORTED_LOCATION ${PCRE2_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${PCRE2_INCLUDE_DIR})
endif()
find_library(UTF8PROC_LIBRARY NAMES ${UTF8PROC_LIBRARY_NAMES} utf8proc REQUIRED)
find_path(UTF8PROC_INCLUDE_DIR utf8proc.h REQUIRED)
if(NOT TARGET utf8proc::utf8proc)
  add_library(utf8proc::utf8proc UNKNOWN IMPORTED)
  set_target_properties(utf8proc::utf8proc PROPERTIES IMPORTED_LOCATION ${UTF8PROC_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${UTF8PROC_INCLUDE_DIR})
endif()
