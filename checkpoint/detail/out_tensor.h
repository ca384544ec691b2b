// A tensor on its way from all ranks into files. Private to checkpoint/.
#pragma once

#include <string>
#include <vector>

#include <sherd/checkpoint/detail/stored_form.h>
#include <sherd/checkpoint/detail/weights_writer.h>

namespace sherd {

/// A tensor of the files: parts of f32 parameters and buffers, or one buffer in its own dtype.
struct OutTensor {
  std::string name = {};
  /// f32, bf16 or f16 of what is f32 in the model; otherwise not looked at.
  DType dtype = DType::f32;
  /// Shape in the header: empty for a scalar. The parts cover it.
  Shape shape = {};
  std::vector<StoredPart> parts = {};
  /// The dtype follows the stored folder's, not an option, so an error cannot advise to choose another.
  bool followed = false;
};

/// @throws InvalidArgument for a dtype that weights are not written in.
void require_weights_dtype(DType dtype);

/// Brings a tensor together on rank 0 of the world and appends it to `writer`, which the other ranks have
/// not: null. Collective, the same parts on every rank. @throws InvalidArgument for a finite value that the
/// dtype cannot hold.
void write_tensor(Stream& stream, const std::vector<Wanted>& all, const OutTensor& tensor,
                  WeightsWriter* writer);

}  // namespace sherd
