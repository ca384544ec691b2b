#include <sherd/optim/muon/muon_options.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <sherd/base/enum_table.h>

namespace sherd {
namespace {

constexpr EnumTable<MuonScale, 5> kScales{"original", "match_rms_adamw", "spectral", "unit_rms_norm",
                                          "shape_scaling"};

}  // namespace

const char* name_of(MuonScale s) { return kScales.name(s); }

MatrixMode parse_muon_mode(std::string_view name) { return kMatrixModes.parse("Muon mode", name); }
MuonScale parse_muon_scale(std::string_view name) { return kScales.parse("Muon scale", name); }
MatrixDecay parse_muon_decay(std::string_view name) { return kMatrixDecays.parse("Muon decay", name); }

std::vector<std::string> problems_of(const MuonOptions& o) {
  // The gram form has further conditions, such as no bf16.
  const bool gram = o.orthogonalize.form != IterationForm::standard || o.whole.mode == MatrixMode::gram;
  std::vector<std::string> wrong = problems_of(o.orthogonalize, gram);
  for (std::string& problem : problems_of(o.whole)) wrong.push_back(std::move(problem));
  if (!(o.scale_factor >= 0 && std::isfinite(o.scale_factor)))
    wrong.push_back(fmt::format("scale_factor {} must be finite and not negative", o.scale_factor));
  if (!(o.fraction > 0 && o.fraction <= 1))
    wrong.push_back(fmt::format("fraction {} must lie in (0, 1]", o.fraction));
  if (o.fraction < 1 && (o.whole.mode == MatrixMode::gram || o.whole.tensor == MatrixTensorMode::distributed))
    wrong.push_back(fmt::format(
        "fraction {} needs whole matrices; use another mode than gram, and tensor-parallel mode duplicated",
        o.fraction));
  if (o.fraction < 1 && o.whole.momentum == 0)
    wrong.push_back(fmt::format("fraction {} keeps other rows in the momentum, which must be greater than 0",
                                o.fraction));
  if (o.orthogonalize.method == Orthogonalizer::svd && o.whole.tensor == MatrixTensorMode::distributed)
    wrong.push_back(
        "the polar factor by svd needs whole matrices; use tensor-parallel mode duplicated, or "
        "newton_schulz");
  return wrong;
}

int64_t kept_rows(double fraction, int64_t rows) {
  if (rows == 0) return 0;
  return std::clamp<int64_t>(static_cast<int64_t>(std::ceil(fraction * static_cast<double>(rows))), 1, rows);
}

double update_scale(const MuonOptions& options, int64_t rows, int64_t cols) {
  if (rows == 0 || cols == 0) return 0;
  const double m = static_cast<double>(rows), n = static_cast<double>(cols);
  double scale = 1;
  switch (options.scale) {
    case MuonScale::match_rms_adamw:
      scale = 0.2 * std::sqrt(std::max(m, n));
      break;
    case MuonScale::spectral:
      scale = std::sqrt(std::max(m, n));
      break;
    case MuonScale::unit_rms_norm:
      scale = std::sqrt(m / n);
      break;
    case MuonScale::original:
    case MuonScale::shape_scaling:
      scale = std::sqrt(std::max(1.0, m / n));
      break;
  }
  return options.scale_factor * scale;
}

}  // namespace sherd
