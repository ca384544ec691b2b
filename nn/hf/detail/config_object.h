// JSON object of a foreign config.json, read with checks of types and ranges.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace sherd::hf {

/// The object that a text is. @throws InvalidArgument, naming `source`, for what read_json() refuses, and
/// for other values.
nlohmann::json parse_object(std::string_view text, const std::string& source);

/// Values by key, each checked when it is asked for. What is wrong is collected, and a value that can be
/// worked on with given in its place; require_none() throws. A key whose value is null counts as absent.
class ConfigObject {
 public:
  /// @param source for messages: a path. `object` outlives it.
  ConfigObject(std::string source, const nlohmann::json& object);

  bool has(const char* key) const;
  /// Returns whether the key exists, null or not.
  bool contains(const char* key) const { return object_->contains(key); }
  /// An integer in [low, high]. @param otherwise where it is absent; none: it may not be.
  int64_t integer(const char* key, std::optional<int64_t> otherwise, int64_t low, int64_t high);
  /// A finite number in [low, high].
  double number(const char* key, std::optional<double> otherwise, double low, double high);
  bool flag(const char* key, bool otherwise);
  std::string text(const char* key, std::optional<std::string> otherwise);
  /// Texts of an array; empty where it is absent.
  std::vector<std::string> texts(const char* key);
  /// Finite numbers in [low, high] of an array; empty where it is absent.
  std::vector<double> numbers(const char* key, double low, double high);
  /// The object at `key`, whose problems are this one's; an empty one where it is absent or none.
  ConfigObject object(const char* key);
  /// The value as JSON; null where it is absent.
  const nlohmann::json& raw(const char* key) const;

  /// One more problem: `"key" is VALUE: why`.
  void refuse(const char* key, const std::string& why);
  /// @throws InvalidArgument with all problems in one line that begins with the source.
  void require_none() const;

 private:
  ConfigObject(const ConfigObject& outer, const char* key);
  /// Values of an array whose items are all good; none where it is absent.
  template <class T>
  std::vector<T> all(const char* key, const std::function<bool(const nlohmann::json&)>& good,
                     const std::string& needed);

  std::string source_, prefix_;
  const nlohmann::json* object_;
  std::shared_ptr<std::vector<std::string>> problems_;
};

}  // namespace sherd::hf
