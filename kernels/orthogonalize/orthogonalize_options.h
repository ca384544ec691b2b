// Options of the orthogonalizers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <sherd/base/enum_table.h>
#include <sherd/kernels/device/dtype.h>

namespace sherd {

/// One step of the iteration X <- aX + b(XX^T)X + c(XX^T)^2 X.
struct Coefficients {
  float a = 0, b = 0, c = 0;
  bool operator==(const Coefficients&) const = default;
};

/// Jordan's quintic (2024): five of these steps bring singular values from about 0.01..1 to about 0.7..1.2.
inline constexpr Coefficients kJordanStep{3.4445f, -4.7750f, 2.0315f};
inline std::vector<Coefficients> jordan_steps() {
  return {kJordanStep, kJordanStep, kJordanStep, kJordanStep, kJordanStep};
}

/// newton_schulz: the odd polynomial iteration. svd: the exact polar factor UV^T of the matrix.
enum class Orthogonalizer { newton_schulz, svd };

/// standard: iterates on X. gram: iterates on R = XX^T and accumulates Q (short side squared), X <- QX at
/// every restart and at the end (Dao-AILab, "Gram Newton-Schulz"). Same polynomial, other rounding.
/// by_shape: the one of the two that form_for() returns, for each matrix.
enum class IterationForm { standard, gram, by_shape };
inline constexpr EnumTable<IterationForm, 3> kIterationForms{"standard", "gram", "by_shape"};
inline const char* name_of(IterationForm f) { return kIterationForms.name(f); }

struct OrthogonalizeOptions {
  Orthogonalizer method = Orthogonalizer::newton_schulz;
  IterationForm form = IterationForm::standard;
  /// One entry per step; at least one with newton_schulz.
  std::vector<Coefficients> steps = jordan_steps();
  /// Gram form: numbers of steps after which X and R are formed again, e.g. {2}; empty = never. Rounding
  /// errors of R grow by a^2 per step and blow up once their directions pass 1: leave at most three steps
  /// without a restart in f16, about five in f32 (relative errors measured on spectra from 1e-3 to 1: five of
  /// Jordan's steps 2e-4 in f32, .02 in f16 with {2}; nine steps in f16 with {2} overflow).
  std::vector<int> restarts = {};
  /// X0 = U / (||U||_F + eps).
  float eps = 1e-7f;
  /// The type in which matrices are kept between products; sums of products are always f32. On a CPU
  /// f16 is emulated (rounded after every product) and saves nothing, and so is bf16 on processors without products
  /// for it. The gram form refuses bf16:
  /// its error on hard spectra is unbounded.
  DType working = DType::f32;
};

/// Returns the form of a whole matrix's iteration, standard or gram. by_shape: gram where the long side is 3 times the
/// short one or more. A function of these arguments alone, so every rank and layout has the same form.
IterationForm form_for(const OrthogonalizeOptions& options, int64_t rows, int64_t cols);

/// Returns the invalid options, each with its value; empty when all are valid. `gram`: Gram matrices are
/// iterated on.
std::vector<std::string> problems_of(const OrthogonalizeOptions& options, bool gram);

/// Result of an orthogonalizer, one value per matrix. A zero matrix, one with a non-finite element, and one
/// whose iteration overflows give zeros. The last two are errors of a rule (MatrixRule): NaN or Inf from
/// finite input, in its result or in its state.
enum class MatrixStatus : int32_t { fine = 0, zero = 1, not_finite = 2, bad_result = 3, bad_state = 4 };

}  // namespace sherd
