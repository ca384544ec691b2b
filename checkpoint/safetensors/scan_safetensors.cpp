#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/checkpoint/checkpoint_reader.h>
#include <sherd/checkpoint/files/detail/json_text.h>
#include <sherd/checkpoint/files/detail/links.h>
#include <sherd/checkpoint/safetensors/detail/saved_offsets.h>
#include <sherd/checkpoint/safetensors/detail/weights_index.h>
#include <sherd/checkpoint/safetensors/safetensors.h>
#include <sherd/kernels/device/error.h>

namespace sherd {
namespace {

namespace fs = std::filesystem;

/// "a, b, c and 40 more"
std::string some_of(const std::vector<std::string>& all) {
  constexpr size_t kShown = 10;
  if (all.size() <= kShown) return fmt::format("{}", fmt::join(all, ", "));
  return fmt::format("{} and {} more", fmt::join(all.begin(), all.begin() + kShown, ", "),
                     all.size() - kShown);
}

/// Tensors without dimensions are taken for [1].
Shape or_vector(Shape shape, int64_t value) { return shape.empty() ? Shape{value} : std::move(shape); }

/// What the files say about one tensor.
struct Found {
  CheckpointTensor tensor;
  /// Every piece so far came with its offset.
  bool placed = true;
  /// The shape was written, not concluded from the pieces.
  bool shape_known = false;
};

class Scan {
 public:
  Scan(fs::path root, FileSystem& files, const Opaque& opaque)
      : root_(std::move(root)), files_(files), opaque_(opaque) {}

  void add(const std::string& name) {
    const SafetensorsReader file(root_ / name, files_);
    const std::map<std::string, Shape> offsets = saved_offsets(file);
    const int64_t header = file.header_bytes();
    const int64_t data = file.entries().empty() ? 0 : file.entries().back().end;
    for (const SafetensorsEntry& entry : file.entries()) {
      names_[name].insert(entry.name);
      const auto offset = offsets.find(entry.name);
      try {
        if (opaque_ && opaque_(entry.name))
          add(as_bytes(entry), header, nullptr);
        else
          add(entry, header, offset == offsets.end() ? nullptr : &offset->second);
      } catch (const CorruptCheckpoint& e) {
        throw CorruptCheckpoint(
            fmt::format("'{}': tensor {}: {}", file.path().string(), shown(entry.name), e.what()));
      }
    }
    manifest_.files.push_back({name, header + data, header, 0, {}});
  }

  /// Names of the tensors in each file.
  const std::map<std::string, std::set<std::string>>& names() const { return names_; }

  Manifest finish() && {
    if (!unsupported_.empty()) {
      throw NotSupported(
          fmt::format("'{}': sherd has no tensors like {}; leave them out, or convert them to at most 8 "
                      "dimensions of F32, "
                      "BF16, F16, F64, I32, I64 or U8",
                      place(), some_of(unsupported_)));
    }
    const bool optim = !found_.empty() && std::all_of(found_.begin(), found_.end(), [](const auto& item) {
      return item.first.starts_with("optim.");
    });
    manifest_.checksums = false;
    for (auto& [name, found] : found_) {
      found.tensor.name = name;
      found.tensor.section = optim ? Section::optim : Section::model;
      manifest_.tensors.push_back(std::move(found.tensor));
    }
    try {
      check_manifest(manifest_);
    } catch (const CorruptCheckpoint& e) {
      throw CorruptCheckpoint(fmt::format("'{}': {}", place(), e.what()));
    }
    return std::move(manifest_);
  }

 private:
  /// Of messages: the file, where it is one.
  std::string place() const { return (names_.size() == 1 ? root_ / names_.begin()->first : root_).string(); }

  void add(const SafetensorsEntry& entry, int64_t header, const Shape* saved_offset) {
    if (!entry.dtype || entry.shape.size() > 8) {
      unsupported_.push_back(
          fmt::format("{} ({} {})", shown(entry.name), entry.dtype_name, to_string(entry.shape)));
      return;
    }
    const Shape size = or_vector(entry.shape, 1);
    const Shape offset = saved_offset == nullptr ? Shape(size.size(), 0) : or_vector(*saved_offset, 0);
    const auto [at, is_new] = found_.try_emplace(entry.name);
    Found& found = at->second;
    CheckpointTensor& tensor = found.tensor;
    if (is_new) {
      tensor.dtype = *entry.dtype;
      tensor.scalar = entry.shape.empty() && (!entry.global_shape || entry.global_shape->empty());
      found.shape_known = entry.global_shape.has_value();
      tensor.shape = found.shape_known ? or_vector(*entry.global_shape, 1) : Shape(size.size(), 0);
    }
    found.placed = found.placed && saved_offset != nullptr;
    if (!is_new && !found.placed)
      throw CorruptCheckpoint("another file has it too, and not both say which piece of it they hold");
    if (tensor.dtype != *entry.dtype) {
      throw CorruptCheckpoint(
          fmt::format("it is {} here and {} in another file", name_of(*entry.dtype), name_of(tensor.dtype)));
    }
    if (tensor.shape.size() != size.size() || found.shape_known != entry.global_shape.has_value() ||
        (found.shape_known && or_vector(*entry.global_shape, 1) != tensor.shape)) {
      throw CorruptCheckpoint(fmt::format(
          "it is a piece {} of {} here, which does not agree with {} before", to_string(size),
          entry.global_shape ? to_string(*entry.global_shape) : "a tensor whose shape is not written",
          to_string(tensor.shape)));
    }
    if (!found.shape_known) grow(tensor.shape, offset, size);
    if (numel_of(size) > 0)
      tensor.pieces.push_back(
          {{offset, size}, static_cast<int>(manifest_.files.size()), header + entry.begin});
  }

  static SafetensorsEntry as_bytes(SafetensorsEntry entry) {
    entry.dtype = DType::u8;
    entry.shape = {entry.end - entry.begin};
    entry.global_shape.reset();
    return entry;
  }

  static void grow(Shape& shape, const Shape& offset, const Shape& size) {
    for (size_t d = 0; d < shape.size(); ++d) {
      int64_t end;
      if (__builtin_add_overflow(offset[d], size[d], &end))
        throw CorruptCheckpoint("its offset is too large");
      shape[d] = std::max(shape[d], end);
    }
  }

  fs::path root_;
  FileSystem& files_;
  const Opaque& opaque_;
  Manifest manifest_;
  std::map<std::string, Found> found_;
  std::map<std::string, std::set<std::string>> names_;
  std::vector<std::string> unsupported_;
};

Manifest scan_indexed(const fs::path& folder, FileSystem& files, const Opaque& opaque) {
  const std::map<std::string, std::string> index = read_weights_index(folder / kWeightsIndex, files);
  std::set<std::string> names;
  std::vector<std::string> problems;
  for (const auto& [tensor, file] : index) {
    if (names.insert(file).second && files.kind(folder / file) != FileSystem::Kind::file)
      problems.push_back(fmt::format("file {} is missing", shown(file)));
  }
  if (!problems.empty()) throw CorruptCheckpoint(some_of(problems));
  Scan scan(folder, files, opaque);
  for (const std::string& name : names) {
    require_inside(folder, name);
    scan.add(name);
  }
  for (const auto& [tensor, file] : index) {
    if (!scan.names().at(file).contains(tensor))
      problems.push_back(fmt::format("{} is not in file {}", shown(tensor), shown(file)));
  }
  for (const auto& [file, tensors] : scan.names()) {
    for (const std::string& tensor : tensors) {
      const auto entry = index.find(tensor);
      if (entry == index.end() || entry->second != file)
        problems.push_back(fmt::format("{} in file {} is not in the index", shown(tensor), shown(file)));
    }
  }
  if (!problems.empty()) throw CorruptCheckpoint(some_of(problems));
  return std::move(scan).finish();
}

}  // namespace

Manifest scan_safetensors(const fs::path& path, FileSystem& files, const Opaque& opaque) {
  const FileSystem::Kind kind = files.kind(path);
  if (kind == FileSystem::Kind::file) {
    Scan scan(path.parent_path(), files, opaque);
    scan.add(path.filename().string());
    return std::move(scan).finish();
  }
  if (kind != FileSystem::Kind::folder) {
    throw IoError(
        fmt::format("cannot read '{}': {}", path.string(),
                    kind == FileSystem::Kind::none ? "it is missing" : "it is neither a folder nor a file"));
  }
  if (files.kind(path / kWeightsIndex) == FileSystem::Kind::file) {
    require_inside(path, kWeightsIndex);
    try {
      return scan_indexed(path, files, opaque);
    } catch (const CorruptCheckpoint& e) {
      throw CorruptCheckpoint(fmt::format("'{}': {}", (path / kWeightsIndex).string(), e.what()));
    }
  }
  Scan scan(path, files, opaque);
  bool any = false;
  for (const std::string& name : files.list(path)) {
    if (!name.ends_with(".safetensors")) continue;
    require_inside(path, name);
    scan.add(name);
    any = true;
  }
  if (!any) {
    throw IoError(
        fmt::format("cannot read '{}': it holds neither manifest.binpb nor .safetensors files; name a "
                    "checkpoint's folder (such "
                    "as step_00000100), a folder of safetensors files or one safetensors file",
                    path.string()));
  }
  return std::move(scan).finish();
}

}  // namespace sherd
