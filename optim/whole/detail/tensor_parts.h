// Tensor-parallel parts of matrices, gathered to whole matrices. Private to optim/.
#pragma once

#include <functional>

#include <sherd/comm/core/communicator.h>
#include <sherd/kernels/device/stream.h>
#include <sherd/kernels/device/tensor.h>
#include <sherd/optim/whole/detail/buffers.h>
#include <sherd/optim/whole/detail/schedule.h>

namespace sherd {

/// Gathers the parts of a batch over the tensor-parallel ranks, calls compute(results, matrices) for the
/// whole matrices, and copies this rank's parts of the results to `out`.
void compute_gathered(Stream& s, Communicator& tensor, const MatrixBuffers& buffers, const Tensor& out,
                      const Tensor& in, const MatrixBatch& batch,
                      const std::function<void(const Tensor&, const Tensor&)>& compute);

}  // namespace sherd
