// Embeddings: rows of tables.
#pragma once

#include <sherd/nn/function.h>

namespace sherd::nn {

/// Returns table[token[i]], plus positions[first_position + i mod seq] if there are positions. tokens i32 [batch, seq], table
/// [vocab, d], positions [>= first_position + seq, d]; the result is [batch * seq, d]. Backward adds to both tables in
/// increasing i. A token outside the table fails the stream with InvalidArgument.
Var embedding(const Var& tokens, const Parameter& table, const Parameter& positions = {},
              int64_t first_position = 0);

}  // namespace sherd::nn
