// JSON object of a file, read with checks of types and ranges. Private to checkpoint/, nn/hf/, train/ and the programs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace sherd {

/// Returns the text of a file, which may be a pipe. @throws IoError: path, reason, `remedy`.
std::string read_text(const std::string& path, const std::string& remedy);

/// Returns the object that a text is. @throws InvalidArgument, naming `source`, for what read_json() refuses, and for
/// other values; `remedy`, if any, ends the message.
nlohmann::json parse_object(std::string_view text, const std::string& source, const std::string& remedy = "");

/// Values by key, each checked when it is requested. Errors are collected, and a value that can be used is returned
/// instead; require_none() throws. A key whose value is null counts as absent.
class JsonObject {
 public:
  /// As parse_object(). @param source for messages: a path. `remedy` ends each message of require_none().
  static JsonObject parse(std::string_view text, const std::string& source, const std::string& remedy = "");
  /// For texts that are a list: each("") has its items.
  static JsonObject parse_list(std::string_view text, const std::string& source, const std::string& remedy);

  bool has(const char* key) const;
  /// Returns whether the key exists, null or not.
  bool contains(const char* key) const;
  /// An integer in [low, high]. @param otherwise for an absent one; nullopt: it is required.
  int64_t integer(const char* key, std::optional<int64_t> otherwise, int64_t low, int64_t high);
  /// A finite number in [low, high].
  double number(const char* key, std::optional<double> otherwise, double low, double high);
  bool flag(const char* key, bool otherwise);
  std::string text(const char* key, std::optional<std::string> otherwise);
  /// A required string that is not empty.
  std::string name(const char* key);
  /// Items of a list. An absent list is empty; with `least` it is required, and has so many items or more. Empty if
  /// anything in it is refused.
  std::vector<std::string> texts(const char* key);
  std::vector<double> numbers(const char* key, double low, double high);
  std::vector<int64_t> integers(const char* key, int64_t low, int64_t high,
                                std::optional<size_t> least = std::nullopt);
  /// Calls take(item) for the objects in a required list of `least` items or more; refuses other items.
  void each(const char* key, size_t least, const std::function<void(JsonObject&)>& take);
  /// The object at `key`, whose errors are this one's; an empty one for an absent or another value.
  JsonObject object(const char* key);
  /// The value as JSON; null for an absent one.
  const nlohmann::json& raw(const char* key) const;
  std::vector<std::string> keys() const;

  /// Adds an error: `"path.of.key" is VALUE: why`. @throws as require_none() when the message is full.
  void refuse(const char* key, const std::string& why);
  /// The same for an item of a list.
  void refuse_item(const char* key, size_t item, const std::string& why);
  /// Refuses keys that nothing has requested yet.
  void refuse_others();
  /// Returns whether the key's value, or an item of it, has been refused.
  bool refused(const char* key) const;
  /// Returns the path of this object in the file: "groups[0]".
  const std::string& place() const { return place_; }
  /// @throws InvalidArgument with all errors of the file in one line that begins with the source.
  void require_none() const;

 private:
  struct File;
  JsonObject(std::shared_ptr<File> file, const nlohmann::json& value, std::string place);
  std::string path(std::string_view key) const;
  void add(std::string_view key, const std::string& item, const nlohmann::json& value,
           const std::string& why);
  /// Items that are all good.
  template <class T>
  std::vector<T> all(const char* key, std::optional<size_t> least,
                     const std::function<bool(const nlohmann::json&)>& good, const std::string& needed);

  std::shared_ptr<File> file_;
  const nlohmann::json* value_;
  std::string place_;
  mutable std::set<std::string, std::less<>> requested_;
};

}  // namespace sherd
