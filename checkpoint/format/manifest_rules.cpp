#include <algorithm>
#include <limits>
#include <tuple>
#include <unordered_set>

#include <fmt/format.h>

#include <sherd/base/detail/json_text.h>
#include <sherd/base/error.h>
#include <sherd/checkpoint/files/detail/plain_path.h>
#include <sherd/checkpoint/format/coverage.h>
#include <sherd/checkpoint/format/manifest.h>
#include <sherd/checkpoint/safetensors/detail/safetensors_format.h>

namespace sherd {
namespace {

/// So that arithmetic on blocks cannot overflow.
constexpr int64_t kMaxFileBytes = std::numeric_limits<int64_t>::max() - kChecksumBlock;

/// Bytes [begin, end) of a file that a piece takes.
struct Span {
  int file;
  int64_t begin, end;
  const CheckpointTensor* tensor;
};

void check_file(const CheckpointFile& file, bool checksums) {
  if (!is_plain_path(file.path))
    throw CorruptCheckpoint("its path is not a plain path below the checkpoint's folder");
  if (file.header_bytes < safetensors::kLengthBytes || file.bytes < file.header_bytes ||
      file.header_bytes > safetensors::kLengthBytes + safetensors::kMaxHeaderBytes ||
      file.bytes > kMaxFileBytes) {
    throw CorruptCheckpoint(
        fmt::format("a header of {} bytes in {} bytes is impossible", file.header_bytes, file.bytes));
  }
  const int64_t expected = checksums ? file.blocks() : 0;
  if (static_cast<int64_t>(file.block_checksums.size()) != expected) {
    throw CorruptCheckpoint(fmt::format("it has {} checksums; {} bytes of data take {}",
                                        file.block_checksums.size(), file.data_bytes(), expected));
  }
}

/// The caller adds which piece it is.
Span check_piece(const Manifest& manifest, const CheckpointTensor& tensor, const CheckpointPiece& piece) {
  const auto& [offset, size] = piece.box;
  const size_t dims = tensor.shape.size();
  if (offset.size() != dims || size.size() != dims)
    throw CorruptCheckpoint(
        fmt::format("it has {} offsets and {} sizes for {} dimensions", offset.size(), size.size(), dims));
  for (size_t d = 0; d < dims; ++d) {
    if (offset[d] < 0 || size[d] <= 0 || offset[d] >= tensor.shape[d] ||
        size[d] > tensor.shape[d] - offset[d]) {
      throw CorruptCheckpoint(fmt::format("{} elements from {} on are empty or not inside {}",
                                          to_string(size), to_string(offset), to_string(tensor.shape)));
    }
  }
  if (piece.file < 0 || static_cast<size_t>(piece.file) >= manifest.files.size()) {
    throw CorruptCheckpoint(
        fmt::format("it lies in file {}, but there are {} files", piece.file, manifest.files.size()));
  }
  const NotFinite& wild = piece.not_finite;
  if (const int64_t elements = numel_of(size); wild.count < 0 || wild.count > elements || wild.first < 0 ||
                                               wild.first > elements - std::max<int64_t>(1, wild.count)) {
    throw CorruptCheckpoint(fmt::format("{} of its {} elements from element {} on are not finite: impossible",
                                        wild.count, elements, wild.first));
  }
  const CheckpointFile& file = manifest.files[static_cast<size_t>(piece.file)];
  const int64_t bytes = numel_of(size) * size_of(tensor.dtype);
  if (piece.begin < file.header_bytes || piece.begin > file.bytes || bytes > file.bytes - piece.begin) {
    throw CorruptCheckpoint(fmt::format("its {} bytes from byte {} on are outside the data of {}, [{}, {})",
                                        bytes, piece.begin, shown(file.path), file.header_bytes, file.bytes));
  }
  return {piece.file, piece.begin, piece.begin + bytes, &tensor};
}

/// Runs `check`, adding to the message what it was about.
template <class Check>
void about(std::string_view kind, const std::string& name, Check check) {
  try {
    check();
  } catch (const CorruptCheckpoint& e) {
    throw CorruptCheckpoint(fmt::format("{} {}: {}", kind, shown(name), e.what()));
  }
}

void check_tensor(const Manifest& manifest, const CheckpointTensor& tensor, std::vector<Span>& spans) {
  if (tensor.shape.empty() || tensor.shape.size() > 8)
    throw CorruptCheckpoint(fmt::format("it has {} dimensions, not 1 to 8", tensor.shape.size()));
  if (tensor.scalar && tensor.shape != Shape{1})
    throw CorruptCheckpoint(
        fmt::format("it has no dimensions and shape {} instead of [1]", to_string(tensor.shape)));
  if (!safetensors::checked_bytes(tensor.shape, size_of(tensor.dtype))) {
    throw CorruptCheckpoint(
        fmt::format("shape {} holds a negative size or passes 2^63 - 1 bytes", to_string(tensor.shape)));
  }
  std::vector<Box> boxes;
  boxes.reserve(tensor.pieces.size());
  for (size_t i = 0; i < tensor.pieces.size(); ++i) {
    try {
      spans.push_back(check_piece(manifest, tensor, tensor.pieces[i]));
    } catch (const CorruptCheckpoint& e) {
      throw CorruptCheckpoint(fmt::format("piece {}: {}", i, e.what()));
    }
    boxes.push_back(tensor.pieces[i].box);
  }
  if (const auto fault = coverage_fault(tensor.shape, boxes)) {
    throw CorruptCheckpoint(
        fmt::format("of shape {}, element {} is {}", to_string(tensor.shape), to_string(fault->at),
                    fault->times == 0 ? "in no piece: pieces are missing"
                                      : fmt::format("in {} pieces instead of one", fault->times)));
  }
}

/// Rule 4: together, the pieces in a file are its data.
void check_data(const Manifest& manifest, std::vector<Span>& spans) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
    return std::tie(a.file, a.begin) < std::tie(b.file, b.begin);
  });
  auto span = spans.begin();
  for (int i = 0; static_cast<size_t>(i) < manifest.files.size(); ++i) {
    const CheckpointFile& file = manifest.files[static_cast<size_t>(i)];
    int64_t covered = file.header_bytes;
    for (; span != spans.end() && span->file == i; ++span) {
      if (span->begin != covered) {
        throw CorruptCheckpoint(
            fmt::format("file {}: tensor {} begins at byte {}, but what lies before ends at {}: {}",
                        shown(file.path), shown(span->tensor->name), span->begin, covered,
                        span->begin < covered ? "they overlap" : "there is a hole"));
      }
      covered = span->end;
    }
    if (covered != file.bytes) {
      throw CorruptCheckpoint(
          fmt::format("file {}: bytes [{}, {}) belong to no tensor", shown(file.path), covered, file.bytes));
    }
  }
}

}  // namespace

bool is_plain_path(std::string_view path) {
  if (path.size() > 255) return false;
  for (bool last = false; !last;) {
    const size_t slash = path.find('/');
    last = slash == path.npos;
    const std::string_view component = path.substr(0, slash);
    if (component.empty() || component == "." || component == ".." || component.find('\0') != path.npos)
      return false;
    if (!last) path.remove_prefix(slash + 1);
  }
  return true;
}

void check_manifest(const Manifest& manifest) {
  const TrainingState& training = manifest.training;
  if (training.step < 0 || training.sequences < 0) {
    throw CorruptCheckpoint(
        fmt::format("step {}, sequences {}: negative", training.step, training.sequences));
  }
  std::unordered_set<std::string_view> paths;
  for (const CheckpointFile& file : manifest.files) {
    about("file", file.path, [&] {
      check_file(file, manifest.checksums);
      if (!paths.insert(file.path).second) throw CorruptCheckpoint("it is named twice");
    });
  }
  std::unordered_set<std::string_view> names[2];
  std::vector<Span> spans;
  for (const CheckpointTensor& tensor : manifest.tensors) {
    about(name_of(tensor.section) + std::string(" tensor"), tensor.name, [&] {
      if (!names[tensor.section == Section::optim].insert(tensor.name).second)
        throw CorruptCheckpoint("it is named twice");
      check_tensor(manifest, tensor, spans);
    });
  }
  check_data(manifest, spans);
}

}  // namespace sherd
