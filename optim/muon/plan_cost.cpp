#include <sherd/optim/muon/plan_cost.h>

#include <algorithm>

namespace sherd {
namespace {

// Side of the Gram matrices, and this rank's part of the contracted side.
struct Contracted {
  int64_t side, length;
};
Contracted contracted(const LogicalMatrix& m) {
  return m.tensor_dim == 0 ? Contracted{m.cols, m.rows} : Contracted{m.rows, m.cols};
}

bool is_distributed(const LogicalMatrix& m, const PlanOptions& o) {
  return m.tensor_dim >= 0 && o.tensor == MatrixTensorMode::distributed;
}

}  // namespace

int gram_rounds(const PlanOptions& o) { return o.form == IterationForm::standard ? o.steps : 1 + o.restarts; }

double shared_gram_flops(const LogicalMatrix& m, int owners, const PlanOptions& o) {
  const double s = static_cast<double>(m.cols), l = static_cast<double>(m.rows);
  const double shared = 3 * s * s * l * gram_rounds(o);
  // The products with X, 3 s^2 l FLOPs a round, are divided among the owners; each repeats the iteration on
  // R.
  return shared + owners * (gram_flops(s, l, o.steps, gram_rounds(o) - 1) - shared);
}

int64_t gram_sum_bytes(int64_t n, int64_t owners, const PlanOptions& o) {
  // (owners - 1) / owners of n^2 floats for the reduce-scatter, and as many for the all-gather.
  return gram_rounds(o) * 2 * static_cast<int64_t>(sizeof(float)) * n * n * (owners - 1) / owners;
}

double cost_of(const LogicalMatrix& m, const PlanOptions& o) {
  const int64_t rows = kept_rows(o.fraction, m.whole_rows());
  double s = static_cast<double>(std::min(rows, m.whole_cols()));
  double l = static_cast<double>(std::max(rows, m.whole_cols()));
  if (is_distributed(m, o)) {
    s = static_cast<double>(contracted(m).side);
    l = static_cast<double>(contracted(m).length);
  }
  return o.steps * s * s * (2 * l + s);
}

double flops_of(int64_t whole_rows, int64_t cols, const PlanOptions& o) {
  const int64_t rows = kept_rows(o.fraction, whole_rows);
  const double s = static_cast<double>(std::min(rows, cols)), l = static_cast<double>(std::max(rows, cols));
  if (o.form == IterationForm::gram) return gram_flops(s, l, o.steps, o.restarts);
  return standard_flops(s, l, o.steps);
}

double rank_flops(const LogicalMatrix& m, const PlanOptions& o) {
  if (!is_distributed(m, o)) return flops_of(m.whole_rows(), m.whole_cols(), o);
  const Contracted c = contracted(m);
  return gram_flops(static_cast<double>(c.side), static_cast<double>(c.length), o.steps, gram_rounds(o) - 1);
}

int64_t tensor_bytes(const LogicalMatrix& m, const PlanOptions& o) {
  if (m.tensor_dim < 0) return 0;
  if (is_distributed(m, o)) return gram_sum_bytes(contracted(m).side, m.tensor_parts, o);
  return static_cast<int64_t>(sizeof(float)) * m.numel() * (m.tensor_parts - 1);
}

}  // namespace sherd
