// Rotary position embedding.
#pragma once

#include <sherd/nn/function.h>
#include <sherd/nn/kernels/rope/frequencies.h>

namespace sherd::nn {

struct RopeOptions {
  int64_t batch = 1;           ///< sequences of equal length, one after the other
  int64_t heads = 1;           ///< rotated heads, from the first column on: heads + kv_heads of a packed qkv
  int64_t first_position = 0;  ///< of the first row of each sequence
  int64_t head_dim = 0;        ///< columns of a head, of which the first ones are rotated; 0: all of them are
  float scale = 1;  ///< of cosines and sines, so that rows and gradients are this many times as long
};

/// Rotates each of the first `heads` heads of x [batch * seq, columns] by its row's position; columns after
/// them are unchanged. Row t of a sequence has position first_position + t. Of n columns that are rotated, a head's components i and i +
/// n / 2 are rotated by the angle position * inv_freq[i]. (Su et al., RoFormer, 2021; the pairs are
/// those of Llama on Hugging Face.) Saves only inv_freq. Overwrites x where this Var alone holds its memory: a value that
/// is moved in and that no other function keeps. Backward does the same with the gradient.
/// @param inv_freq f32 [n / 2] on x's device; see ops::rope_frequencies() and rope_table().
Var rope(Var x, const Tensor& inv_freq, const RopeOptions& options);

/// Returns frequencies on a device, for rope().
Tensor rope_table(Device& device, const std::vector<float>& frequencies);

}  // namespace sherd::nn
