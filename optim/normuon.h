// NorMuon: Muon with a second moment per row (neuron) that normalizes the rows.
#pragma once

#include <string>
#include <vector>

#include <sherd/optim/muon.h>

namespace sherd {

struct NorMuonOptions {
  /// Momentum, orthogonalization, decay and plan. Its scale must be match_rms_adamw, the same RMS of updates,
  /// which NorMuon reaches by measuring it; scale_factor multiplies it.
  MuonOptions muon = {};
  /// Of the second moment of a row, in [0, 1).
  double beta2 = 0.95;
  /// Greater than 0. Squares are summed to multiples of 2^-64: what lies below eps by far counts as zero.
  double eps = 1e-8;
};

/// What cannot be, each with its value; empty when all is well.
std::vector<std::string> problems_of(const NorMuonOptions& options);

/// NorMuon (Li et al. 2025, arXiv 2510.05491), an UpdateRule made of Muon and a MuonRefinement. O being the
/// orthogonalized momentum of a logical matrix of m rows and n columns, for every row:
///   v = beta2 * v + (1 - beta2) * mean(O^2);  O' = O / (sqrt(v) + eps);
///   w = decay * w - lr * 0.2 * scale_factor * sqrt(m n) / ||O'||_F * O'.
/// v begins at zero and has no bias correction, which the norm would cancel. A matrix whose O is zero does
/// not change.
///
/// Bits: as Muon's; sums over rows that are cut, and over tensor-parallel columns, do not show the cut. Every
/// chunk of matrices that are cut needs one more all-reduce, of 32 bytes a row.
///
/// State: momentum_buffer as Muon's, and second_momentum_buffer, v, kept for every element with the same
/// value along a row: so it is sharded like its parameter and resharded with it, at the price of as much
/// memory as the momentum. Of a row whose values are not the same, the first one counts, and the next step
/// spreads it.
/// Beside MuonOptions::transient_bytes a chunk takes 40 bytes a row, and an f32 copy of its results where
/// payload is of 16 bits.
class NorMuon : public UpdateRule, private MuonRefinement {
 public:
  static constexpr Algorithm kName{"normuon", CutClass::row, true};
  /// For OptimizerOptions::further.
  static UpdateRuleFactory factory(const NorMuonOptions& options = {});
  /// @throws as Muon does; InvalidArgument naming all options that cannot be.
  NorMuon(Device& device, std::vector<UpdateItem> items, NorMuonOptions options);
  void step(Stream& compute, double lr, const Tensor& skip = {}) override { muon_.step(compute, lr, skip); }
  std::vector<StateTensor> state() const override;

  /// The Muon below, with its plan and its report.
  Muon& muon() { return muon_; }

 private:
  void refine(Stream& compute, const MuonResults& results, const Tensor& skip) override;

  Device& device_;
  NorMuonOptions options_;
  std::vector<StateTensor> moments_;  // of each item
  Muon muon_;                         // last: its streams finish before the moments go
};

}  // namespace sherd
