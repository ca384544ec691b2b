// Kernels under test in this folder: the CPU's, CUDA's, or CUDA's on the host. Compiled into each program
// with its own choice.
#include <string_view>

#include "lab.h"

#ifndef TEST_FAST_KERNELS
#define TEST_FAST_KERNELS "cpu"
#endif

namespace sherd::test {

constinit const char* const kFast = TEST_FAST_KERNELS;
constinit const bool kCuda = std::string_view(TEST_FAST_KERNELS) == "cuda";
#ifdef TEST_CUDA_EMULATED
constinit const bool kEmulated = true;
#else
constinit const bool kEmulated = false;
#endif

}  // namespace sherd::test
