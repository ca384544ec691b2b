#include <sherd/kernels/device/build.h>

#include <dnnl.h>
#include <fmt/format.h>
#include <gnu/libc-version.h>

#include <sherd/base/version.h>

namespace sherd {

std::string program_build() {
  const dnnl_version_t& library = *dnnl_version();
  return fmt::format("glibc {}, oneDNN {}.{}.{} {}, compiler {}; {}", gnu_get_libc_version(), library.major,
                     library.minor, library.patch, library.hash, __VERSION__, SHERD_FEATURES);
}

std::string version_text(const std::string& program) {
  return fmt::format("{} {} ({}; this processor: {})\n", program, program_version(), SHERD_FEATURES,
                     ProcessorFeatures::of_this_one().text);
}

}  // namespace sherd
