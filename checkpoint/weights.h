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

/// A folder at an export's path that is not empty.
enum class Existing {
  refuse,
  /// It is left as it is where it holds what the export would write, byte for byte; further files may be there. Anything
  /// else is refused, once the export is written beside it.
  accept_equal,
};

struct ExportOptions {
  /// f32 (the master weights themselves), bf16 or f16 (rounded to nearest, ties to even).
  DType dtype = DType::f32;
  /// Of a folder's files: no more tensor data than this in one, unless a single tensor has more. (huggingface_hub's
  /// limit; that of transformers' save_pretrained() is 50 GB since version 5, and was 5 GB.)
  int64_t max_shard_bytes = 5'000'000'000;
  /// Goes into every file's header beside "format".
  std::map<std::string, std::string> metadata = {};
  /// For folders; a file is replaced.
  Existing existing = Existing::refuse;

  // The rest is for export_weights() with StoredForms alone.

  /// The folder that came in: written are the same tensors with its dtypes, in the same files in the same order under
  /// the same headers, and what else it holds as it is (StoredFolder::others()); dtype, max_shard_bytes and metadata
  /// above are not used. Looked at on world rank 0, may be null elsewhere.
  std::shared_ptr<const StoredFolder> like = nullptr;
  /// Tensors of `like` that are not part of the model are copied as they are, instead of an error: what
  /// LoadOptions::allow_unexpected leaves out. Of rank 0.
  bool allow_unexpected = false;
  /// Further files of the folder, contents by name ("config.json"); they take the place of `like`'s. Of rank 0.
  std::map<std::string, std::string> files = {};
};

/// Writes every parameter of a sharded root (full names, metadata format "pt"; a tied one under each of its names, as
/// Python's strict load_state_dict() wants it), and of persistent buffers world rank 0's, in their own dtype. Tensor- and expert-parallel parameters are written whole: the files do
/// not show how a model was spread.
///
/// The path becomes one file, which replaces one that is there. A path that ends in a slash, or names an
/// empty folder, becomes a folder as Hugging Face tools read it: model.safetensors, or
/// model-IIIII-of-NNNNN.safetensors with model.safetensors.index.json. File or folder appears complete or
/// not at all: until then it lies beside `path` under `<path>.tmp-<process>-<number>`, and the next export to
/// `path` removes what one that was killed left there.
///
/// Collective over the root's mesh; one parameter at a time is whole, on world rank 0 only, which writes.
/// Blocks until done, on every rank. @throws IoError, on all ranks, when the file or folder cannot be created
/// or completed, NotSupported when a unit's mesh orders the ranks otherwise than the root's; on rank 0 alone
/// IoError for data that cannot be written, and InvalidArgument naming tensor and place of the first finite
/// value that options.dtype cannot hold (the others get a CommError from the launcher's abort).
/// @returns on world rank 0 whether anything was written: false where Existing::accept_equal found the same there; true on
/// the other ranks.
bool export_weights(ModuleBase& root, const std::filesystem::path& path, const ExportOptions& options = {});

/// The same as a folder of the form in which other programs store the model; `path` is a folder with and without a
/// slash at the end, new or empty.
///
/// Without options.like: the first form, as transformers' save_pretrained() writes it: split in the model's order,
/// sorted within a file (wide dtypes first, then by name), an index where there are several files, no tensor that is
/// only a copy. With it: the form, dtypes and files of that folder, byte for byte where the weights are those that
/// import_weights() read from it; tensors that import ignored are copied, tied ones repeated.
///
/// Collective; one stored tensor at a time is whole, on world rank 0 only, which writes. Errors as above; on all ranks,
/// before anything is written, InvalidArgument listing all that the model and options.like disagree on. @returns as above.
bool export_weights(ModuleBase& root, const std::filesystem::path& path, const StoredForms& forms,
                    const ExportOptions& options = {}, FileSystem& files = FileSystem::posix());

/// Whether export_weights() could write to `path` now, as far as can be told before. @throws IoError.
void check_export_path(const std::filesystem::path& path, FileSystem& files = FileSystem::posix(),
                       Existing existing = Existing::refuse);

/// Fills the weights of a sharded root (dtypes f32, bf16, f16) from anything that CheckpointReader opens: a
/// safetensors file, a Hugging Face folder, a folder that PyTorch's DCP saved, a checkpoint or its `model`
/// folder. Of a checkpoint only the model is looked at. Each rank reads only the elements it holds, one
/// parameter after the other, and all of persistent buffers. load_checkpoint() without an optimizer: collective and as
/// strict (LoadOptions::allow_missing, allow_unexpected), with the same errors and report. Of a tied parameter one of its
/// names is enough; equal values are demanded where several are there.
LoadReport import_weights(ModuleBase& root, const std::filesystem::path& path, LoadOptions options = {});

/// The same from files that hold the model in a form of other programs. Each rank reads the elements it holds and no
/// others, in runs of them: LoadReport::counts has the bytes of tensor data, which are no more than its weights have
/// (checkpoints round out to blocks). Of headers and index every rank reads all.
///
/// A parameter of which any stored tensor is missing keeps its values, with options.allow_missing; report and messages
/// name stored tensors. LoadReport::ignored has those that were not looked at, for a program to say so once.
/// @throws InvalidArgument also when a form does not cover the model's parameters, and for a copy (StoredForms::copies)
/// that is none, which rank 0 finds by a sample of at most a 256th of it.
LoadReport import_weights(ModuleBase& root, const std::filesystem::path& path, const StoredForms& forms,
                          LoadOptions options = {}, FileSystem& files = FileSystem::posix());

}  // namespace sherd
