#include "support/hand_written.h"

#include <fstream>
#include <map>

#include <nlohmann/json.hpp>

#include <sherd/checkpoint/safetensors/detail/safetensors_format.h>

namespace sherd::test {
namespace {

void write(const std::filesystem::path& path, const std::string& bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

struct HandFile {
  std::vector<SafetensorsSpec> specs;
  nlohmann::json offsets = nlohmann::json::object();
  std::string data;
  std::vector<std::pair<CheckpointPiece*, int64_t>> begins;
};

}  // namespace

std::string HandTensor::bytes() const {
  std::string all(static_cast<size_t>(numel_of(shape) * size_of(dtype)), '\0');
  uint64_t state = checksum(name.data(), static_cast<int64_t>(name.size())) | 1;
  for (char& byte : all) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<char>(state >> 56);
  }
  return all;
}

std::string HandTensor::bytes(const Box& box) const {
  const std::string all = bytes();
  const auto width = static_cast<size_t>(size_of(dtype));
  std::string part;
  for (int64_t i = 0; i < numel_of(box.size); ++i) {
    int64_t rest = i, at = 0, stride = 1;
    for (size_t d = shape.size(); d-- > 0; rest /= box.size[d], stride *= shape[d])
      at += (box.offset[d] + rest % box.size[d]) * stride;
    part += all.substr(static_cast<size_t>(at) * width, width);
  }
  return part;
}

void set_checksums(CheckpointFile& record, const std::string& bytes) {
  record.bytes = static_cast<int64_t>(bytes.size());
  record.header_checksum = checksum(bytes.data(), record.header_bytes);
  record.block_checksums.clear();
  for (int64_t i = 0; i < record.blocks(); ++i) {
    const int64_t begin = record.block_begin(i);
    record.block_checksums.push_back(checksum(bytes.data() + begin, record.block_end(i) - begin));
  }
}

Manifest write_by_hand(const std::filesystem::path& folder, const std::vector<HandTensor>& tensors) {
  Manifest manifest;
  manifest.sequence = 1;
  manifest.training.step = 100;
  std::map<std::string, HandFile> files;
  for (const HandTensor& tensor : tensors)
    manifest.tensors.push_back({tensor.name, tensor.section, tensor.dtype, tensor.shape, {}});
  for (size_t t = 0; t < tensors.size(); ++t) {
    const HandTensor& tensor = tensors[t];
    manifest.tensors[t].pieces.resize(tensor.pieces.size());
    for (size_t k = 0; k < tensor.pieces.size(); ++k) {
      const auto& [box, name] = tensor.pieces[k];
      HandFile& file = files[name_of(tensor.section) + ("/" + name)];
      manifest.tensors[t].pieces[k].box = box;
      file.begins.emplace_back(&manifest.tensors[t].pieces[k], std::ssize(file.data));
      file.specs.push_back({tensor.name, tensor.dtype, box.size, tensor.shape});
      file.offsets[tensor.name]["saved_offsets"] = box.offset;
      file.data += tensor.bytes(box);
    }
  }
  for (const auto& [path, file] : files) {
    const std::string header = safetensors::make_header(
        file.specs, {{"DCP_SHARDING_INFO", file.offsets.dump()}, {"DCP_VERSION", "1.0"}, {"format", "pt"}});
    CheckpointFile record{path, 0, std::ssize(header), 0, {}};
    set_checksums(record, header + file.data);
    for (const auto& [piece, begin] : file.begins) {
      piece->file = static_cast<int>(manifest.files.size());
      piece->begin = record.header_bytes + begin;
    }
    manifest.files.push_back(record);
    write(folder / path, header + file.data);
  }
  write(folder / "manifest.binpb", encode_manifest(manifest));
  return manifest;
}

std::vector<Box> cut(const Shape& shape, size_t d, int64_t parts) {
  std::vector<Box> boxes;
  for (int64_t i = 0; i < parts; ++i) {
    Box box{Shape(shape.size(), 0), shape};
    box.offset[d] = shape[d] * i / parts;
    box.size[d] = shape[d] * (i + 1) / parts - box.offset[d];
    if (box.size[d] > 0) boxes.push_back(box);
  }
  return boxes;
}

}  // namespace sherd::test
