#include <sherd/checkpoint/format/detail/manifest_message.h>

#include <limits>

#include <fmt/format.h>

#include <sherd/base/detail/json_text.h>
#include <sherd/base/error.h>
#include <sherd/checkpoint/safetensors/detail/safetensors_format.h>

namespace sherd {
namespace {

/// Protobuf would write other text without complaint and then refuse to read it.
const std::string& utf8(const std::string& text) {
  if (!is_utf8(text)) throw InvalidArgument(fmt::format("manifest: {} is not valid UTF-8", shown(text)));
  return text;
}

void put(proto::Training& to, const TrainingState& state) {
  to.set_step(state.step);
  to.set_sequences(state.sequences);
  to.set_seed(state.seed);
  for (const auto& [key, value] : state.info) (*to.mutable_info())[utf8(key)] = utf8(value);
}

void put(proto::File& to, const CheckpointFile& file) {
  to.set_path(utf8(file.path));
  to.set_bytes(file.bytes);
  to.set_header_bytes(file.header_bytes);
  to.set_header_checksum(file.header_checksum);
  to.mutable_block_checksums()->Assign(file.block_checksums.begin(), file.block_checksums.end());
}

void put(proto::Tensor& to, const CheckpointTensor& tensor) {
  to.set_name(utf8(tensor.name));
  to.set_section(tensor.section == Section::model ? proto::Tensor::MODEL : proto::Tensor::OPTIM);
  to.set_dtype(std::string(safetensors::type_name(tensor.dtype)));
  to.mutable_shape()->Assign(tensor.shape.begin(), tensor.shape.end());
  for (const std::string& name : tensor.tied) to.add_tied(utf8(name));
  to.set_scalar(tensor.scalar);
  for (const CheckpointPiece& piece : tensor.pieces) {
    proto::Piece& p = *to.add_pieces();
    p.mutable_offset()->Assign(piece.box.offset.begin(), piece.box.offset.end());
    p.mutable_size()->Assign(piece.box.size.begin(), piece.box.size.end());
    p.set_file(static_cast<uint32_t>(piece.file));
    p.set_begin(piece.begin);
    p.set_not_finite(piece.not_finite.count);
    p.set_first_not_finite(piece.not_finite.first);
  }
}

CheckpointFile get(const proto::File& from) {
  CheckpointFile file{from.path(), from.bytes(), from.header_bytes(), from.header_checksum(), {}};
  file.block_checksums.assign(from.block_checksums().begin(), from.block_checksums().end());
  return file;
}

CheckpointTensor get(const proto::Tensor& from) {
  CheckpointTensor tensor;
  tensor.name = from.name();
  if (from.section() != proto::Tensor::MODEL && from.section() != proto::Tensor::OPTIM) {
    throw CorruptCheckpoint(
        fmt::format("tensor {}: unknown section {}", shown(tensor.name), static_cast<int>(from.section())));
  }
  tensor.section = from.section() == proto::Tensor::MODEL ? Section::model : Section::optim;
  const safetensors::Type* type = safetensors::find_type(from.dtype());
  if (type == nullptr || !type->dtype) {
    throw CorruptCheckpoint(
        fmt::format("tensor {}: unknown dtype {}", shown(tensor.name), shown(from.dtype())));
  }
  tensor.dtype = *type->dtype;
  tensor.shape.assign(from.shape().begin(), from.shape().end());
  tensor.tied.assign(from.tied().begin(), from.tied().end());
  tensor.scalar = from.scalar();
  tensor.pieces.reserve(static_cast<size_t>(from.pieces_size()));
  for (const proto::Piece& p : from.pieces()) {
    if (p.file() > static_cast<uint32_t>(std::numeric_limits<int>::max())) {
      throw CorruptCheckpoint(fmt::format("tensor {}: file index {}", shown(tensor.name), p.file()));
    }
    tensor.pieces.push_back({{{p.offset().begin(), p.offset().end()}, {p.size().begin(), p.size().end()}},
                             static_cast<int>(p.file()),
                             p.begin(),
                             {p.not_finite(), p.first_not_finite()}});
  }
  return tensor;
}

}  // namespace

proto::Manifest to_message(const Manifest& manifest) {
  proto::Manifest message;
  put(*message.mutable_training(), manifest.training);
  for (const CheckpointFile& file : manifest.files) put(*message.add_files(), file);
  for (const CheckpointTensor& tensor : manifest.tensors) put(*message.add_tensors(), tensor);
  return message;
}

Manifest from_message(const proto::Manifest& message) {
  Manifest manifest;
  const proto::Training& training = message.training();
  manifest.training = {training.step(), training.sequences(), training.seed(), {}};
  manifest.training.info.insert(training.info().begin(), training.info().end());
  manifest.files.reserve(static_cast<size_t>(message.files_size()));
  for (const proto::File& file : message.files()) manifest.files.push_back(get(file));
  manifest.tensors.reserve(static_cast<size_t>(message.tensors_size()));
  for (const proto::Tensor& tensor : message.tensors()) manifest.tensors.push_back(get(tensor));
  return manifest;
}

}  // namespace sherd
