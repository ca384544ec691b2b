#include <sherd/optim/whole/detail/tensor_parts.h>

#include <vector>

#include <sherd/kernels/ops.h>

namespace sherd {

void compute_gathered(Stream& s, Communicator& tensor, const MatrixBuffers& buffers, const Tensor& out,
                      const Tensor& in, const MatrixBatch& batch,
                      const std::function<void(const Tensor&, const Tensor&)>& compute) {
  const int64_t count = in.size(0), rows = batch.rows, cols = batch.cols, parts = batch.tensor_parts;
  const bool by_rows = batch.tensor_dim == 0;
  const int64_t all_rows = by_rows ? rows * parts : rows, all_cols = by_rows ? cols : cols * parts;
  const int64_t n = in.numel();
  const Tensor gathered = buffers.message(parts * n, DType::f32);
  tensor.all_gather(s, gathered.unowned_view(), in.flat(0, n).unowned_view());

  // Rows of a part are `run` elements that are contiguous in the whole matrix.
  std::vector<CopySegment> to_whole, to_local;
  const int64_t run = by_rows ? rows * cols : cols, runs = by_rows ? 1 : rows;
  for (int64_t part = 0; part < parts; ++part) {
    for (int64_t b = 0; b < count; ++b) {
      for (int64_t r = 0; r < runs; ++r) {
        const int64_t local = b * rows * cols + r * run;
        const int64_t whole = b * all_rows * all_cols + (by_rows ? part * run : r * all_cols + part * cols);
        to_whole.push_back({whole, part * n + local, run});
        if (part == tensor.rank()) to_local.push_back({local, whole, run});
      }
    }
  }
  const Tensor whole = buffers.matrices({count, all_rows, all_cols});
  const Tensor result = buffers.matrices({count, all_rows, all_cols});
  ops::copy_segments(s, whole.flat(0, whole.numel()), gathered, to_whole);
  compute(result, whole);
  ops::copy_segments(s, out.flat(0, n), result.flat(0, result.numel()), to_local);
}

}  // namespace sherd
