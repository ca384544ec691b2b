#include <sherd/comm/backend/argument_check.h>

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace sherd::comm {
namespace {

// Returns the distance in bytes from a to b. As integers: pointers of two allocations must not be subtracted.
int64_t bytes_from(const Tensor& a, const Tensor& b) {
  return static_cast<int64_t>(reinterpret_cast<intptr_t>(b.raw()) - reinterpret_cast<intptr_t>(a.raw()));
}

// Returns whether the byte intervals of the two tensors overlap; an empty tensor overlaps nothing.
bool overlap(const Tensor& a, const Tensor& b) {
  if (a.numel() == 0 || b.numel() == 0) return false;
  const int64_t at = bytes_from(a, b);
  return at < a.nbytes() && -at < b.nbytes();
}

}  // namespace

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
  int64_t sum = 0;
  // Each addition is checked, since counts come from the caller.
  for (const int64_t c : counts) {
    if (c > std::numeric_limits<int64_t>::max() - sum)
      throw InvalidArgument(
          fmt::format("{}: {} = [{}]; their sum passes 63 bits", place(), name, fmt::join(counts, ", ")));
    sum += c;
  }
  return sum;
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
  if (size_of(t.dtype()) == 1)
    throw InvalidArgument(fmt::format("{}: {} cannot be reduced; use f32, bf16, f16, f64, i32 or i64",
                                      place(), name_of(t.dtype())));
}

void ArgumentCheck::place_of(const Device& device, const Stream& stream,
                             std::initializer_list<NamedTensor> tensors) const {
  const auto refuse = [&](const std::string& what, const Device& theirs) {
    throw InvalidArgument(
        fmt::format("{}: {} belongs to the device of {}; a rank's calls take streams and memory of its own "
                    "device ({}) alone",
                    place(), what, theirs.label(), device.label()));
  };
  // A rank's device does not own other ranks' memory, even where the hardware could reach it.
  if (&stream.device() != &device) refuse(fmt::format("stream '{}'", stream.name()), stream.device());
  for (const auto& [tensor, name] : tensors)
    if (tensor.defined() && &tensor.device() != &device) refuse(name, tensor.device());
}

void ArgumentCheck::in_place(const Tensor& part, const char* part_name, const Tensor& whole,
                             const char* whole_name, int64_t begin) const {
  if (!overlap(part, whole)) return;
  // Equal to the rank's own part of the whole is the one overlap that every backend supports.
  const int64_t at = bytes_from(whole, part), element = size_of(whole.dtype());
  if (at == begin * element) return;
  throw InvalidArgument(fmt::format(
      "{}: {} begins {} bytes after {} and overlaps it; in place it must be {}.flat({}, {}), or else lie in "
      "memory of its own",
      place(), part_name, at, whole_name, whole_name, begin, begin + part.numel()));
}

void ArgumentCheck::apart(const Tensor& a, const char* a_name, const Tensor& b, const char* b_name) const {
  if (!overlap(a, b)) return;
  throw InvalidArgument(fmt::format(
      "{}: {} and {} overlap ({} begins {} bytes after {}); this verb is never in place, give each "
      "memory of its own",
      place(), a_name, b_name, a_name, bytes_from(b, a), b_name));
}

}  // namespace sherd::comm
