#include "lazy_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <sherd/base/error.h>

namespace sherd::cuda {

void* find_function(const char* library, const char* function) {
  if (void* const here = dlsym(RTLD_DEFAULT, function)) return here;
  void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);  // stays until the process ends
  if (!handle) {
    const char* const why = dlerror();
    throw CudaError(
        fmt::format("cannot load {} ({}); install the CUDA toolkit's libraries, or add their folder to "
                    "LD_LIBRARY_PATH",
                    library, why ? why : "no reason given"));
  }
  void* const found = dlsym(handle, function);
  if (!found)
    throw CudaError(
        fmt::format("{} has no {}; install that of this build's CUDA toolkit", library, function));
  return found;
}

}  // namespace sherd::cuda
