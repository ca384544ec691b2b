// Argument checks and queueing that the sources of the operations share. Private to kernels/ and nn/kernels/.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include <sherd/kernels/device/columns.h>
#include <sherd/kernels/device/ref.h>
#include <sherd/kernels/device/tensor.h>

namespace sherd::ops::door {

inline constexpr std::initializer_list<DType> kFloats = {DType::f32, DType::bf16, DType::f16, DType::f64};
/// f32 or bf16, and f64 where the device's kernels take it (the reference's).
struct Activations {};
inline constexpr Activations kActivations;
/// f32, and f64 where the device's kernels take it.
struct Wide {};
inline constexpr Wide kWide;
/// The dtype of what is kept beside activations of dtype t, and of gradients of weights: f32, or f64 beside f64.
constexpr DType wide(DType t) { return t == DType::f64 ? DType::f64 : DType::f32; }
inline constexpr std::initializer_list<DType> kPayload = {DType::f32, DType::bf16, DType::f16};

/// Collects everything that is wrong with the arguments of one operation; done() throws if anything is.
class Check {
 public:
  explicit Check(const char* op) : op_(op) {}

  Check& dtype(const char* name, const Tensor& t, std::initializer_list<DType> allowed) {
    if (!t.defined()) return problem(fmt::format("{} is undefined", name));
    if (std::find(allowed.begin(), allowed.end(), t.dtype()) != allowed.end()) return *this;
    std::string list;
    for (DType d : allowed) list += fmt::format("{}{}", list.empty() ? "" : " or ", name_of(d));
    return problem(fmt::format("{} is {}, must be {}", name, name_of(t.dtype()), list));
  }
  Check& dtype(const char* name, const Tensor& t, DType wanted) { return dtype(name, t, {wanted}); }
  Check& dtype(const char* name, const Tensor& t, Activations) {
    if (t.defined() && t.dtype() == DType::f64 && takes_f64(t.device().kernel_set())) return *this;
    return dtype(name, t, {DType::f32, DType::bf16});
  }
  Check& dtype(const char* name, const Tensor& t, Wide) {
    if (t.defined() && t.dtype() == DType::f64 && takes_f64(t.device().kernel_set())) return *this;
    return dtype(name, t, DType::f32);
  }
  Check& shape(const char* name, const Tensor& t, const Shape& wanted) {
    if (t.defined() && t.shape() != wanted)
      problem(fmt::format("{} is {}, must be {}", name, to_string(t.shape()), to_string(wanted)));
    return *this;
  }
  Check& count(const char* name, const Tensor& t, int64_t wanted) {
    if (t.defined() && t.numel() != wanted)
      problem(fmt::format("{} is {} ({} elements), must have {} elements", name, to_string(t.shape()),
                          t.numel(), wanted));
    return *this;
  }
  /// For tensors whose sizes are read to derive the others': fails at once.
  Check& dims(const char* name, const Tensor& t, int64_t wanted) {
    if (!t.defined()) {
      problem(fmt::format("{} is undefined", name)).done();
    } else if (t.dim() != wanted) {
      problem(fmt::format("{} is {}, must have {} dimensions", name, to_string(t.shape()), wanted)).done();
    }
    return *this;
  }
  Check& that(bool ok, std::string otherwise) { return ok ? *this : problem(std::move(otherwise)); }

  void done() const {
    if (!problems_.empty()) throw ShapeMismatch(fmt::format("{}: {}", op_, problems_));
  }

 private:
  Check& problem(std::string text) {
    problems_ += (problems_.empty() ? "" : "; ") + text;
    return *this;
  }
  const char* op_;
  std::string problems_;
};

/// dlogits are columns as the logits are.
inline void check_gradient(Check& check, const Columns& dlogits, const Columns& logits) {
  check.dtype("dlogits", dlogits.matrix, logits.matrix.dtype())
      .shape("dlogits", dlogits.matrix, logits.matrix.shape())
      .that(dlogits.begin == logits.begin && dlogits.count == logits.count,
            "dlogits are other columns than logits");
}

/// The number on the device that stops a step: one i64, or none.
inline void check_skip(Check& check, const Tensor& skip) {
  if (skip.defined()) check.dtype("skip", skip, DType::i64).count("skip", skip, 1);
}

/// Segments of a pass have no negative counts.
template <class Segment>
void check_counts(Check& check, std::span<const Segment> segments) {
  for (size_t i = 0; i < segments.size(); ++i)
    check.that(segments[i].count >= 0, fmt::format("segment {}: count {} is negative", i, segments[i].count));
}

inline void require(bool ok, const std::string& otherwise) {
  if (!ok) throw InvalidArgument(otherwise);
}

inline bool overlap(const Tensor& a, const Tensor& b) {
  const char *p = static_cast<const char*>(a.raw()), *q = static_cast<const char*>(b.raw());
  return a.nbytes() > 0 && b.nbytes() > 0 && p < q + b.nbytes() && q < p + a.nbytes();
}

inline void require_distinct(const char* op, const Tensor& out, const Tensor& in) {
  require(!overlap(out, in), fmt::format("{}: the output overlaps an input; use two tensors", op));
}

inline Ref ref(const Tensor& t) { return {t.raw(), t.dtype()}; }
inline Ref ref(const Columns& c) {
  Ref r = ref(c.matrix);
  // A matrix without elements may have no memory to count from.
  if (c.matrix.numel() > 0) r.data = static_cast<char*>(r.data) + c.begin * size_of(c.matrix.dtype());
  return r;
}
/// Elements from row to row.
inline int64_t ld(const Columns& c) { return std::max<int64_t>(1, c.matrix.size(1)); }
/// @throws InvalidArgument for columns outside the matrix.
inline void require_columns(const char* op, std::initializer_list<const Columns*> all) {
  for (const Columns* c : all)
    require(c->begin >= 0 && c->count >= 0 && c->begin + c->count <= c->matrix.size(1),
            fmt::format("{}: columns [{}, {}) of a matrix {}", op, c->begin, c->begin + c->count,
                        to_string(c->matrix.shape())));
}

template <class T>
T* pointer(const Tensor& t) {
  return t.defined() ? t.data<T>() : nullptr;
}

/// Bytes of an element that an argument points to.
inline int64_t element_bytes(const Ref& r) { return size_of(r.dtype); }
inline int64_t element_bytes(const void*) { return 1; }
inline int64_t element_bytes(const float*) { return sizeof(float); }
template <class T>
int64_t element_bytes(const T&) {
  return 0;
}

/// Returns the work of an operation with these arguments: by its family's work_of(), or else one pass over all memory
/// that they point to, where the whole numbers among them are its sizes.
template <class... A>
Work work_of_call(const Device& device, const A&... args) {
  if constexpr (requires { work_of(device, args...); }) return work_of(device, args...);
  int64_t elements = 1, bytes = 0;
  const auto add = [&](const auto& a) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(a)>, int64_t>)
      elements *= a;
    else
      bytes += element_bytes(a);
  };
  (add(args), ...);
  return {.bytes = elements * bytes};
}

/// Queues a kernel; its arguments are copied and hold no tensor alive. A family whose operations take most of a step
/// says by work_of(device, arguments), beside its argument struct, what a dry device counts.
template <class... A>
void queue(Stream& s, Operation what, void (*kernel)(ExecutionContext&, A...),
           const std::type_identity_t<std::remove_cvref_t<A>>&... args) {
  if (s.device().dry()) s.expect(work_of_call(s.device(), args...));
  s.submit(what, [kernel, args...](ExecutionContext& c) { kernel(c, args...); });
}

template <class Table>
const Table& kernels(Stream& s) {
  return s.device().kernels<Table>();
}

}  // namespace sherd::ops::door
