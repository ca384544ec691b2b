// Options of Muon.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <sherd/kernels/orthogonalize/orthogonalize.h>
#include <sherd/optim/whole/momentum_options.h>

namespace sherd {

/// Factor of the update, from the shape of the (global) logical matrix, rows x cols = out x in:
///   original         sqrt(max(1, rows / cols))       (Jordan; torch.optim.Muon)
///   match_rms_adamw  0.2 * sqrt(max(rows, cols))     (Moonlight; torch.optim.Muon)
///   spectral         sqrt(max(rows, cols))           (Megatron)
///   unit_rms_norm    sqrt(rows / cols)               (Megatron; Scion)
///   shape_scaling    sqrt(max(1, rows / cols))       (Megatron)
enum class MuonScale { original, match_rms_adamw, spectral, unit_rms_norm, shape_scaling };

const char* name_of(MuonScale s);
/// @throws InvalidArgument listing the legal names (all three).
MatrixMode parse_muon_mode(std::string_view name);  // "auto" is MatrixMode::automatic
MuonScale parse_muon_scale(std::string_view name);
MatrixDecay parse_muon_decay(std::string_view name);

/// With a fraction below 1 a step updates a part of the rows, as Dion2 (Ahn et al. 2025, arXiv 2512.16928; its program is
/// microsoft/dion, dion2.py). Of a logical matrix with m rows, K = the max(1, ceil(fraction * m)) rows of the input with
/// the largest L1 norms, of equal ones those with the lowest indices:
///   w = decay * w - lr * scale * [orthogonalized rows K; zeros elsewhere], with the scale of the whole matrix;
///   momentum of the elements with an update decays, that of the others is kept for later steps (error feedback).
/// Dion2's momentum after a step is `momentum` times the buffer here, so that fraction 1 is Muon in bits. Rows are chosen
/// whatever the matrix's shape, from the whole matrix on its owner: no layout, strategy or number of ranks changes the
/// choice. Messages are as long as Muon's, since the owner needs all rows to choose.
struct MuonOptions {
  /// Momentum, decay, plan and messages.
  MomentumOptions whole = {};
  OrthogonalizeOptions orthogonalize = {};
  MuonScale scale = MuonScale::match_rms_adamw;
  double scale_factor = 1;
  /// Fraction of the rows, in (0, 1]. Below 1: momentum greater than 0, mode other than gram, tensor
  /// duplicated.
  double fraction = 1;
};

/// Returns all invalid options, each with its value; empty when valid.
[[nodiscard]] std::vector<std::string> problems_of(const MuonOptions& options);

/// Returns the number of rows that a step updates.
[[nodiscard]] int64_t kept_rows(double fraction, int64_t rows);
/// Returns scale_factor * the mode's formula.
[[nodiscard]] double update_scale(const MuonOptions& options, int64_t rows, int64_t cols);

}  // namespace sherd
