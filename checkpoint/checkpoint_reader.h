// Reader of tensors, or of boxes of them, from a checkpoint or from safetensors files of other programs.
#pragma once

#include <filesystem>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <sherd/checkpoint/files/file_system.h>
#include <sherd/checkpoint/format/manifest.h>

namespace sherd {

/// Counts of read().
struct ReadCounts {
  int64_t bytes_used = 0;  // requested
  int64_t bytes_read = 0;  // of tensor data, rounded up to checksum blocks
  int64_t blocks_verified = 0;
};

/// Returns whether the reader treats a tensor of another program's file as plain bytes, by its name. Such a tensor may be
/// missing although an index names it. An empty function: never.
using Opaque = std::function<bool(std::string_view name)>;

/// Reader of one of these:
///  - a committed checkpoint's folder (with manifest.binpb): every block is verified before use;
///  - a folder of safetensors files: the `model` or `optim` folder of a checkpoint, a folder that PyTorch's
///    DCP writer saved (pieces with saved_offsets), or a Hugging Face folder: model.safetensors.index.json
///    names its files, which may be in folders below; beside an index model.safetensors is read alone, as
///    by transformers. A tensor that the index does not name is read, too. Of whole tensors in several files
///    the index selects one. Manifest::notes says what is not read;
///  - one safetensors file.
/// The latter two have no checksums: structure and coverage are checked, and manifest().checksums is false.
/// All their tensors are in section model (in a folder whose every name begins with "optim.": optim).
///
/// One thread at a time. It holds at most 128 files open and one block (1 MiB) of each.
class CheckpointReader {
 public:
  /// Opens `path`: reads the manifest or the headers, no tensor data.
  /// @throws IoError when the path is missing or none of the above, CorruptCheckpoint when it is damaged, NewerFormat.
  [[nodiscard]] static CheckpointReader open(const std::filesystem::path& path,
                                             FileSystem& files = FileSystem::posix());
  /// Opens `path` with the tensors that `opaque` selects as u8 tensors of their bytes; sherd may lack their
  /// dtype. Not for a committed checkpoint.
  [[nodiscard]] static CheckpointReader open(const std::filesystem::path& path, const Opaque& opaque,
                                             FileSystem& files = FileSystem::posix());
  CheckpointReader(CheckpointReader&&) noexcept;
  ~CheckpointReader();

  const std::filesystem::path& path() const;
  FileSystem& files() const;
  const Manifest& manifest() const;
  /// Returns the tensor, or null. A hash lookup.
  const CheckpointTensor* find(Section section, std::string_view name) const;

  /// Checks that every file is present with its recorded length and header, without reading data.
  /// @throws CorruptCheckpoint naming the first file that is not.
  void check_files();

  /// Copies the elements of `boxes` of a tensor of this reader to host memory `to`, box after box, each in
  /// row-major order, in the tensor's dtype.
  /// @throws InvalidArgument for a box outside the tensor, CorruptCheckpoint naming file, tensor and byte
  /// range when a block fails its checksum or a file is not as recorded, IoError.
  void read(const CheckpointTensor& tensor, std::span<const Box> boxes, void* to);

  const ReadCounts& counts() const;

 private:
  struct Impl;
  explicit CheckpointReader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Returns a manifest without checksums, made from headers. `path` is one safetensors file or a folder of
/// them (see CheckpointReader). File paths are relative to the folder. @throws as CheckpointReader::open().
[[nodiscard]] Manifest scan_safetensors(const std::filesystem::path& path,
                                        FileSystem& files = FileSystem::posix(), const Opaque& opaque = {});

/// One damage of a checkpoint.
struct Damage {
  std::string file;            // below the checkpoint's folder; "manifest.binpb"
  std::string tensor;          // empty when the file as a whole is damaged
  int64_t begin = 0, end = 0;  // bytes of the file, [begin, end); equal when unknown
  std::string what;
};

/// Reads every byte of every file of a checkpoint's folder and returns all damage: a missing or torn
/// manifest; missing, unknown, short, long and flipped files (a damaged block is reported once for each
/// tensor with bytes in it); headers that differ from the manifest. Empty = sound. Never writes. Throws
/// IoError only when `path` is absent, and NewerFormat. Calls `progress` from time to time with bytes done and total bytes.
[[nodiscard]] std::vector<Damage> verify_checkpoint(
    const std::filesystem::path& path, const std::function<void(int64_t, int64_t)>& progress = {},
    FileSystem& files = FileSystem::posix());

/// Non-finite values of a tensor; `first` is in row-major order of the whole tensor.
struct TensorNotFinite {
  std::string name;
  Section section = Section::model;
  Shape shape;
  NotFinite values;
};
struct Verification {
  std::vector<Damage> damage;
  /// Tensors of undamaged blocks with non-finite elements, whatever the manifest records, in the order found.
  std::vector<TensorNotFinite> not_finite;
};
/// Calls verify_checkpoint() and also returns the non-finite values, since it reads every byte. They are no
/// damage, but a run cannot resume from them.
[[nodiscard]] Verification verify_contents(const std::filesystem::path& path,
                                           const std::function<void(int64_t, int64_t)>& progress = {},
                                           FileSystem& files = FileSystem::posix());

}  // namespace sherd
