#include <sherd/optim/whole/matrix_rule.h>

#include <fmt/format.h>

#include <cctype>

#include <sherd/base/error.h>

namespace sherd {

std::string MatrixRule::label() const {
  std::string text = name();
  for (char& letter : text) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return text;
}

void MatrixRule::compute(Stream&, const Tensor&, const Tensor&, const Tensor&) {
  throw InvalidArgument(fmt::format(
      "{} overrides neither compute() nor compute_with_state(); override the latter if it has state()",
      name()));
}

void MatrixRule::compute_with_state(Stream&, const Tensor&, const Tensor&, const Tensor&,
                                    const std::vector<MatrixState>&) {
  throw InvalidArgument(
      fmt::format("{} has state() and does not override compute_with_state(); override it", name()));
}

void MatrixRule::compute_parts(Stream&, const std::vector<MatrixPart>&, const std::function<Tensor(Shape)>&,
                               const std::function<void(const Tensor&)>&) {
  throw InvalidArgument(fmt::format(
      "{} has no form for matrices in parts; use MatrixTensorMode::duplicated and another mode than gram",
      name()));
}

std::string MatrixRule::words_of(const LogicalMatrix& m) const {
  const int64_t rows = m.whole_rows(), cols = m.whole_cols();
  std::string text = fmt::format("{} {}", matrix_flops(rows, cols), scale(rows, cols));
  for (auto& spec : state(rows, cols)) text += fmt::format(" {} {}", spec.key, to_string(spec.shape));
  return text;
}

int64_t MatrixRule::state_bytes(const LogicalMatrix& m) const {
  int64_t elements = 0;
  for (auto& spec : state(m.whole_rows(), m.whole_cols())) elements += numel_of(spec.shape);
  return elements * static_cast<int64_t>(sizeof(float));
}

int64_t MatrixRule::tensor_bytes(const LogicalMatrix& m) const {
  return m.tensor_dim < 0 ? 0 : static_cast<int64_t>(sizeof(float)) * m.numel() * (m.tensor_parts - 1);
}

}  // namespace sherd
