#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include <fmt/format.h>

#include <sherd/base/detail/json_text.h>
#include <sherd/base/error.h>
#include <sherd/checkpoint/checkpoint_reader.h>
#include <sherd/checkpoint/format/detail/at_path.h>
#include <sherd/checkpoint/safetensors/detail/saved_offsets.h>
#include <sherd/checkpoint/safetensors/safetensors.h>

namespace sherd {
namespace {

namespace fs = std::filesystem;

constexpr const char* kManifest = "manifest.binpb";

/// A piece of a tensor and the bytes [begin, end) of its file that it takes.
struct Placed {
  int64_t begin, end;
  const CheckpointTensor* tensor;
  const CheckpointPiece* piece;
};

class Verifier {
 public:
  Verifier(const fs::path& root, const std::function<void(int64_t, int64_t)>& progress, FileSystem& files)
      : root_(root), progress_(progress), files_(files) {}

  Verification run() && {
    if (!read_manifest()) return {std::move(damage_), {}};
    for (const CheckpointFile& file : manifest_.files) total_ += file.bytes;
    place_pieces();
    for (size_t i = 0; i < manifest_.files.size(); ++i) {
      const int64_t before = done_;
      check_file(manifest_.files[i], pieces_[i]);
      report(before + manifest_.files[i].bytes - done_);
    }
    find_unknown();
    return {std::move(damage_), std::move(wild_)};
  }

 private:
  void add(std::string file, std::string what, int64_t begin = 0, int64_t end = 0, std::string tensor = "") {
    damage_.push_back({std::move(file), std::move(tensor), begin, end, std::move(what)});
  }

  void report(int64_t bytes) {
    done_ += bytes;
    if (progress_) progress_(done_, total_);
  }

  bool read_manifest() {
    try {
      if (files_.kind(root_ / kManifest) == FileSystem::Kind::none)
        throw CorruptCheckpoint("it is missing: this is not a committed checkpoint");
      manifest_ = decode_manifest(
          read_whole(files_, root_ / kManifest, kManifestPrefix + std::numeric_limits<int>::max()));
      return true;
    } catch (const CorruptCheckpoint& e) {
      add(kManifest, e.what());
    } catch (const IoError& e) {
      add(kManifest, e.what());
    } catch (const NewerFormat&) {
      at_path(root_ / kManifest, [] { throw; });
    }
    return false;
  }

  void place_pieces() {
    pieces_.resize(manifest_.files.size());
    for (const CheckpointTensor& tensor : manifest_.tensors) {
      for (const CheckpointPiece& piece : tensor.pieces) {
        const int64_t bytes = numel_of(piece.box.size) * size_of(tensor.dtype);
        pieces_[static_cast<size_t>(piece.file)].push_back(
            {piece.begin, piece.begin + bytes, &tensor, &piece});
      }
    }
    for (auto& pieces : pieces_) {
      std::sort(pieces.begin(), pieces.end(),
                [](const Placed& a, const Placed& b) { return a.begin < b.begin; });
    }
  }

  void check_file(const CheckpointFile& file, const std::vector<Placed>& pieces) {
    const fs::path path = root_ / file.path;
    try {
      if (files_.kind(path) == FileSystem::Kind::none) {
        add(file.path, "it is missing");
        return lose(file, pieces, 0);
      }
      const std::unique_ptr<ReadableFile> open = files_.open(path);
      if (const int64_t size = open->size(); size != file.bytes) {
        add(file.path, fmt::format("it has {} bytes instead of {}: it is {}", size, file.bytes,
                                   size < file.bytes ? "cut off" : "too long"));
        return lose(file, pieces, size);
      }
      check_header(*open, file, pieces);
      check_blocks(*open, file, pieces);
    } catch (const IoError& e) {
      add(file.path, e.what());
    }
  }

  /// Names what lay behind the first `size` bytes.
  void lose(const CheckpointFile& file, const std::vector<Placed>& pieces, int64_t size) {
    for (const Placed& piece : pieces)
      if (piece.end > size)
        add(file.path, "its bytes are gone", std::max(size, piece.begin), piece.end, piece.tensor->name);
  }

  void check_header(const ReadableFile& open, const CheckpointFile& file, const std::vector<Placed>& pieces) {
    std::vector<char> header(static_cast<size_t>(file.header_bytes));
    open.read_at(0, header.data(), file.header_bytes);
    if (checksum(header.data(), file.header_bytes) != file.header_checksum) {
      return add(file.path, "the checksum of its header differs", 0, file.header_bytes);
    }
    try {
      compare(SafetensorsReader(root_ / file.path, files_), file, pieces);
    } catch (const CorruptCheckpoint& e) {
      add(file.path, e.what(), 0, file.header_bytes);
    }
  }

  /// Compares the file's own description with the manifest's.
  void compare(const SafetensorsReader& reader, const CheckpointFile& file,
               const std::vector<Placed>& pieces) {
    const auto differs = [&](const std::string& tensor, const std::string& what) {
      add(file.path, what, 0, file.header_bytes, tensor);
    };
    const std::map<std::string, Shape> offsets = saved_offsets(reader);
    std::set<std::string_view> expected;
    for (const Placed& placed : pieces) {
      const CheckpointTensor& tensor = *placed.tensor;
      const SafetensorsEntry* entry = reader.find(tensor.name);
      const auto offset = offsets.find(tensor.name);
      if (!expected.insert(tensor.name).second) {
        differs(tensor.name, "the manifest puts two pieces of it into this file, which can hold one");
      } else if (entry == nullptr) {
        differs(tensor.name, "the manifest puts a piece of it into this file, whose header does not list it");
      } else if (entry->dtype != tensor.dtype ||
                 entry->shape != (tensor.scalar ? Shape{} : placed.piece->box.size) ||
                 entry->global_shape != tensor.stored_shape() || offset == offsets.end() ||
                 offset->second != (tensor.scalar ? Shape{} : placed.piece->box.offset) ||
                 reader.header_bytes() + entry->begin != placed.begin) {
        differs(tensor.name, "the header does not say of it what the manifest says");
      }
    }
    for (const SafetensorsEntry& entry : reader.entries()) {
      if (!expected.contains(entry.name))
        differs(entry.name, "the header names it, but the manifest puts no piece of it into this file");
    }
  }

  void check_blocks(const ReadableFile& open, const CheckpointFile& file, const std::vector<Placed>& pieces) {
    auto first = pieces.begin();
    for (int64_t i = 0; i < file.blocks(); ++i) {
      const int64_t begin = file.block_begin(i), end = file.block_end(i);
      while (first->end <= begin) ++first;
      const std::string what = block_damage(open, file, i);
      for (auto piece = first; piece != pieces.end() && piece->begin < end; ++piece) {
        const int64_t from = std::max(begin, piece->begin), to = std::min(end, piece->end);
        if (what.empty()) {
          count(*piece, from, buffer_.data() + (from - begin), to - from);
        } else {
          add(file.path, what, from, to, piece->tensor->name);
        }
      }
      report(end - begin);
    }
  }

  /// Bytes of a piece from byte `from` of the file on, which come in order as long as no block is damaged. An
  /// element that lies in two blocks (no writer of sherd's makes one) waits in rest_.
  void count(const Placed& placed, int64_t from, const char* data, int64_t bytes) {
    const int64_t size = size_of(placed.tensor->dtype);
    NotFinite found;
    const auto take = [&](const char* elements, int64_t at, int64_t n) {
      count_not_finite(placed.tensor->dtype, elements, n, (at - placed.begin) / size, found);
    };
    if (const int64_t before = (from - placed.begin) % size; before > 0) {
      const int64_t more = std::min(bytes, size - before);
      rest_.append(data, static_cast<size_t>(more));
      if (static_cast<int64_t>(rest_.size()) == size) take(rest_.data(), from - before, 1);
      from += more;
      data += more;
      bytes -= more;
    }
    take(data, from, bytes / size);
    rest_.assign(data + bytes / size * size, static_cast<size_t>(bytes % size));
    if (found.count > 0) note(placed, found);
  }

  void note(const Placed& placed, const NotFinite& found) {
    const CheckpointTensor& t = *placed.tensor;
    const int64_t first = index_in_whole(t.shape, placed.piece->box, found.first);
    auto known = std::find_if(wild_.begin(), wild_.end(), [&](const TensorNotFinite& w) {
      return w.section == t.section && w.name == t.name;
    });
    if (known == wild_.end()) known = wild_.insert(known, {t.name, t.section, t.shape, {0, first}});
    known->values.first = std::min(known->values.first, first);
    known->values.count += found.count;
  }

  std::string block_damage(const ReadableFile& open, const CheckpointFile& file, int64_t i) {
    const int64_t begin = file.block_begin(i), bytes = file.block_end(i) - begin;
    buffer_.resize(static_cast<size_t>(bytes));
    try {
      open.read_at(begin, buffer_.data(), bytes);
    } catch (const IoError& e) {
      return e.what();
    }
    if (checksum(buffer_.data(), bytes) == file.block_checksums[static_cast<size_t>(i)]) return "";
    return fmt::format("the checksum of bytes [{}, {}) differs", begin, begin + bytes);
  }

  void find_unknown() {
    std::set<std::string> known = {kManifest}, folders;
    for (const CheckpointFile& file : manifest_.files) {
      known.insert(file.path);
      for (size_t slash = file.path.find('/'); slash != file.path.npos;
           slash = file.path.find('/', slash + 1))
        folders.insert(file.path.substr(0, slash));
    }
    find_unknown("", known, folders);
  }

  void find_unknown(const std::string& folder, const std::set<std::string>& known,
                    const std::set<std::string>& folders) {
    try {
      for (const std::string& name : files_.list(root_ / folder)) {
        const std::string path = folder.empty() ? name : folder + "/" + name;
        if (folders.contains(path) && files_.kind(root_ / path) == FileSystem::Kind::folder) {
          find_unknown(path, known, folders);
        } else if (!known.contains(path)) {
          add(path, "the manifest does not list it");
        }
      }
    } catch (const IoError& e) {
      add(folder, e.what());
    }
  }

  const fs::path& root_;
  const std::function<void(int64_t, int64_t)>& progress_;
  FileSystem& files_;
  Manifest manifest_;
  std::vector<std::vector<Placed>> pieces_;  // by file, in the order of the data
  std::vector<char> buffer_;
  std::string rest_;
  std::vector<Damage> damage_;
  std::vector<TensorNotFinite> wild_;
  int64_t done_ = 0, total_ = 0;
};

}  // namespace

Verification verify_contents(const fs::path& path, const std::function<void(int64_t, int64_t)>& progress,
                             FileSystem& files) {
  if (files.kind(path) != FileSystem::Kind::folder)
    throw IoError(fmt::format("cannot verify '{}': the folder is missing", path.string()));
  return Verifier(path, progress, files).run();
}

std::vector<Damage> verify_checkpoint(const fs::path& path,
                                      const std::function<void(int64_t, int64_t)>& progress,
                                      FileSystem& files) {
  return verify_contents(path, progress, files).damage;
}

}  // namespace sherd
