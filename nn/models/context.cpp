#include <sherd/nn/models/context.h>

#include <fmt/format.h>

#include <sherd/base/error.h>

namespace sherd::nn {

SlidingContext::SlidingContext(int64_t capacity) : capacity_(capacity) {
  if (capacity < 1) throw InvalidArgument(fmt::format("a context of {} tokens: must be 1 or more", capacity));
}

SlidingContext::Rows SlidingContext::next(int64_t tokens) {
  if (tokens <= end_)
    throw InvalidArgument(
        fmt::format("{} tokens of text, of which {} were run before: nothing is new", tokens, end_));
  if (tokens - begin_ <= capacity_) {
    const Rows rows{end_, tokens, false};
    end_ = tokens;
    return rows;
  }
  begin_ = tokens - (capacity_ - capacity_ / 4);
  end_ = tokens;
  return {begin_, end_, true};
}

}  // namespace sherd::nn
