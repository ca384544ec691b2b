// Passes over lists of segments. Private to CPU kernels.
#pragma once

#include <algorithm>
#include <vector>

#include "parallel.h"

namespace sherd::cpu {

/// Calls f(segment, begin, end) for pieces [begin, end) of the segments. Threads share the elements, not the
/// segments: one of them may be most of the model.
template <class Segment, class F>
void for_segments(const ExecutionContext& ctx, const std::vector<Segment>& segments, F f) {
  int64_t total = 0;
  for (const Segment& s : segments) total += s.count;
  parallel_for(ctx, total, kGrain,
               [f, first = segments.data(), count = segments.size()](int64_t begin, int64_t end) {
                 int64_t start = 0;
                 for (size_t i = 0; i < count && start < end; ++i) {
                   const Segment& s = first[i];
                   const int64_t b = std::max<int64_t>(0, begin - start), e = std::min(s.count, end - start);
                   if (b < e) f(s, b, e);
                   start += s.count;
                 }
               });
}

}  // namespace sherd::cpu
