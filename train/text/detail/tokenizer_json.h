// Values of a tokenizer.json; errors name the file.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace sherd {

class TokenizerJson {
 public:
  /// @param source for messages, kept by reference.
  explicit TokenizerJson(const std::string& source) : source_(source) {}

  /// @throws IoError: the tokenizer '...', then `why`.
  [[noreturn]] void refuse(const std::string& why) const;
  /// Returns a required member. @param what the object, for messages.
  const nlohmann::json& member(const nlohmann::json& object, const char* key, const char* what) const;
  /// Returns a required string.
  std::string text(const nlohmann::json& object, const char* key) const;
  /// Returns a flag, `otherwise` where it is absent.
  bool flag(const nlohmann::json& object, const char* key, bool otherwise) const;

 private:
  const std::string& source_;
};

/// Text of the file for messages.
std::string shown_name(std::string_view text);

}  // namespace sherd
