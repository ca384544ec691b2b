// Where the pieces in a safetensors file lie in their tensors, as PyTorch's DCP notes it.
#pragma once

#include <map>
#include <string>

#include <sherd/checkpoint/safetensors/safetensors.h>

namespace sherd {

/// By name, of the file's entries; empty when it has no DCP_SHARDING_INFO. An offset has as many dimensions
/// as its entry. @throws CorruptCheckpoint naming the file.
std::map<std::string, Shape> saved_offsets(const SafetensorsReader& file);

}  // namespace sherd
