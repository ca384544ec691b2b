// Embeddings: rows of tables.
#pragma once

#include <sherd/nn/function.h>

namespace sherd::nn {

/// Returns table[token[i]], plus positions[i mod seq] if there are positions. tokens i32 [batch, seq], table
/// [vocab, d], positions [>= seq, d]; the result is [batch * seq, d]. Backward adds to both tables in
/// increasing i. A token outside the table fails the stream with InvalidArgument.
Var embedding(const Var& tokens, const Parameter& table, const Parameter& positions = {});

}  // namespace sherd::nn
