#include <sherd/optim/whole/detail/tensor_parts.h>

#include <sherd/kernels/copy/copy.h>

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

  // A part's runs are contiguous in `gathered`; in the whole matrices, run i begins at part * run + i * stride.
  const int64_t run = by_rows ? rows * cols : cols, runs = n / run;
  const int64_t stride = by_rows ? all_rows * all_cols : all_cols;
  const auto from_part = [&](const Tensor& whole, int64_t part) {
    return whole.flat(part * run, whole.numel());
  };
  const Tensor whole = buffers.matrices({count, all_rows, all_cols});
  const Tensor result = buffers.matrices({count, all_rows, all_cols});
  for (int64_t part = 0; part < parts; ++part)
    ops::strided_copy(s, from_part(whole, part), stride, gathered.flat(part * n, (part + 1) * n), run, runs,
                      run);
  // Every tensor rank computes the whole batch: the same bits as on one rank, for repeated work.
  compute(result, whole);
  ops::strided_copy(s, out, run, from_part(result, tensor.rank()), stride, runs, run);
}

}  // namespace sherd
