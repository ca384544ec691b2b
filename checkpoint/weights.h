// A sharded model's weights as one plain safetensors file of full tensors.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include <sherd/fsdp/fully_shard.h>

namespace sherd {

/// Writes every parameter of a sharded root (f32 master weights, full names, metadata format "pt") to `path`.
/// Tensor- and expert-parallel parameters are written whole: the file does not show how a model was spread.
///
/// Collective over the root's mesh; one parameter at a time is whole, on world rank 0 only, which writes; the
/// file appears complete or not at all. Blocks until done. @throws IoError on rank 0 (the others get a
/// CommError from the launcher's abort); NotSupported when a unit's mesh orders the ranks otherwise than the
/// root's.
/// @param metadata goes into the file's header beside "format".
void export_weights(Module& root, const std::filesystem::path& path,
                    std::map<std::string, std::string> metadata = {});

/// Reads the weights of a sharded root from such a file (dtypes f32, bf16, f16): each rank reads only the
/// elements it holds, of a tensor-parallel piece run by run. Strict: @throws InvalidArgument listing *all*
/// missing, unexpected and mismatching tensors, CorruptCheckpoint or IoError from the reader. No
/// communication; blocks until the shards are filled.
void import_weights(Module& root, const std::filesystem::path& path);

}  // namespace sherd
