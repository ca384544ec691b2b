// Named coefficient sets of the Newton-Schulz iteration, as data.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <sherd/kernels/orthogonalize/orthogonalize.h>

namespace sherd {

/// The steps of a set; `steps` 0 asks for the set's own count. Fewer steps are its first rows; more continue as
/// the set says:
///
///   name           rows            more steps     source
///   jordan         5               cycle          Jordan et al. 2024, "Muon"
///   quintic        5               cycle          You 2024
///   polar_express  5               repeat last    Amsel et al. 2025, divided by (s, s^3, s^5) with s = 1.05
///   cans           5               repeat last    Grishina et al. 2025
///   aol            4               cycle          Boissin et al. 2025, "Turbo-Muon"
///   deepseekv4     10 (8 + 2)      repeat last    eight of Jordan's steps, then two that converge
///
/// aol was made for a normalisation that leaves no singular value near the norm: after ||U||_F, values above
/// 0.87 (a matrix of nearly rank one) come out negative.
///
/// Instead of a name, `a,b,c;a,b,c;...` gives the rows themselves; more steps repeat the last.
/// @throws InvalidArgument for an unknown name (listing the legal ones), text that is not rows of three
/// finite numbers, or a negative number of steps.
[[nodiscard]] std::vector<Coefficients> coefficient_steps(std::string_view name, int steps = 0);

/// Restarts of the gram form that keep the rounding errors of R small: between two of them they grow by the
/// product of a^2 over all steps but the last, which stays below 1e6 in f32 and 150 in f16. Five of Jordan's
/// steps need none in f32, and one after the third in f16.
[[nodiscard]] std::vector<int> safe_restarts(const std::vector<Coefficients>& steps, DType working);

/// The names above, in that order.
std::vector<std::string> coefficient_set_names();

}  // namespace sherd
