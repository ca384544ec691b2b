#include "tensor_stream.h"

#include <algorithm>
#include <vector>

namespace sherd::tools {

void stream_elements(CheckpointReader& reader, const CheckpointTensor& tensor, ParamRange range,
                     const std::function<void(const char*, int64_t)>& use) {
  std::vector<char> chunk(
      static_cast<size_t>(std::min(kChunkElements, range.size()) * size_of(tensor.dtype)));
  for (ParamIndex at = range.begin; at < range.end;) {
    const ParamIndex end = std::min(at + kChunkElements, range.end);
    reader.read(tensor, boxes_of(tensor.shape, {at, end}), chunk.data());
    use(chunk.data(), end - at);
    at = end;
  }
}

}  // namespace sherd::tools
