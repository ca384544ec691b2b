# libtorch for adapters/torch, as imported targets of our own: the package files that come with the wheels end the
# configuration without a CUDA toolkit, so they are never read. Included by the build and by the installed package.
#
#   SHERD_TORCH      whether the adapter is built; off unless asked for
#   SHERD_TORCH_DIR  folder with include/ and lib/ of PyTorch 2.11 or newer: site-packages/torch, or libtorch unpacked
#   SHERD_TORCH_PYTHON  a Python that has torch, asked when SHERD_TORCH_DIR is not given (scripts/install_torch.sh makes
#                    build/venv, which is looked at first)
#   SHERD_TORCH_CUDA whether it also works on GPUs; off unless asked for. Needs SHERD_CUDA and a PyTorch for CUDA.
if(NOT DEFINED SHERD_TORCH)
  option(SHERD_TORCH "Build the adapter for libtorch modules (needs PyTorch 2.11 or newer)" OFF)
endif()
if(NOT DEFINED SHERD_TORCH_CUDA)
  option(SHERD_TORCH_CUDA "Let the adapter for libtorch modules use GPUs (needs SHERD_CUDA and a PyTorch for CUDA)" OFF)
endif()
if(NOT SHERD_TORCH)
  if(SHERD_TORCH_CUDA)
    message(FATAL_ERROR "SHERD_TORCH_CUDA: it is the adapter's, which is not built; give -DSHERD_TORCH=ON, too")
  endif()
  return()
endif()

if(NOT DEFINED SHERD_TORCH_DIR)
  set(SHERD_TORCH_DIR "" CACHE PATH "Folder with include/ and lib/ of PyTorch; empty: ask SHERD_TORCH_PYTHON")
endif()
set(sherd_torch_dir "${SHERD_TORCH_DIR}")
if(NOT sherd_torch_dir)
  if(NOT SHERD_TORCH_PYTHON)
    find_program(SHERD_TORCH_PYTHON python3 HINTS ${PROJECT_SOURCE_DIR}/build/venv/bin NO_DEFAULT_PATH)
    find_program(SHERD_TORCH_PYTHON python3)
  endif()
  if(SHERD_TORCH_PYTHON)
    # Without importing it, which takes seconds.
    execute_process(COMMAND ${SHERD_TORCH_PYTHON} -c
      "import importlib.util; s = importlib.util.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
      OUTPUT_VARIABLE sherd_torch_dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  if(NOT sherd_torch_dir)
    message(FATAL_ERROR "SHERD_TORCH: ${SHERD_TORCH_PYTHON} has no torch; run scripts/install_torch.sh, or give "
      "-DSHERD_TORCH_DIR=.../site-packages/torch (or libtorch's folder) or -DSHERD_TORCH_PYTHON=PYTHON")
  endif()
endif()

set(version_file ${sherd_torch_dir}/include/torch/headeronly/version.h)
if(NOT EXISTS ${version_file})
  set(version_file ${sherd_torch_dir}/include/torch/csrc/api/include/torch/version.h)
endif()
foreach(needed ${version_file} ${sherd_torch_dir}/include/torch/csrc/api/include/torch/torch.h
    ${sherd_torch_dir}/lib/libtorch_cpu.so ${sherd_torch_dir}/lib/libc10.so)
  if(NOT EXISTS ${needed})
    message(FATAL_ERROR "SHERD_TORCH: '${sherd_torch_dir}' is not the folder of a PyTorch with C++ headers: "
      "${needed} is missing; give -DSHERD_TORCH_DIR=.../site-packages/torch (or libtorch's folder)")
  endif()
endforeach()
file(STRINGS ${version_file} lines REGEX "#define TORCH_VERSION_(MAJOR|MINOR) ")
string(REGEX REPLACE ".*TORCH_VERSION_MAJOR ([0-9]+).*" "\\1" major "${lines}")
string(REGEX REPLACE ".*TORCH_VERSION_MINOR ([0-9]+).*" "\\1" minor "${lines}")
if("${major}.${minor}" VERSION_LESS 2.11)
  message(FATAL_ERROR "SHERD_TORCH: '${sherd_torch_dir}' is PyTorch ${major}.${minor}; the adapter needs 2.11 or newer "
    "(hooks behind the accumulation of gradients, C++20 headers): scripts/install_torch.sh installs one")
endif()
message(STATUS "libtorch ${major}.${minor}: ${sherd_torch_dir}")

set(sherd_torch_libraries -ltorch_cpu -lc10)
if(SHERD_TORCH_CUDA)
  if(NOT SHERD_CUDA OR NOT TARGET CUDA::cudart)
    message(FATAL_ERROR "SHERD_TORCH_CUDA: ranks on GPUs need sherd's CUDA backend and the CUDA toolkit; configure with "
      "-DSHERD_CUDA=ON (nvcc must be on the PATH), or leave SHERD_TORCH_CUDA off")
  endif()
  foreach(needed lib/libtorch_cuda.so lib/libc10_cuda.so include/c10/cuda/CUDAStream.h
      include/c10/cuda/impl/cuda_cmake_macros.h)
    if(NOT EXISTS ${sherd_torch_dir}/${needed})
      message(FATAL_ERROR "SHERD_TORCH_CUDA: '${sherd_torch_dir}' is a PyTorch without CUDA: ${needed} is missing; give "
        "-DSHERD_TORCH_DIR= of one for CUDA, or leave SHERD_TORCH_CUDA off")
    endif()
  endforeach()
  # No symbol of libtorch_cuda.so is asked for: its operations register themselves when it is loaded.
  list(PREPEND sherd_torch_libraries -Wl,--push-state,--no-as-needed -ltorch_cuda -lc10_cuda -Wl,--pop-state)
endif()

# Link and compile options of the adapter and its users. They are flags, not libraries of CMake's: the folder
# has a libgomp of its own, which CMake would warn of. Beside torch's headers are those of its own {fmt}. They
# are found before the system's, and no linked library fits them. libtorch_cpu.so finds its libraries itself
# (CUDA's runtime among them, in nvidia/ beside torch/).
add_library(sherd_libtorch INTERFACE IMPORTED)
set_target_properties(sherd_libtorch PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES "${sherd_torch_dir}/include;${sherd_torch_dir}/include/torch/csrc/api/include"
  INTERFACE_COMPILE_DEFINITIONS FMT_HEADER_ONLY=1
  INTERFACE_LINK_LIBRARIES "-L${sherd_torch_dir}/lib;${sherd_torch_libraries}"
  INTERFACE_LINK_OPTIONS "-Wl,--allow-shlib-undefined;-Wl,-rpath,${sherd_torch_dir}/lib")
