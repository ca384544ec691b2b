#include <sherd/nn/detail/function_name.h>

#include <algorithm>
#include <string_view>

namespace sherd::nn::detail {

std::string function_name(const std::source_location& at) {
  std::string name = at.function_name();
  for (const std::string_view part : {"(anonymous namespace)::", "{anonymous}::", "sherd::nn::"})
    for (size_t i; (i = name.find(part)) != std::string::npos;) name.erase(i, part.size());
  name.resize(std::min(name.find('('), name.size()));
  const size_t space = name.rfind(' ');
  return space == std::string::npos ? name : name.substr(space + 1);
}

}  // namespace sherd::nn::detail
