// Options of Muon.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <sherd/kernels/orthogonalize/orthogonalize.h>
#include <sherd/optim/whole/momentum_options.h>

namespace sherd {

/// Names kept for older programs.
using MuonMode = MatrixMode;
using MuonDecay = MatrixDecay;
using MuonTensorMode = MatrixTensorMode;

/// Factor of the update, from the shape of the (global) logical matrix, rows x cols = out x in:
///   original         sqrt(max(1, rows / cols))       (Jordan; torch.optim.Muon)
///   match_rms_adamw  0.2 * sqrt(max(rows, cols))     (Moonlight; torch.optim.Muon)
///   spectral         sqrt(max(rows, cols))           (Megatron)
///   unit_rms_norm    sqrt(rows / cols)               (Megatron; Scion)
///   shape_scaling    sqrt(max(1, rows / cols))       (Megatron)
enum class MuonScale { original, match_rms_adamw, spectral, unit_rms_norm, shape_scaling };

const char* name_of(MuonScale s);
/// @throws InvalidArgument listing the legal names (all four).
MuonMode parse_muon_mode(std::string_view name);  // "auto" is MuonMode::automatic
MuonScale parse_muon_scale(std::string_view name);
MuonDecay parse_muon_decay(std::string_view name);
MuonTensorMode parse_muon_tensor_mode(std::string_view name);

struct MuonOptions {
  float momentum = 0.95f;
  bool nesterov = true;
  OrthogonalizeOptions orthogonalize = {};
  MuonScale scale = MuonScale::match_rms_adamw;
  double scale_factor = 1;
  MuonDecay decay = MuonDecay::decoupled;

  MatrixMode mode = MatrixMode::automatic;
  /// Let `automatic` use gram entries, whose sums over ranks round differently from one rank's.
  bool allow_inexact = false;
  MuonTensorMode tensor = MuonTensorMode::duplicated;
  /// dtype of matrices in messages: f32, bf16 or f16. With a 16-bit one every mode rounds alike. Under f16
  /// the results are sent as f16, but the momentum, whose scale is unknown, as bf16: f16 cannot represent
  /// gradients of 1e-5.
  DType payload = DType::f32;
  /// Maximum bytes of a rank's messages and matrices in flight. A matrix that needs more alone is sent alone.
  /// 0: default_transient_bytes of the device, the minimum over the team. No result depends on it.
  int64_t transient_bytes = 0;
  PlanCosts costs = {};
};

/// Returns all invalid options, each with its value; empty when valid.
[[nodiscard]] std::vector<std::string> problems_of(const MuonOptions& options);

/// Returns scale_factor * the mode's formula.
[[nodiscard]] double update_scale(const MuonOptions& options, int64_t rows, int64_t cols);
/// Returns the options that do not concern the iteration.
[[nodiscard]] MomentumOptions momentum_options(const MuonOptions& options);

}  // namespace sherd
