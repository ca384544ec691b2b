#include <sherd/comm/argument_check.h>

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace sherd {

std::string ArgumentCheck::place() const {
  return fmt::format("{} on rank {} ({} of {} in its group)", op_, world_rank_, rank_, size_);
}

void ArgumentCheck::defined(const Tensor& t, const char* name) const {
  if (!t.defined())
    throw InvalidArgument(fmt::format(
        "{}: {} is undefined; a rank with nothing to contribute passes an empty tensor", place(), name));
}

void ArgumentCheck::pair(const Tensor& recv, const Tensor& send) const {
  defined(recv, "recv");
  defined(send, "send");
  if (recv.dtype() != send.dtype())
    throw ShapeMismatch(fmt::format("{}: recv is {} but send is {}; cast one of them first", place(),
                                    name_of(recv.dtype()), name_of(send.dtype())));
}

void ArgumentCheck::numel(const Tensor& t, const char* name, int64_t wanted, const char* rule) const {
  if (t.numel() != wanted)
    throw ShapeMismatch(fmt::format("{}: {} of shape {} has {} elements but needs {} ({})", place(), name,
                                    to_string(t.shape()), t.numel(), wanted, rule));
}

int64_t ArgumentCheck::counts(std::span<const int64_t> counts, const char* name) const {
  const bool negative = std::any_of(counts.begin(), counts.end(), [](int64_t c) { return c < 0; });
  if (negative || counts.size() != static_cast<size_t>(size_))
    throw InvalidArgument(fmt::format("{}: {} = [{}]; give one count >= 0 for each of the {} ranks", place(),
                                      name, fmt::join(counts, ", "), size_));
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

void ArgumentCheck::root(int root) const {
  if (root < 0 || root >= size_)
    throw InvalidArgument(
        fmt::format("{}: root {} is not a rank of the group; use 0 to {}", place(), root, size_ - 1));
}

void ArgumentCheck::peer(int peer) const {
  if (peer < 0 || peer >= size_ || peer == rank_)
    throw InvalidArgument(fmt::format("{}: peer {} is not another rank of the group; use 0 to {}, not {}",
                                      place(), peer, size_ - 1, rank_));
}

void ArgumentCheck::reducible(const Tensor& t) const {
  defined(t, "the tensor");
  if (t.dtype() == DType::u8)
    throw InvalidArgument(fmt::format("{}: {} cannot be reduced; use f32, bf16, f16, f64, i32 or i64",
                                      place(), name_of(t.dtype())));
}

}  // namespace sherd
