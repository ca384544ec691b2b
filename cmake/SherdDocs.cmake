# The target `docs`: pages of the installed headers by Doxygen in build/.../docs/html, without warnings. Not part of all;
# missing where Doxygen is (Debian: doxygen).
find_package(Doxygen QUIET)
if(DOXYGEN_FOUND)
  sherd_public_headers(headers)
  list(TRANSFORM headers PREPEND include/sherd/)  # the links through which programs include them
  file(GLOB torch_headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include/sherd/torch/*.h)
  set(DOXYGEN_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/docs)
  set(DOXYGEN_STRIP_FROM_PATH ${PROJECT_SOURCE_DIR}/include)
  set(DOXYGEN_STRIP_FROM_INC_PATH ${PROJECT_SOURCE_DIR}/include)
  set(DOXYGEN_JAVADOC_AUTOBRIEF YES)  # the first sentence
  set(DOXYGEN_EXTRACT_ALL YES)  # what a plain name says has no comment
  set(DOXYGEN_EXCLUDE_SYMBOLS detail "*::detail" "*::detail::*")
  set(DOXYGEN_FILE_PATTERNS "*.h")
  set(DOXYGEN_GENERATE_LATEX NO)
  set(DOXYGEN_QUIET YES)
  set(DOXYGEN_MARKDOWN_SUPPORT YES)
  set(DOXYGEN_INCLUDE_PATH ${PROJECT_SOURCE_DIR}/include)
  set(DOXYGEN_SEARCH_INCLUDES NO)
  set(DOXYGEN_WARN_IF_INCOMPLETE_DOC NO)  # @param is for arguments whose name does not say enough
  set(DOXYGEN_WARN_AS_ERROR FAIL_ON_WARNINGS)
  set(DOXYGEN_HTML_EXTRA_STYLESHEET ${PROJECT_SOURCE_DIR}/packaging/site/headers.css)
  doxygen_add_docs(docs ${headers} ${torch_headers} include/sherd/sherd.h include/sherd/torch.h packaging/site/headers.dox
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    COMMENT "Doxygen: installed headers")
endif()
