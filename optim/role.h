// Role of a parameter, guessed from its name and its shape, with the evidence.
#pragma once

#include <string>
#include <vector>

#include <sherd/kernels/device/shape.h>

namespace sherd {

enum class Role {
  hidden,       // a matrix (or a stack of them) between activations
  embedding,    // a table of vectors: tokens, positions, patches, relative positions
  head,         // the last projection, to the vocabulary or to classes
  norm,         // of a normalisation
  bias,         // added to activations
  router,       // scores of experts
  conv,         // a convolution's kernel
  state_space,  // A_log, D and dt_bias of a state-space layer
  vector,       // neither a matrix nor a stack of matrices
};
const char* name_of(Role role);

struct RoleQuestion {
  std::string name = {};
  /// Shape of the global parameter, all tensor- and expert-parallel pieces together.
  Shape shape = {};
  /// The user declared its last two dimensions to be matrices, by giving it row blocks.
  bool matrices = false;
  /// Its names in the further modules that hold it (tied).
  std::vector<std::string> tied = {};
};

struct RoleGuess {
  Role role = Role::hidden;
  /// Human-readable evidence, e.g. "embedding: word 'emb' in 'token_emb'".
  std::string evidence = {};
  /// The name also fits a hidden matrix (or fits no role): `role` is then the safe choice, which costs only
  /// speed.
  bool ambiguous = false;
};

/// Returns one guess for each parameter of a model. It needs all parameters at once: siblings distinguish a
/// router from a gated layer's gate, and embeddings give the vocabulary size. Pure.
[[nodiscard]] std::vector<RoleGuess> guess_roles(const std::vector<RoleQuestion>& model);

}  // namespace sherd
