// The index of a folder of weights in several files: model.safetensors.index.json. Private to checkpoint/.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <sherd/checkpoint/files/file_system.h>

namespace sherd {

constexpr const char* kWeightsIndex = "model.safetensors.index.json";
constexpr const char* kWeightsFile = "model.safetensors";

/// Returns the file by tensor name, relative to the folder and without "." components ("./a" is "a").
/// @throws CorruptCheckpoint for text that is not an index, and for a file outside of the folder; IoError.
std::map<std::string, std::string> read_weights_index(const std::filesystem::path& path, FileSystem& files);

/// Returns the files of a Hugging Face folder, by name: model.safetensors, which transformers reads where there is an index,
/// too; or else those of the index, or else every safetensors file. @throws as read_weights_index(), naming it; IoError without any.
std::vector<std::string> weights_files(const std::filesystem::path& folder, FileSystem& files);

/// Throws the IoError of a folder without .safetensors files. Names what it holds in their place, PyTorch's files or
/// checkpoints, with the remedy; of other folders `otherwise`.
[[noreturn]] void refuse_without_safetensors(const std::filesystem::path& folder, FileSystem& files,
                                             std::string_view otherwise);

/// Returns the path that CheckpointReader opens: model.safetensors of a folder that has it and no index,
/// otherwise `path`. Other files beside it (adapters, other formats) are not the model's.
std::filesystem::path weights_path(const std::filesystem::path& path, FileSystem& files);

}  // namespace sherd
