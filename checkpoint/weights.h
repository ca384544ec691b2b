// Import and export of a sharded model's weights as full tensors in safetensors files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include <sherd/checkpoint/files/file_system.h>
#include <sherd/checkpoint/model_state.h>
#include <sherd/checkpoint/stored_folder.h>
#include <sherd/checkpoint/stored_forms.h>
#include <sherd/fsdp/fully_shard.h>

namespace sherd {

/// Treatment of a non-empty folder at an export's path.
enum class Existing {
  refuse,
  /// Leave it as it is where it holds the export's files, byte for byte; it may hold further files. Anything
  /// else is refused, after the export was written beside it.
  accept_equal,
};

struct ExportOptions {
  /// f32 (the master weights themselves), bf16 or f16 (rounded to nearest, ties to even).
  DType dtype = DType::f32;
  /// Maximum tensor data in one file of a folder, unless a single tensor has more. (huggingface_hub's limit;
  /// that of transformers' save_pretrained() is 50 GB since version 5, and was 5 GB.)
  int64_t max_shard_bytes = 5'000'000'000;
  /// Added to every file's header beside "format".
  std::map<std::string, std::string> metadata = {};
  /// For folders; a file is replaced.
  Existing existing = Existing::refuse;

  // The following fields are for export_weights() with StoredForms alone.

  /// Source folder to follow. The export has the same tensors with its dtypes, in the same files in the same
  /// order under the same headers, and its other files unchanged (StoredFolder::others()); dtype,
  /// max_shard_bytes and metadata above are unused. Read on world rank 0; may be null elsewhere.
  std::shared_ptr<const StoredFolder> like = nullptr;
  /// Name of the one file that holds all weights; empty: those that transformers gives them. Not with `like`.
  std::string file = {};
  /// Copy tensors of `like` that are not part of the model unchanged, instead of an error: those that
  /// LoadOptions::allow_unexpected leaves out. Read on rank 0.
  bool allow_unexpected = false;
  /// Further files of the folder, contents by name ("config.json"); they replace those of `like`. Read on
  /// rank 0.
  std::map<std::string, std::string> files = {};
};

/// Writes every parameter of a sharded root (full names, metadata format "pt"), and world rank 0's persistent
/// buffers in their own dtype. A tied tensor is written under each of its names, as Python's strict
/// load_state_dict() requires. Tensor- and expert-parallel parameters are written unsharded: the files do not
/// depend on how a model was sharded.
///
/// The path becomes one file, which replaces an existing one. A path that ends in a slash, or names an empty
/// folder, becomes a folder in Hugging Face form: model.safetensors, or model-IIIII-of-NNNNN.safetensors with
/// model.safetensors.index.json. File or folder appears complete or not at all. Until then it is beside
/// `path` under `<path>.tmp-<process>-<number>`, and the next export to `path` removes the rest of a killed
/// one.
///
/// Collective over the root's mesh. One parameter at a time is unsharded, on world rank 0 only, which writes.
/// Blocks until done, on every rank.
/// @throws IoError, on all ranks, when the file or folder cannot be created or completed; NotSupported when a
/// unit's mesh orders the ranks differently from the root's. On rank 0 alone: IoError for data that cannot be
/// written, and InvalidArgument naming tensor and place of the first finite value that options.dtype cannot
/// hold (the others get a CommError from the launcher's abort).
/// @returns on world rank 0 whether anything was written: false where Existing::accept_equal found the same
/// there; true on the other ranks.
bool export_weights(ModuleBase& root, const std::filesystem::path& path, const ExportOptions& options = {});

/// Writes a folder in the form in which other programs store the model. `path` is a folder with and without a
/// slash at the end, new or empty.
///
/// Without options.like: the first form, as transformers' save_pretrained() writes it: split in the model's
/// order, sorted within a file (wide dtypes first, then by name), an index where there are several files, no
/// tensor that is only a copy. With it: the form, dtypes and files of that folder, byte for byte where the
/// weights are those that import_weights() read from it; tensors that import ignored are copied, tied ones
/// repeated.
///
/// Collective; one stored tensor at a time is unsharded, on world rank 0 only, which writes. Errors as above;
/// on all ranks, before anything is written, InvalidArgument listing all differences between the model and
/// options.like. @returns as above.
bool export_weights(ModuleBase& root, const std::filesystem::path& path, const StoredForms& forms,
                    const ExportOptions& options = {}, FileSystem& files = FileSystem::posix());

/// Checks that export_weights() could write to `path` now, as far as can be known before. @throws IoError.
void check_export_path(const std::filesystem::path& path, FileSystem& files = FileSystem::posix(),
                       Existing existing = Existing::refuse);

/// Fills the weights of a sharded root (dtypes f32, bf16, f16) from anything that CheckpointReader opens: a
/// safetensors file, a Hugging Face folder, a folder that PyTorch's DCP saved, a checkpoint or its `model`
/// folder. Of a checkpoint only the model is read. Each rank reads only the elements it holds, one parameter
/// after the other, and all of persistent buffers. Like load_checkpoint() without an optimizer: collective
/// and as strict (LoadOptions::allow_missing, allow_unexpected), with the same errors and report. One name of
/// a tied parameter is enough; where several are present, their values must be equal.
LoadReport import_weights(ModuleBase& root, const std::filesystem::path& path, LoadOptions options = {});

/// Fills the weights from files in another program's form. Each rank reads only its elements, in runs: the
/// tensor data in LoadReport::counts does not exceed its weights (checkpoints round up to blocks).
/// Every rank reads all headers and the index.
///
/// With options.allow_missing, a parameter keeps its values when any of its stored tensors is missing; report
/// and messages name stored tensors. LoadReport::ignored has the ignored tensors, so that a program can
/// report them once.
/// @throws InvalidArgument also when a form does not cover the model's parameters, and when a tensor declared
/// as a copy (StoredForms::copies) differs, which rank 0 detects by a sample of at most a 256th of it.
LoadReport import_weights(ModuleBase& root, const std::filesystem::path& path, const StoredForms& forms,
                          LoadOptions options = {}, FileSystem& files = FileSystem::posix());

}  // namespace sherd
