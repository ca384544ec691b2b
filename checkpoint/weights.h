// A sharded model's weights, to and from the files that other programs know: full tensors in safetensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include <sherd/checkpoint/files/file_system.h>
#include <sherd/checkpoint/model_state.h>
#include <sherd/fsdp/fully_shard.h>

namespace sherd {

struct ExportOptions {
  /// f32 (the master weights themselves), bf16 or f16 (rounded to nearest, ties to even).
  DType dtype = DType::f32;
  /// Of a folder's files: no more tensor data than this in one, unless a single tensor has more.
  int64_t max_shard_bytes = 5'000'000'000;
  /// Goes into every file's header beside "format".
  std::map<std::string, std::string> metadata = {};
};

/// Writes every parameter of a sharded root (full names, metadata format "pt"), and of persistent buffers world rank
/// 0's, in their own dtype. Tensor- and expert-parallel
/// parameters are written whole: the files do not show how a model was spread.
///
/// The path becomes one file, which replaces one that is there. A path that ends in a slash, or names an
/// empty folder, becomes a folder as Hugging Face tools read it: model.safetensors, or
/// model-IIIII-of-NNNNN.safetensors with model.safetensors.index.json. File or folder appears complete or
/// not at all: until then it lies beside `path` under `<path>.tmp-<process>-<number>`, and the next export to
/// `path` removes what one that was killed left there.
///
/// Collective over the root's mesh; one parameter at a time is whole, on world rank 0 only, which writes.
/// Blocks until done. On rank 0 @throws IoError, and InvalidArgument naming tensor and place of the first
/// finite value that options.dtype cannot hold (the others get a CommError from the launcher's abort); on
/// all, NotSupported when a unit's mesh orders the ranks otherwise than the root's.
void export_weights(ModuleBase& root, const std::filesystem::path& path, const ExportOptions& options = {});

/// Whether export_weights() could write to `path` now, as far as can be told before. @throws IoError.
void check_export_path(const std::filesystem::path& path, FileSystem& files = FileSystem::posix());

/// Fills the weights of a sharded root (dtypes f32, bf16, f16) from anything that CheckpointReader opens: a
/// safetensors file, a Hugging Face folder, a folder that PyTorch's DCP saved, a checkpoint or its `model`
/// folder. Of a checkpoint only the model is looked at. Each rank reads only the elements it holds, one
/// parameter after the other, and all of persistent buffers. load_checkpoint() without an optimizer: collective and as
/// strict (LoadOptions::allow_missing, allow_unexpected), with the same errors and report.
LoadReport import_weights(ModuleBase& root, const std::filesystem::path& path, LoadOptions options = {});

}  // namespace sherd
