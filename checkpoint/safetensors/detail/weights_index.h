// The index of a folder of weights in several files: model.safetensors.index.json. Private to checkpoint/.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <sherd/checkpoint/files/file_system.h>

namespace sherd {

constexpr const char* kWeightsIndex = "model.safetensors.index.json";
constexpr const char* kWeightsFile = "model.safetensors";

/// File by tensor name, each a plain name. @throws CorruptCheckpoint for an index that is none, or that names
/// a file outside of its folder or in a folder below; IoError.
std::map<std::string, std::string> read_weights_index(const std::filesystem::path& path, FileSystem& files);

/// The files of a Hugging Face folder, by name: those of its index, or else model.safetensors, or else every
/// safetensors file. @throws as read_weights_index(), naming it; IoError without any.
std::vector<std::string> weights_files(const std::filesystem::path& folder, FileSystem& files);

/// What of `path` CheckpointReader opens: model.safetensors alone of a folder that has it and no index, for
/// other files beside it (adapters, other formats) are not the model's; otherwise `path`.
std::filesystem::path weights_path(const std::filesystem::path& path, FileSystem& files);

}  // namespace sherd
