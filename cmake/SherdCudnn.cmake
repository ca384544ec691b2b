# cuDNN for attention. Only headers are needed, cuDNN's and those of cudnn-frontend: a program loads the library when a device
# asks for it, and runs without.
#
#   SHERD_CUDNN               whether attention by cuDNN is compiled; on where the headers are found
#   SHERD_CUDNN_FRONTEND_DIR  folder with cudnn_frontend.h; scripts/install_cuda_extras.sh makes the one found first
#   CUDNN_INCLUDE_DIR         folder with cudnn.h, of cuDNN 9
find_path(SHERD_CUDNN_FRONTEND_DIR cudnn_frontend.h HINTS ${PROJECT_SOURCE_DIR}/build/cuda-extras/include)
find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})

set(found OFF)
if(SHERD_CUDNN_FRONTEND_DIR AND CUDNN_INCLUDE_DIR)
  set(found ON)
endif()
include(CMakeDependentOption)
cmake_dependent_option(SHERD_CUDNN "Compile attention by cuDNN (needs cudnn.h and cudnn_frontend.h)" ${found} SHERD_CUDA OFF)
set(hint "")
if(SHERD_CUDA AND NOT found)
  set(hint " (scripts/install_cuda_extras.sh installs cudnn-frontend's headers)")
endif()
message(STATUS "sherd: cuDNN attention ${SHERD_CUDNN}${hint}")
if(SHERD_CUDNN AND NOT found)
  message(FATAL_ERROR "SHERD_CUDNN needs cudnn.h and cudnn_frontend.h: CUDNN_INCLUDE_DIR is ${CUDNN_INCLUDE_DIR}, "
    "SHERD_CUDNN_FRONTEND_DIR is ${SHERD_CUDNN_FRONTEND_DIR}; scripts/install_cuda_extras.sh installs the latter")
endif()
