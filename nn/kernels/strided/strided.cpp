#include <sherd/nn/kernels/strided/strided.h>

#include <sherd/kernels/device/detail/door.h>

namespace sherd::ops {

using namespace door;

namespace {

/// Number of operands of each function, in their order.
int operands_of(MapFunction f) {
  switch (f) {
    case MapFunction::copy:
    case MapFunction::exp:
    case MapFunction::log:
    case MapFunction::sqrt:
    case MapFunction::tanh:
    case MapFunction::sigmoid:
      return 1;
    case MapFunction::where:
    case MapFunction::divide_slope:
    case MapFunction::power_base:
    case MapFunction::power_exponent:
    case MapFunction::maximum_share:
      return 3;
    default:
      return 2;
  }
}

void check_view(Check& check, const char* name, const StridedView& v, const StridedView& out) {
  check.dtype(name, v.tensor, out.tensor.dtype());
  check.that(v.sizes == out.sizes,
             fmt::format("{} is {}, must be {}", name, to_string(v.sizes), to_string(out.sizes)));
  int64_t last = v.offset;
  bool forward = v.offset >= 0 && v.strides.size() == v.sizes.size();
  for (size_t d = 0; forward && d < v.sizes.size(); ++d) {
    forward = v.strides[d] >= 0;
    last += (v.sizes[d] - 1) * v.strides[d];
  }
  check.that(forward && (numel_of(v.sizes) == 0 || last < v.tensor.numel()),
             fmt::format("{} with offset {} and strides {} leaves its tensor {}", name, v.offset,
                         to_string(v.strides), to_string(v.tensor.shape())));
}

MapOperand operand_of(const StridedView& v) {
  return {
      .ref = {static_cast<char*>(v.tensor.raw()) + v.offset * size_of(v.tensor.dtype()), v.tensor.dtype()}};
}

/// Merges dimension d into the last one of `a`, where the strides of every operand allow it; otherwise appends it.
void add_dimension(MapArgs& a, const std::vector<const StridedView*>& views, size_t d) {
  const auto operand = [&](size_t i) -> MapOperand& { return i == 0 ? a.out : a.in[i - 1]; };
  const int64_t size = views[0]->sizes[d];
  const int last = a.dims - 1;
  bool merges = a.dims > 0;
  for (size_t i = 0; merges && i < views.size(); ++i)
    merges = views[i] == nullptr || operand(i).strides[last] == views[i]->strides[d] * size;
  const int at = merges ? last : a.dims++;
  a.sizes[at] = merges ? a.sizes[at] * size : size;
  for (size_t i = 0; i < views.size(); ++i)
    if (views[i] != nullptr) operand(i).strides[at] = views[i]->strides[d];
}

}  // namespace

void map(Stream& s, MapFunction f, const StridedView& out, const std::vector<MapInput>& in) {
  Check check("map");
  check.dtype("out", out.tensor, kActivations).done();
  check_view(check, "out", out, out);
  check.that(static_cast<int>(in.size()) == operands_of(f),
             fmt::format("{} has {} operands, {} are given", name_of(f), operands_of(f), in.size()));
  check.that(out.sizes.size() <= kMapDims,
             fmt::format("out is {}, may have {} dimensions", to_string(out.sizes), kMapDims));
  constexpr const char* kNames[] = {"a", "b", "c"};
  for (size_t i = 0; i < in.size() && i < kMapInputs; ++i)
    if (in[i].view.tensor.defined()) check_view(check, kNames[i], in[i].view, out);
  check.done();

  MapArgs a{.function = f, .out = operand_of(out), .inputs = static_cast<int>(in.size())};
  std::vector<const StridedView*> views{&out};
  for (size_t i = 0; i < kMapInputs; ++i) {
    const MapInput& x = in[i < in.size() ? i : 0];
    views.push_back(x.view.tensor.defined() ? &x.view : nullptr);
    a.in[i] = x.view.tensor.defined() ? operand_of(x.view) : MapOperand{.value = x.value};
  }
  for (size_t d = 0; d < out.sizes.size(); ++d)
    if (out.sizes[d] != 1) add_dimension(a, views, d);
  if (a.count() > 0) queue(s, name_of(f), kernels<StridedKernels>(s).map, a);
}

}  // namespace sherd::ops
