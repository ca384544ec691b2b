# SHERD_CUDA: builds the CUDA backend; the default is on where nvcc is found. As a part of another project only where
# -DSHERD_CUDA=ON or the project asks for it.
include(CheckLanguage)
if(NOT DEFINED SHERD_CUDA)
  if(SHERD_SANITIZE OR NOT PROJECT_IS_TOP_LEVEL)
    set(found OFF)  # nvcc's host code is not instrumented; the kernels are tested there by emulation
  else()
    check_language(CUDA)
    set(found OFF)
    if(CMAKE_CUDA_COMPILER)
      set(found ON)
    endif()
  endif()
  set(SHERD_CUDA ${found} CACHE BOOL "Build the CUDA backend (needs nvcc)")
endif()

if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  # PTX of 8.0 serves all other GPUs: the driver compiles it at their first use. And 90a for one file (SherdKernels.cmake).
  set(CMAKE_CUDA_ARCHITECTURES 80-virtual 90-real)
endif()
if(SHERD_CUDA)
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know nvcc 13
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  # The libraries are linked, the driver's (libcuda) never: the programs start without one.
  set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
  find_package(CUDAToolkit REQUIRED)
endif()
