#include <sherd/kernels/device/detail/bad_index.h>

#include <fmt/format.h>

#include <string_view>

namespace sherd {

std::string bad_index(const char* op, const char* what, int32_t index, int64_t position, int64_t bound) {
  const std::string_view name = what;
  return fmt::format(
      "{}: {} {} at position {} lies outside [0, {}){}", op, what, index, position, bound,
      name == "token" || name == "target" ? "; was the data written with another tokenizer?" : "");
}

}  // namespace sherd
