#include <sherd/checkpoint/checkpoint_reader.h>

#include <limits>

#include <fmt/format.h>

#include <sherd/base/detail/json_text.h>
#include <sherd/base/error.h>
#include <sherd/checkpoint/detail/box_runs.h>
#include <sherd/checkpoint/detail/verified_files.h>
#include <sherd/checkpoint/format/detail/at_path.h>
#include <sherd/checkpoint/format/detail/piece_index.h>

namespace sherd {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxManifestBytes = kManifestPrefix + std::numeric_limits<int>::max();

Manifest read_manifest(const fs::path& path, FileSystem& files) {
  const std::string bytes = read_whole(files, path, kMaxManifestBytes);
  return at_path(path, [&] { return decode_manifest(bytes); });
}

void check_box(const CheckpointTensor& tensor, const Box& box) {
  const size_t dims = tensor.shape.size();
  bool inside = box.offset.size() == dims && box.size.size() == dims;
  for (size_t d = 0; inside && d < dims; ++d)
    inside = box.offset[d] >= 0 && box.size[d] >= 0 && box.offset[d] <= tensor.shape[d] &&
             box.size[d] <= tensor.shape[d] - box.offset[d];
  if (!inside) {
    throw InvalidArgument(fmt::format("read {}: a box of {} at {} is not inside the tensor's shape {}",
                                      shown(tensor.name), to_string(box.size), to_string(box.offset),
                                      to_string(tensor.shape)));
  }
}

}  // namespace

struct CheckpointReader::Impl {
  Impl(fs::path given, const fs::path& root, Manifest read, FileSystem& from)
      : path(std::move(given)), files(from), manifest(std::move(read)), data(from, root, manifest, counts) {
    for (const CheckpointTensor& tensor : manifest.tensors) names(tensor.section)[tensor.name] = &tensor;
  }

  std::unordered_map<std::string_view, const CheckpointTensor*>& names(Section section) {
    return by_name[section == Section::optim];
  }
  const PieceIndex& pieces_of(const CheckpointTensor& tensor) {
    return pieces.try_emplace(&tensor, tensor.pieces).first->second;
  }

  fs::path path;
  FileSystem& files;
  Manifest manifest;
  std::unordered_map<std::string_view, const CheckpointTensor*> by_name[2];
  std::unordered_map<const CheckpointTensor*, PieceIndex> pieces;
  ReadCounts counts;
  VerifiedFiles data;
};

CheckpointReader::CheckpointReader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CheckpointReader::CheckpointReader(CheckpointReader&&) noexcept = default;
CheckpointReader::~CheckpointReader() = default;

CheckpointReader CheckpointReader::open(const fs::path& path, FileSystem& files) {
  return open(path, {}, files);
}

CheckpointReader CheckpointReader::open(const fs::path& path, const Opaque& opaque, FileSystem& files) {
  const FileSystem::Kind kind = files.kind(path);
  const bool committed =
      kind == FileSystem::Kind::folder && files.kind(path / "manifest.binpb") != FileSystem::Kind::none;
  Manifest manifest =
      committed ? read_manifest(path / "manifest.binpb", files) : scan_safetensors(path, files, opaque);
  const fs::path root = kind == FileSystem::Kind::folder ? path : path.parent_path();
  return CheckpointReader(std::make_unique<Impl>(path, root, std::move(manifest), files));
}

const fs::path& CheckpointReader::path() const { return impl_->path; }
FileSystem& CheckpointReader::files() const { return impl_->files; }
const Manifest& CheckpointReader::manifest() const { return impl_->manifest; }
const ReadCounts& CheckpointReader::counts() const { return impl_->counts; }

const CheckpointTensor* CheckpointReader::find(Section section, std::string_view name) const {
  const auto& names = impl_->names(section);
  const auto found = names.find(name);
  return found == names.end() ? nullptr : found->second;
}

void CheckpointReader::check_files() {
  for (int i = 0; i < static_cast<int>(impl_->manifest.files.size()); ++i) impl_->data.check(i);
}

void CheckpointReader::read(const CheckpointTensor& tensor, std::span<const Box> boxes, void* to) {
  if (find(tensor.section, tensor.name) != &tensor) {
    throw InvalidArgument(
        fmt::format("read {}: the tensor is not one of '{}'", shown(tensor.name), path().string()));
  }
  for (const Box& box : boxes) check_box(tensor, box);
  const int64_t width = size_of(tensor.dtype);
  const PieceIndex& pieces = impl_->pieces_of(tensor);
  auto* target = static_cast<char*>(to);
  try {
    for (const Box& box : boxes) {
      for (const auto& [piece, common] : pieces.meeting(box)) {
        each_run(common, piece->box, box, [&, p = piece](int64_t first, int64_t place, int64_t count) {
          impl_->data.read(p->file, p->begin + first * width, count * width, target + place * width);
        });
      }
      target += numel_of(box.size) * width;
      impl_->counts.bytes_used += numel_of(box.size) * width;
    }
  } catch (const CorruptCheckpoint& e) {
    throw CorruptCheckpoint(fmt::format("tensor {}: {}", shown(tensor.name), e.what()));
  }
}

}  // namespace sherd
