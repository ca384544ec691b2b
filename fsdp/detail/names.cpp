#include <sherd/fsdp/detail/names.h>

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include <sherd/base/error.h>
#include <sherd/base/printable.h>

namespace sherd {
namespace {

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }

}  // namespace

void check_name(std::string_view what, std::string_view name) {
  if (name.empty()) throw InvalidArgument(fmt::format("a {} has no name; give it one", what));
  for (std::string_view rest = name; !rest.empty();) {
    const size_t length = utf8_character(rest);
    if (length == 0)
      throw InvalidArgument(
          fmt::format("{} name '{}' is not UTF-8 from byte {} on; checkpoints hold names as UTF-8", what,
                      printable(name), name.size() - rest.size()));
    rest.remove_prefix(length);
  }
  if (std::any_of(name.begin(), name.end(), is_control))
    throw InvalidArgument(
        fmt::format("{} name '{}' has control characters; use printable ones", what, printable(name)));
}

}  // namespace sherd
