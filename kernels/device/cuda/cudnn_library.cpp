#include "cudnn_library.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>

namespace sherd::cuda {
namespace {

constexpr const char* kName = "libcudnn.so.9";

CudnnLibrary load() {
  if (!SHERD_CUDNN)
    return {.problem =
                "this build has no cuDNN; run scripts/install_cuda_extras.sh and configure with "
                "-DSHERD_CUDNN=ON"};
  // cudnn-frontend finds CUDA's runtime by its name and prefers version 12. The program has this one.
  setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", fmt::format("libcudart.so.{}", CUDART_VERSION / 1000).c_str(), 0);
  void* const handle = dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* const why = dlerror();
    return {.problem = fmt::format("cannot load cuDNN ({}); install it, or add its folder to LD_LIBRARY_PATH",
                                   why ? why : kName)};
  }
  const auto version = reinterpret_cast<size_t (*)()>(dlsym(handle, "cudnnGetVersion"));
  if (!version) return {.problem = fmt::format("{} has no cudnnGetVersion; install cuDNN 9", kName)};
  return {handle, static_cast<int64_t>(version()), {}};
}

}  // namespace

CudnnLibrary cudnn_library() {
  static const CudnnLibrary library = load();
  return library;
}

}  // namespace sherd::cuda
