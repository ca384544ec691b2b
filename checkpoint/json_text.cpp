#include <sherd/checkpoint/json_text.h>

#include <nlohmann/json.hpp>

namespace sherd {

using nlohmann::json;

std::string shown(std::string_view text) {
  constexpr size_t kShown = 300;
  const std::string escaped =
      json(text.substr(0, kShown)).dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() <= kShown ? escaped : escaped + "...";
}

bool is_utf8(std::string_view text) {
  try {
    json(text).dump();
    return true;
  } catch (const json::type_error&) {
    return false;
  }
}

}  // namespace sherd
