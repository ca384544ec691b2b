#include <sherd/checkpoint/file_copies.h>

#include <algorithm>

#include <fmt/format.h>

#include <sherd/checkpoint/files/content_digest.h>
#include <sherd/checkpoint/format/manifest.h>
#include <sherd/checkpoint/safetensors/detail/weights_index.h>
#include <sherd/checkpoint/safetensors/safetensors.h>
#include <sherd/kernels/device/error.h>

namespace sherd {
namespace {

namespace fs = std::filesystem;
using Kind = FileSystem::Kind;

/// The files that scan_safetensors() reads of a folder.
std::vector<std::string> names_in(const fs::path& folder, FileSystem& files) {
  if (files.kind(folder / kWeightsIndex) == Kind::file) return weights_files(folder, files);
  std::vector<std::string> names = files.list(folder);
  std::erase_if(names, [](const std::string& name) { return !name.ends_with(".safetensors"); });
  return names;
}

FileCopy manifest_copy(const fs::path& path, FileSystem& files) {
  std::string prefix(kManifestPrefix, '\0');
  files.open(path)->read_at(0, prefix.data(), kManifestPrefix);
  try {
    return {path.filename().string(), path.string(), decode_message_checksum(prefix)};
  } catch (const CorruptCheckpoint& e) {
    throw CorruptCheckpoint(fmt::format("'{}': {}", path.string(), e.what()));
  }
}

int64_t bytes_of(const SafetensorsReader& file) {
  return file.entries().empty() ? 0 : file.entries().back().end;
}

uint64_t digest_of(const SafetensorsReader& file, int64_t total, int64_t& read) {
  ContentDigest digest;
  const std::string header = file.header();
  digest.add(header);
  read += static_cast<int64_t>(header.size());
  for (const SafetensorsEntry& e : file.entries()) {
    const int64_t bytes = e.end - e.begin;
    read +=
        digest.add_samples(0, bytes, sample_blocks(bytes, total),
                           [&](int64_t offset, void* to, int64_t n) { file.read_bytes(e, offset, n, to); });
  }
  return digest.value();
}

}  // namespace

std::vector<FileCopy> weights_copies(const fs::path& path, FileSystem& files, int64_t* read) {
  const bool folder = files.kind(path) == Kind::folder;
  int64_t total = 0, bytes_read = 0;
  std::vector<FileCopy> copies;
  if (folder && files.kind(path / "manifest.binpb") != Kind::none) {
    copies.push_back(manifest_copy(path / "manifest.binpb", files));
    bytes_read = kManifestPrefix;
  } else {
    std::vector<SafetensorsReader> weights;
    for (const std::string& name : folder ? names_in(path, files) : std::vector<std::string>{""}) {
      const SafetensorsReader& file = weights.emplace_back(folder ? path / name : path, files);
      total += bytes_of(file);
      copies.push_back({name.empty() ? "the weights" : name, file.path().string()});
    }
    for (size_t i = 0; i < weights.size(); ++i) copies[i].digest = digest_of(weights[i], total, bytes_read);
  }
  if (read != nullptr) *read = bytes_read;
  return copies;
}

std::vector<FileCopy> stored_weights_copies(const fs::path& path, FileSystem& files) {
  return weights_copies(weights_path(path, files), files);
}

}  // namespace sherd
