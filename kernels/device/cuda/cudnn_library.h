// cuDNN, loaded when the first device asks for it. Private to the CUDA backends.
#pragma once

#include <cstdint>
#include <string>

namespace sherd::cuda {

struct CudnnLibrary {
  void* handle = nullptr;  // of dlopen; null: missing
  int64_t version = 0;     // 91900 for 9.19.0; 0: missing
  std::string problem;     // why it is missing
};

/// The oldest version in use.
inline constexpr int64_t kOldestCudnn = 90000;

/// Loads libcudnn.so.9 in the first call of the process. Any thread.
CudnnLibrary cudnn_library();

}  // namespace sherd::cuda
