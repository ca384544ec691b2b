// NorMuon: Muon with a second moment per row (neuron) that normalizes the rows.
#pragma once

#include <string>
#include <vector>

#include <sherd/optim/muon.h>

namespace sherd {

struct NorMuonOptions {
  /// Momentum, orthogonalization, decay and plan. Its fraction must be 1. Its scale must be match_rms_adamw, the same RMS of updates,
  /// which NorMuon measures and normalizes; scale_factor multiplies it.
  MuonOptions muon = {};
  /// Decay of a row's second moment, in [0, 1).
  double beta2 = 0.95;
  /// Greater than 0. Squares are summed to multiples of 2^-64, so values far below eps count as zero.
  double eps = 1e-8;
};

/// Returns all invalid options, each with its value; empty when valid.
[[nodiscard]] std::vector<std::string> problems_of(const NorMuonOptions& options);

/// NorMuon (Li et al. 2025, arXiv 2510.05491), an UpdateRule made of Muon and a MatrixRefinement. O is the
/// orthogonalized momentum of a logical matrix of m rows and n columns. For every row:
///  v = beta2 * v + (1 - beta2) * mean(O^2);  O' = O / (sqrt(v) + eps);
///  w = decay * w - lr * 0.2 * scale_factor * sqrt(m n) / ||O'||_F * O'.
/// v starts at zero and has no bias correction, which the norm would cancel. A matrix with O = 0 does not
/// change.
///
/// Bits: as Muon's; sums over rows that are cut, and over tensor-parallel columns, are independent of the
/// cut. Every chunk of matrices that are cut needs one more all-reduce, of 32 bytes per row.
///
/// State: momentum_buffer as Muon's, and second_momentum_buffer, v, stored for every element with the same
/// value along a row. It is sharded like its parameter and resharded with it, and takes as much memory as the
/// momentum. If a row's values differ, the first one counts, and the next step copies it along the row.
/// Beside MomentumOptions::transient_bytes a chunk takes 40 bytes per row, and an f32 copy of its results where
/// the payload has 16 bits.
class NorMuon : public UpdateRule, private MatrixRefinement {
 public:
  static constexpr Algorithm kName{"normuon", CutClass::row, true};
  /// Returns the factory for OptimizerOptions::further.
  [[nodiscard]] static UpdateRuleFactory factory(const NorMuonOptions& options = {});
  /// @throws as Muon does; InvalidArgument naming all invalid options.
  NorMuon(Device& device, std::vector<UpdateItem> items, NorMuonOptions options);
  void step(Stream& compute, double lr, const Tensor& skip = {}) override;
  std::vector<StateTensor> state() const override;
  std::vector<StateCounter> counters() const override { return muon_.counters(); }

  /// Returns the Muon inside, with its plan and its report.
  Muon& muon() { return muon_; }

 private:
  void refine(Stream& compute, const MatrixResults& results, const Tensor& skip) override;

  Device& device_;
  NorMuonOptions options_;
  std::shared_ptr<RestWindows> windows_;
  std::vector<StateTensor> moments_;  // of each item
  Muon muon_;                         // last: its streams finish before the moments are freed
};

}  // namespace sherd
