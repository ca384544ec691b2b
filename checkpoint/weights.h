// A sharded model's weights as one plain safetensors file of full tensors.
#pragma once

#include <filesystem>

#include <sherd/fsdp/fully_shard.h>

namespace sherd {

/// Writes every parameter of a sharded root (f32 master weights, full names, metadata format "pt") to `path`.
///
/// Collective over the root's mesh; one parameter at a time is whole. World rank 0
/// writes; the file appears complete or not at all. Blocks until done. @throws IoError on rank 0 (the others
/// get a CommError from the launcher's abort).
void export_weights(Module& root, const std::filesystem::path& path);

/// Reads the weights of a sharded root from such a file (dtypes f32, bf16, f16): each rank reads only the
/// elements it holds. Strict: @throws InvalidArgument listing *all* missing, unexpected and mismatching
/// tensors, CorruptCheckpoint or IoError from the reader. No communication; blocks until the shards are
/// filled.
void import_weights(Module& root, const std::filesystem::path& path);

}  // namespace sherd
