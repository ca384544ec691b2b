#include <sherd/checkpoint/file_copies.h>

#include <algorithm>

#include <fmt/format.h>

#include <sherd/base/error.h>
#include <sherd/checkpoint/files/content_digest.h>
#include <sherd/checkpoint/format/detail/at_path.h>
#include <sherd/checkpoint/format/manifest.h>
#include <sherd/checkpoint/safetensors/detail/weights_index.h>
#include <sherd/checkpoint/safetensors/safetensors.h>

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
  const uint64_t digest = at_path(path, [&] { return decode_message_checksum(prefix); });
  return {path.filename().string(), path.string(), digest};
}

int64_t bytes_of(const SafetensorsReader& file) {
  return file.entries().empty() ? 0 : file.entries().back().end;
}

/// Bytes [begin, end) of a file's data.
struct Stretch {
  int64_t begin, end;
};

/// Samples of every tensor, at least its first and last block. Neighbours are one range, so that a tensor costs one read:
/// that costs more than its bytes.
std::vector<Stretch> samples_of(const SafetensorsReader& file, int64_t total) {
  std::vector<Stretch> ranges;
  for (const SafetensorsEntry& e : file.entries()) {
    const int64_t bytes = e.end - e.begin;
    ContentDigest::each_sample(e.begin, bytes, sample_blocks(bytes, total, 2),
                               [&](int64_t offset, int64_t n) {
                                 if (ranges.empty() || ranges.back().end != offset)
                                   ranges.push_back({offset, offset});
                                 ranges.back().end += n;
                               });
  }
  return ranges;
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
    // All are announced first: a disk takes them together sooner than one after the other.
    std::vector<std::vector<Stretch>> samples;
    for (const SafetensorsReader& file : weights)
      for (const Stretch& r : samples.emplace_back(samples_of(file, total)))
        file.will_read(r.begin, r.end - r.begin);
    for (size_t i = 0; i < weights.size(); ++i) {
      ContentDigest digest;
      const std::string header = weights[i].header();
      digest.add(header);
      bytes_read += static_cast<int64_t>(header.size());
      for (const Stretch& r : samples[i]) {
        digest.add(r.begin, r.end - r.begin,
                   [&](int64_t offset, void* to, int64_t n) { weights[i].read_data(offset, n, to); });
        bytes_read += r.end - r.begin;
      }
      copies[i].digest = digest.value();
    }
  }
  if (read != nullptr) *read = bytes_read;
  return copies;
}

std::vector<FileCopy> stored_weights_copies(const fs::path& path, FileSystem& files) {
  return weights_copies(weights_path(path, files), files);
}

}  // namespace sherd
