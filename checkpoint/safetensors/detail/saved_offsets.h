// Offsets of a safetensors file's pieces in their tensors, in the metadata of PyTorch's DCP.
#pragma once

#include <map>
#include <string>

#include <sherd/checkpoint/safetensors/safetensors.h>

namespace sherd {

/// Returns the offsets of the file's entries by name; empty without DCP_SHARDING_INFO. An offset has as many
/// dimensions as its entry. @throws CorruptCheckpoint naming the file.
std::map<std::string, Shape> saved_offsets(const SafetensorsReader& file);

}  // namespace sherd
