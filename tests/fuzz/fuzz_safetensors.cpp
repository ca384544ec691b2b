// Any bytes as safetensors files, and as the JSON in them, are accepted or refused with CorruptCheckpoint (a
// scan may also say NotSupported); what is accepted can be read.
#include <algorithm>
#include <cstring>

#include <sherd/base/error.h>
#include <sherd/checkpoint/checkpoint_reader.h>
#include <sherd/checkpoint/safetensors/safetensors.h>

#include "memory_file_system.h"

namespace {

void read_all(const std::string& path, MemoryFileSystem& files) {
  try {
    auto reader = sherd::CheckpointReader::open(path, files);
    reader.check_files();
    for (const sherd::CheckpointTensor& tensor : reader.manifest().tensors) {
      std::vector<char> bytes(
          static_cast<size_t>(sherd::numel_of(tensor.shape) * sherd::size_of(tensor.dtype)));
      const sherd::Box whole{sherd::Shape(tensor.shape.size(), 0), tensor.shape};
      reader.read(tensor, std::vector<sherd::Box>{whole}, bytes.data());
    }
  } catch (const sherd::CorruptCheckpoint&) {
  } catch (const sherd::NotSupported&) {
  }
}

void read_file(const std::string& bytes) {
  MemoryFileSystem files({{"a", bytes}});
  try {
    const sherd::SafetensorsReader reader("/d/a", files);
    for (const sherd::SafetensorsEntry& entry : reader.entries()) {
      if (!entry.dtype) continue;
      std::vector<char> to(static_cast<size_t>(entry.end - entry.begin));
      reader.read(entry, 0, sherd::numel_of(entry.shape), to.data());
    }
  } catch (const sherd::CorruptCheckpoint&) {
    return;
  }
  read_all("/d/a", files);
}

/// A number of bytes of data, then the header's JSON: the file around them.
std::string wrap(std::string_view part) {
  const uint64_t data = part.empty() ? 0 : static_cast<unsigned char>(part[0]);
  const std::string_view json = part.substr(std::min<size_t>(1, part.size()));
  const uint64_t length = json.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + std::string(json) + std::string(data, 'x');
}

/// Parts end at bytes that no JSON can hold: up to two files, and an index.
void read_folder(std::string_view input) {
  std::map<std::string, std::string> files;
  for (const char* name : {"a.safetensors", "b.safetensors", "model.safetensors.index.json"}) {
    const size_t end = std::min(input.find('\xff'), input.size());
    const std::string_view part = input.substr(0, end);
    files[name] = std::string_view(name).ends_with("json") ? std::string(part) : wrap(part);
    if (end == input.size()) break;
    input.remove_prefix(end + 1);
  }
  MemoryFileSystem folder(std::move(files));
  read_all("/d", folder);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  read_file(bytes);
  read_file(wrap(bytes));
  read_folder(bytes);
  return 0;
}
