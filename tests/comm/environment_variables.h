// Environments of tests: variables with their values, and what reads them as the process's own.
#pragma once

#include <map>
#include <string>

#include <sherd/comm/backend_choice.h>

namespace sherd::test {

using Variables = std::map<std::string, std::string>;

/// Reads `variables`, which must outlive it.
inline EnvironmentLookup lookup(const Variables& variables) {
  return [&variables](const char* name) -> const char* {
    const auto it = variables.find(name);
    return it == variables.end() ? nullptr : it->second.c_str();
  };
}

/// `v` with `more`, whose values take the place of its own.
inline Variables with(Variables v, const Variables& more) {
  for (const auto& [name, value] : more) v[name] = value;
  return v;
}

}  // namespace sherd::test
