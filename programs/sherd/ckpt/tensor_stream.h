// Elements of a checkpoint's tensors in row-major order, a few MiB at a time.
#pragma once

#include <cstdint>
#include <functional>

#include <sherd/checkpoint/checkpoint_reader.h>

namespace sherd::tools {

/// Elements of a chunk: at most 4 MiB.
constexpr int64_t kChunkElements = int64_t{1} << 19;

/// Calls use(elements, count) for one chunk of [range) after the other, whatever the tensor's pieces are.
/// `range` is within the tensor. @throws as CheckpointReader::read(), and what `use` throws.
void stream_elements(CheckpointReader& reader, const CheckpointTensor& tensor, ParamRange range,
                     const std::function<void(const char*, int64_t)>& use);

/// The whole tensor.
inline ParamRange all_of(const CheckpointTensor& t) { return {ParamIndex(0), ParamIndex(numel_of(t.shape))}; }
inline int64_t bytes_of(const CheckpointTensor& t) { return numel_of(t.shape) * size_of(t.dtype); }

}  // namespace sherd::tools
