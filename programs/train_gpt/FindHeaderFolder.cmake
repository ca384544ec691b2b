# The folder of the C++ standard library headers that holds `vector`: the first file that preprocessing
# `#include <vector>` enters under that name says where.
function(find_header_folder result)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/include_vector.cpp)
  file(WRITE ${source} "#include <vector>\n")
  separate_arguments(flags NATIVE_COMMAND "${CMAKE_CXX_FLAGS}")
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} ${CMAKE_CXX_COMPILER_ARG1} ${flags} -E ${source}
    OUTPUT_VARIABLE preprocessed COMMAND_ERROR_IS_FATAL ANY)
  if(NOT preprocessed MATCHES "# 1 \"([^\"\n]*/vector)\"")
    message(FATAL_ERROR "cannot find the header <vector> in what ${CMAKE_CXX_COMPILER} -E prints")
  endif()
  get_filename_component(folder "${CMAKE_MATCH_1}" DIRECTORY)
  file(REAL_PATH "${folder}" folder)
  set(${result} "${folder}" PARENT_SCOPE)
endfunction()
