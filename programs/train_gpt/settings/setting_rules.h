// Rules between settings: those that settings.proto has as data, and the settings that errors name.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <sherd/train/settings/command_line.h>

#include "settings_values.h"

namespace train_gpt {

/// Settings that were given, as opposed to defaults and those of a checkpoint.
struct Given {
  const sherd::GivenFlags& flags;                   // of the command line
  std::function<bool(std::string_view)> by_anyone;  // there, or in the config file
  std::vector<std::string_view> inherited = {};     // from the checkpoint of --resume
  std::string checkpoint = {};
};

/// Values of settings, their defaults, and the errors about them.
class RuleCheck {
 public:
  /// @param bad names of settings outside of their own bounds, which rules do not mention.
  RuleCheck(Settings settings, Settings standard, const Given& given, const std::set<std::string_view>& bad,
            std::vector<std::string>& problems);

  /// Appends an error for each broken Rule of settings.proto.
  void check_all() const;

  /// Returns whether all of these are inside their own bounds.
  bool good(auto... names) const { return !(bad_.contains(names) || ...); }
  const Given& given() const { return given_; }
  /// Appends "--name VALUE: " and the reason.
  template <class... Args>
  void refuse(std::string_view name, fmt::format_string<Args...> reason, Args&&... args) const {
    add(name, fmt::format("{}: {}", find(name).flag, fmt::format(reason, std::forward<Args>(args)...)));
  }
  /// Appends "--name: " and what `check` throws.
  void collect(std::string_view name, const std::function<void()>& check) const;
  /// Appends a whole line on the setting, and where its value comes from if that is a checkpoint.
  void add(std::string_view name, std::string problem) const;

 private:
  struct Value {
    std::string_view name;
    std::string now, standard, flag;  // the flag with its value
  };

  const Value& find(std::string_view name) const;
  bool holds(const std::string& condition) const;

  std::vector<Value> values_;
  const Given& given_;
  const std::set<std::string_view>& bad_;
  std::vector<std::string>& problems_;
};

}  // namespace train_gpt
