// Path of a manifest in errors of its decoder.
#pragma once

#include <filesystem>
#include <string>

#include <fmt/format.h>

#include <sherd/base/error.h>
#include <sherd/base/printable.h>
#include <sherd/checkpoint/format/manifest.h>

namespace sherd {

/// Returns what `decode` returns; adds the manifest's path to CorruptCheckpoint and NewerFormat.
template <class Decode>
auto at_path(const std::filesystem::path& path, Decode decode) {
  const auto named = [&](const std::exception& e) {
    return fmt::format("'{}': {}", printable(path.string(), std::string::npos), e.what());
  };
  try {
    return decode();
  } catch (const CorruptCheckpoint& e) {
    throw CorruptCheckpoint(named(e));
  } catch (const NewerFormat& e) {
    throw NewerFormat(named(e));
  }
}

}  // namespace sherd
