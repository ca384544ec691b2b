// Path of a manifest in errors of its decoder.
#pragma once

#include <filesystem>
#include <string>

#include <fmt/format.h>

#include <sherd/checkpoint/format/manifest.h>
#include <sherd/kernels/device/error.h>
#include <sherd/kernels/device/printable.h>

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
