#include <sherd/base/enum_table.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/base/error.h>

namespace sherd {

void refuse_name(std::string_view what, std::string_view name, std::span<const char* const> legal) {
  const auto all_but_last = legal.first(legal.size() - 1);
  throw InvalidArgument(fmt::format("{} '{}' is unknown; use {}{}{}", what, name,
                                    fmt::join(all_but_last, ", "), all_but_last.empty() ? "" : " or ",
                                    legal.back()));
}

}  // namespace sherd
