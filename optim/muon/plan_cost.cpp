// Costs of Muon's rule, for plans: FLOPs of the two forms, and bytes of the sums over ranks.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include <sherd/kernels/orthogonalize/orthogonalize.h>
#include <sherd/optim/muon/muon_rule.h>

namespace sherd {
namespace {

// Side of the Gram matrices, and this rank's part of the contracted side.
struct Contracted {
  int64_t side, length;
};
Contracted contracted(const LogicalMatrix& m) {
  return m.tensor_dim == 0 ? Contracted{m.cols, m.rows} : Contracted{m.rows, m.cols};
}

}  // namespace

bool MuonRule::is_distributed(const LogicalMatrix& m) const {
  return m.tensor_dim >= 0 && o_.whole.tensor == MatrixTensorMode::distributed;
}

std::string MuonRule::description() const {
  const std::string part = o_.fraction < 1 ? fmt::format(", {} of the rows", o_.fraction) : "";
  return fmt::format("form {}, {} steps{}", name_of(o_.orthogonalize.form), steps(), part);
}

std::string MuonRule::note(const LogicalMatrix& m) const {
  if (o_.orthogonalize.form != IterationForm::by_shape) return {};
  return name_of(is_distributed(m)
                     ? IterationForm::gram
                     : form_for(o_.orthogonalize, kept_rows(o_.fraction, m.whole_rows()), m.whole_cols()));
}

// For the fingerprint: ranks with other words would schedule other messages.
std::vector<int64_t> MuonRule::options_as_words() const {
  return {static_cast<int64_t>(o_.orthogonalize.method),
          static_cast<int64_t>(o_.orthogonalize.form),
          static_cast<int64_t>(o_.whole.tensor),
          steps(),
          restarts(),
          std::bit_cast<int64_t>(o_.fraction)};
}

int MuonRule::gram_rounds() const {
  return o_.orthogonalize.form == IterationForm::standard ? steps() : 1 + restarts();
}

// Rows are distributed over owners, so X^T X must be the small Gram matrix: cols <= rows.
bool MuonRule::gram_is_possible(const LogicalMatrix& m) const {
  return m.rows >= m.cols && m.tensor_dim < 0 && o_.orthogonalize.method == Orthogonalizer::newton_schulz &&
         o_.fraction == 1;
}

double MuonRule::gram_flops(const LogicalMatrix& m, int owners) const {
  const double s = static_cast<double>(m.cols), l = static_cast<double>(m.rows);
  const double shared = 3 * s * s * l * gram_rounds();
  // The products with X, 3 s^2 l FLOPs a round, are divided among the owners; each repeats the iteration on
  // R.
  return shared + owners * (sherd::gram_flops(s, l, steps(), gram_rounds() - 1) - shared);
}

int64_t MuonRule::gram_sum_bytes(int64_t n, int64_t ranks) const {
  // (ranks - 1) / ranks of n^2 floats for the reduce-scatter, and as many for the all-gather.
  return gram_rounds() * 2 * static_cast<int64_t>(sizeof(float)) * n * n * (ranks - 1) / ranks;
}

int64_t MuonRule::gram_bytes(const LogicalMatrix& m, int owners) const {
  return gram_sum_bytes(m.cols, owners);
}

double MuonRule::cost(const LogicalMatrix& m) const {
  if (o_.orthogonalize.form == IterationForm::by_shape) return flops(m);
  const int64_t rows = kept_rows(o_.fraction, m.whole_rows());
  double s = static_cast<double>(std::min(rows, m.whole_cols()));
  double l = static_cast<double>(std::max(rows, m.whole_cols()));
  if (is_distributed(m)) {
    s = static_cast<double>(contracted(m).side);
    l = static_cast<double>(contracted(m).length);
  }
  return steps() * s * s * (2 * l + s);
}

double MuonRule::matrix_flops(int64_t whole_rows, int64_t cols) const {
  const int64_t rows = kept_rows(o_.fraction, whole_rows);
  const double s = static_cast<double>(std::min(rows, cols)), l = static_cast<double>(std::max(rows, cols));
  if (form_for(o_.orthogonalize, rows, cols) == IterationForm::gram)
    return sherd::gram_flops(s, l, steps(), restarts());
  return standard_flops(s, l, steps());
}

double MuonRule::flops(const LogicalMatrix& m) const {
  if (!is_distributed(m)) return MatrixRule::flops(m);
  const Contracted c = contracted(m);
  return sherd::gram_flops(static_cast<double>(c.side), static_cast<double>(c.length), steps(),
                           gram_rounds() - 1);
}

int64_t MuonRule::tensor_bytes(const LogicalMatrix& m) const {
  return is_distributed(m) ? gram_sum_bytes(contracted(m).side, m.tensor_parts) : MatrixRule::tensor_bytes(m);
}

}  // namespace sherd
