#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sherd/base/detail/json_text.h>
#include <sherd/base/error.h>
#include <sherd/checkpoint/checkpoint_reader.h>
#include <sherd/checkpoint/files/detail/links.h>
#include <sherd/checkpoint/safetensors/detail/saved_offsets.h>
#include <sherd/checkpoint/safetensors/detail/weights_index.h>
#include <sherd/checkpoint/safetensors/safetensors.h>

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

/// Entries of the files for one tensor.
struct Found {
  CheckpointTensor tensor;
  /// Every piece so far came with its offset.
  bool placed = true;
  /// The shape was written, not concluded from the pieces.
  bool shape_known = false;
};

/// Header of one file.
struct Header {
  std::string name;
  int64_t bytes;
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, Shape> offsets;
};

/// A whole tensor in another file than the one that the index names.
struct Copy {
  std::string tensor, left, read;
};

/// File by tensor name.
using Index = std::map<std::string, std::string>;

class Scan {
 public:
  Scan(fs::path root, FileSystem& files, const Opaque& opaque)
      : root_(std::move(root)), files_(files), opaque_(opaque) {}

  void add(const std::string& name) {
    const SafetensorsReader file(root_ / name, files_);
    for (const SafetensorsEntry& entry : file.entries()) holders_[entry.name].insert(name);
    headers_.push_back({name, file.header_bytes(), file.entries(), saved_offsets(file)});
  }

  /// A line on what is not read.
  void note(std::string line) { manifest_.notes.push_back(std::move(line)); }

  /// The index decides on whole tensors that several files have.
  Manifest finish(const Index& index = {}) && {
    check(index);
    for (const Header& file : headers_) add(file, index);
    note_copies();
    if (!unsupported_.empty()) {
      throw NotSupported(
          fmt::format("'{}': sherd has no tensors like {}; leave them out, or convert them to at most 8 "
                      "dimensions of F32, "
                      "BF16, F16, F64, I32, I64, U8, I8 or F8_E4M3",
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
    // Every byte is accounted for, those that are not read too.
    const size_t tensors = manifest_.tensors.size();
    manifest_.tensors.insert(manifest_.tensors.end(), unread_.begin(), unread_.end());
    try {
      check_manifest(manifest_);
      manifest_.tensors.resize(tensors);
    } catch (const CorruptCheckpoint& e) {
      throw CorruptCheckpoint(fmt::format("'{}': {}", place(), e.what()));
    }
    return std::move(manifest_);
  }

 private:
  /// Returns the place for messages: the file, if there is only one.
  std::string place() const { return (headers_.size() == 1 ? root_ / headers_[0].name : root_).string(); }
  bool is_opaque(const std::string& name) const { return opaque_ && opaque_(name); }

  /// Checks that files have all tensors of the index, except those that the caller leaves out.
  void check(const Index& index) const {
    std::vector<std::string> lost;
    for (const auto& [tensor, file] : index)
      if (!holders_.contains(tensor) && !is_opaque(tensor))
        lost.push_back(fmt::format("{} is not in file {}", shown(tensor), shown(file)));
    if (!lost.empty()) throw CorruptCheckpoint(some_of(lost) + "; copy the file again, or correct the index");
  }

  void add(const Header& file, const Index& index) {
    for (const SafetensorsEntry& entry : file.entries) {
      const auto offset = file.offsets.find(entry.name);
      const bool piece = offset != file.offsets.end();
      const auto named = index.find(entry.name);
      const std::set<std::string>& holders = holders_[entry.name];
      if (!piece && named != index.end() && named->second != file.name && holders.contains(named->second)) {
        if (!is_opaque(entry.name)) copies_.push_back({entry.name, file.name, named->second});
        leave(as_bytes(entry), file);
        continue;
      }
      try {
        if (is_opaque(entry.name))
          add(as_bytes(entry), file.bytes, nullptr);
        else
          add(entry, file.bytes, piece ? &offset->second : nullptr);
      } catch (const CorruptCheckpoint& e) {
        throw CorruptCheckpoint(
            fmt::format("'{}': tensor {}: {}", (root_ / file.name).string(), shown(entry.name), e.what()));
      }
    }
    const int64_t data = file.entries.empty() ? 0 : file.entries.back().end;
    manifest_.files.push_back({file.name, file.bytes + data, file.bytes, 0, {}});
  }

  void leave(const SafetensorsEntry& bytes, const Header& file) {
    if (bytes.begin == bytes.end) return;
    const Box all{{0}, bytes.shape};
    unread_.push_back(
        {.name = fmt::format("{}\n{}", bytes.name, file.name),
         .dtype = DType::u8,
         .shape = bytes.shape,
         .pieces = {{all, static_cast<int>(manifest_.files.size()), file.bytes + bytes.begin}}});
  }

  void note_copies() {
    std::vector<std::string> lines;
    for (const Copy& copy : copies_)
      lines.push_back(fmt::format("{} of {} is read, and not that of {}", shown(copy.tensor),
                                  shown(copy.read), shown(copy.left)));
    if (!lines.empty())
      note(
          fmt::format("'{}' decides on tensors that several files have (transformers reads that of the last "
                      "file by name): {}",
                      (root_ / kWeightsIndex).string(), some_of(lines)));
  }

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
  std::vector<Header> headers_;
  std::map<std::string, std::set<std::string>> holders_;  // files by tensor
  std::map<std::string, Found> found_;
  std::vector<Copy> copies_;
  std::vector<CheckpointTensor> unread_;
  std::vector<std::string> unsupported_;
};

Manifest scan_indexed(const fs::path& folder, FileSystem& files, const Opaque& opaque) {
  const Index index = read_weights_index(folder / kWeightsIndex, files);
  std::set<std::string> names;
  std::vector<std::string> problems;
  for (const auto& [tensor, file] : index) {
    if (names.insert(file).second && files.kind(folder / file) != FileSystem::Kind::file)
      problems.push_back(fmt::format("file {} is missing", shown(file)));
  }
  if (!problems.empty())
    throw CorruptCheckpoint(some_of(problems) +
                            "; copy all files of the index, or remove an index of earlier weights");
  Scan scan(folder, files, opaque);
  for (const std::string& name : names) {
    require_inside(folder, name);
    scan.add(name);
  }
  return std::move(scan).finish(index);
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
    if (files.kind(path / kWeightsFile) == FileSystem::Kind::file) {
      require_inside(path, kWeightsFile);
      Scan scan(path, files, opaque);
      scan.add(kWeightsFile);
      scan.note(fmt::format(
          "'{}' is read, as by transformers, and '{}' beside it is not; remove what is out of date",
          (path / kWeightsFile).string(), kWeightsIndex));
      return std::move(scan).finish();
    }
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
  if (!any)
    refuse_without_safetensors(
        path, files,
        "holds neither manifest.binpb nor .safetensors files; name a checkpoint's folder (such as "
        "step_00000100), a folder of safetensors files or one safetensors file");
  return std::move(scan).finish();
}

}  // namespace sherd
