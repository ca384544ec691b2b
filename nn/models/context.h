// Context window: the tokens that a model sees when the text is longer than its limit.
#pragma once

#include <cstdint>

namespace sherd::nn {

/// Rows to run next with a cache of `capacity` positions. While the text fits, only its new tokens are run. A
/// token that does not fit moves the window: the cache is cleared and the last `capacity - capacity / 4`
/// tokens are run again, at positions from 0 on, because keys and values in a cache belong to the positions
/// that they were computed at. A token then costs about four rows on average, and the model sees at least
/// three quarters of its window.
class SlidingContext {
 public:
  /// @throws InvalidArgument for a capacity below 1.
  explicit SlidingContext(int64_t capacity);

  /// Tokens [begin, end) of the text to run; `restart`: clear the cache first.
  struct Rows {
    int64_t begin, end;
    bool restart;
  };
  /// Returns the rows for a text of `tokens` tokens, more than at the last call. They count as run.
  /// @throws InvalidArgument without new tokens.
  Rows next(int64_t tokens);

 private:
  int64_t capacity_;
  int64_t begin_ = 0, end_ = 0;  // of the text in the cache
};

}  // namespace sherd::nn
