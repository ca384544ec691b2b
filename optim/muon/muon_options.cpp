#include <sherd/optim/muon/muon_options.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include <sherd/kernels/device/enum_table.h>

namespace sherd {
namespace {

constexpr EnumTable<MuonScale, 5> kScales{"original", "match_rms_adamw", "spectral", "unit_rms_norm",
                                          "shape_scaling"};
constexpr EnumTable<MuonDecay, 4> kDecays{"decoupled", "independent", "l2", "palm"};
constexpr EnumTable<MuonTensorMode, 2> kTensorModes{"duplicated", "distributed"};

}  // namespace

const char* name_of(MuonScale s) { return kScales.name(s); }
const char* name_of(MuonDecay d) { return kDecays.name(d); }
const char* name_of(MuonTensorMode m) { return kTensorModes.name(m); }

MuonMode parse_muon_mode(std::string_view name) { return kMatrixModes.parse("Muon mode", name); }
MuonScale parse_muon_scale(std::string_view name) { return kScales.parse("Muon scale", name); }
MuonDecay parse_muon_decay(std::string_view name) { return kDecays.parse("Muon decay", name); }
MuonTensorMode parse_muon_tensor_mode(std::string_view name) {
  return kTensorModes.parse("tensor-parallel Muon mode", name);
}

std::vector<std::string> problems_of(const MuonOptions& o) {
  // The gram form has further conditions, such as no bf16.
  const bool gram = o.orthogonalize.form == IterationForm::gram || o.mode == MuonMode::gram;
  std::vector<std::string> wrong = problems_of(o.orthogonalize, gram);
  if (!(o.momentum >= 0 && o.momentum < 1))
    wrong.push_back(fmt::format("momentum {} must lie in [0, 1)", o.momentum));
  if (!(o.scale_factor >= 0 && std::isfinite(o.scale_factor)))
    wrong.push_back(fmt::format("scale_factor {} must be finite and not negative", o.scale_factor));
  if (o.payload != DType::f32 && o.payload != DType::bf16 && o.payload != DType::f16)
    wrong.push_back(fmt::format("payload {} must be f32, bf16 or f16", name_of(o.payload)));
  if (o.transient_bytes < 0)
    wrong.push_back(
        fmt::format("transient_bytes {} must be at least 1, or 0 for the default", o.transient_bytes));
  for (const auto& [name, cost] : {std::pair("flops_per_second", o.costs.flops_per_second),
                                   std::pair("bytes_per_second", o.costs.bytes_per_second)})
    if (!(cost > 0 && std::isfinite(cost)))
      wrong.push_back(fmt::format("costs.{} {} must be finite and greater than 0", name, cost));
  if (o.orthogonalize.method == Orthogonalizer::svd && o.tensor == MuonTensorMode::distributed)
    wrong.push_back(
        "the polar factor by svd needs whole matrices; use tensor-parallel mode duplicated, or "
        "newton_schulz");
  return wrong;
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

double decay_factor(MuonDecay decay, double lr, double weight_decay) {
  switch (decay) {
    case MuonDecay::decoupled:
      return 1 - lr * weight_decay;
    case MuonDecay::independent:
      return 1 - weight_decay;
    case MuonDecay::palm:
      return 1 - lr * lr * weight_decay;
    case MuonDecay::l2:
      break;
  }
  return 1;
}

}  // namespace sherd
