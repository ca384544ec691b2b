#include <sherd/nn/algebra.h>

#include <fmt/format.h>

#include <array>
#include <memory>

#include <sherd/nn/detail/memory.h>
#include <sherd/nn/detail/reduced.h>
#include <sherd/nn/kernels/strided/strided.h>

namespace sherd::nn {
namespace {

/// Operand of a derivative.
enum class Source { none, gradient, a, b, c, result, zero, minus_one };

/// Gradient of an operand: function(sources...). `copy` of the gradient is the gradient itself. Without sources there
/// is none.
struct Derivative {
  MapFunction function = MapFunction::copy;
  std::array<Source, kMapInputs> sources{};
};
using Derivatives = std::array<Derivative, kMapInputs>;

Derivatives derivatives_of(MapFunction f) {
  using enum Source;
  switch (f) {
    case MapFunction::copy:
      return {{{MapFunction::copy, {gradient}}}};
    case MapFunction::add:
      return {{{MapFunction::copy, {gradient}}, {MapFunction::copy, {gradient}}}};
    case MapFunction::subtract:
      return {{{MapFunction::copy, {gradient}}, {MapFunction::multiply, {gradient, minus_one}}}};
    case MapFunction::multiply:
      return {{{MapFunction::multiply, {gradient, b}}, {MapFunction::multiply, {gradient, a}}}};
    case MapFunction::divide:
      return {{{MapFunction::divide, {gradient, b}}, {MapFunction::divide_slope, {gradient, a, b}}}};
    case MapFunction::power:
      return {{{MapFunction::power_base, {gradient, a, b}}, {MapFunction::power_exponent, {gradient, a, b}}}};
    case MapFunction::maximum:
      return {
          {{MapFunction::maximum_share, {gradient, a, b}}, {MapFunction::maximum_share, {gradient, b, a}}}};
    case MapFunction::where:
      return {{{}, {MapFunction::where, {a, gradient, zero}}, {MapFunction::where, {a, zero, gradient}}}};
    case MapFunction::exp:
      return {{{MapFunction::multiply, {gradient, result}}}};
    case MapFunction::log:
      return {{{MapFunction::divide, {gradient, a}}}};
    case MapFunction::sqrt:
      return {{{MapFunction::sqrt_slope, {gradient, result}}}};
    case MapFunction::tanh:
      return {{{MapFunction::tanh_slope, {gradient, result}}}};
    case MapFunction::sigmoid:
      return {{{MapFunction::sigmoid_slope, {gradient, result}}}};
    default:
      return {};
  }
}

/// Backward of one function: what it saves, and the gradients from it.
struct MapBackward {
  MapFunction function = MapFunction::copy;
  Shape shape{};
  Device* device = nullptr;
  DType dtype = DType::f32;
  std::array<Shape, kMapInputs> shapes{};  // of the operands
  std::array<int, kMapInputs> input{};     // the operand's place among the tape's inputs; -1: a number
  std::array<Tensor, kMapInputs> saved{};
  std::array<double, kMapInputs> numbers{};
  Tensor result{};

  ops::MapInput source(Source from, const Tensor& dy) const {
    switch (from) {
      case Source::zero:
        return 0.0;
      case Source::minus_one:
        return -1.0;
      case Source::result:
        return result;
      case Source::gradient:
        return dy;
      default: {
        const auto i = static_cast<size_t>(from) - static_cast<size_t>(Source::a);
        if (input[i] < 0) return numbers[i];
        return ops::broadcast(ops::dense(saved[i]), shape);
      }
    }
  }

  /// The number by which d multiplies a gradient that is a constant; none in f64, as constants are f32.
  std::optional<double> constant_factor(const Derivative& d, const Gradient& g) const {
    if (d.function != MapFunction::multiply || !g.constant() || dtype == DType::f64) return {};
    if (d.sources[1] == Source::minus_one) return -1.0;
    const auto i = static_cast<size_t>(d.sources[1]) - static_cast<size_t>(Source::a);
    return i < kMapInputs && input[i] < 0 ? std::optional(numbers[i]) : std::nullopt;
  }

  std::vector<Gradient> operator()(Stream& s, const BackwardCall& call) const {
    std::vector<Gradient> gradients(call.inputs());
    const Derivatives all = derivatives_of(function);
    for (size_t i = 0; i < kMapInputs; ++i) {
      const Derivative& d = all[i];
      if (d.sources[0] == Source::none || input[i] < 0 || !call.wants(static_cast<size_t>(input[i])))
        continue;
      Gradient of_copies = call.output();
      const std::optional<double> factor = constant_factor(d, call.output());
      if (factor) {
        of_copies = Gradient::constant(*call.output().constant() * static_cast<float>(*factor));
      } else if (d.function != MapFunction::copy) {
        const Tensor dy = call.output().tensor(*device, shape, dtype);
        const Tensor dx = detail::like(dy);
        std::vector<ops::MapInput> in;
        for (const Source from : d.sources)
          if (from != Source::none) in.push_back(source(from, dy));
        ops::map(s, d.function, ops::dense(dx), in);
        of_copies = dx;
      }
      gradients[static_cast<size_t>(input[i])] =
          detail::sum_to(s, of_copies, shapes[i], *device, shape, dtype);
    }
    return gradients;
  }
};

/// Returns whether the derivative of an operand with a gradient reads `source`.
bool reads(const MapBackward& m, const std::vector<Var>& inputs, Source source) {
  const Derivatives all = derivatives_of(m.function);
  for (size_t i = 0; i < kMapInputs; ++i)
    for (const Source from : all[i].sources)
      if (from == source && m.input[i] >= 0 && inputs[static_cast<size_t>(m.input[i])].requires_grad())
        return true;
  return false;
}

/// Notes the operands in m and returns those that are values.
std::vector<Var> values_of(MapBackward& m, const std::vector<Operand>& operands, const char* name) {
  std::vector<Var> values;
  m.input.fill(-1);
  for (size_t i = 0; i < operands.size(); ++i) {
    const Var& v = operands[i].var();
    if (operands[i].number()) {
      m.numbers[i] = *operands[i].number();
      continue;
    }
    if (!v.defined()) throw InvalidArgument(fmt::format("{}: operand {} is undefined", name, i));
    m.input[i] = static_cast<int>(values.size());
    m.shapes[i] = v.shape();
    values.push_back(v);
  }
  if (values.empty())
    throw InvalidArgument(
        fmt::format("{}: all operands are numbers; make one of them a value by constants()", name));
  m.device = &values[0].device();
  m.dtype = values[0].dtype();
  return values;
}

Var map_function(MapFunction f, const std::vector<Operand>& operands,
                 const char* name = __builtin_FUNCTION()) {
  const auto m = std::make_shared<MapBackward>();
  m->function = f;
  const std::vector<Var> values = values_of(*m, operands, name);
  return function(
      values,
      [&](Stream& s) {
        for (const Var& x : values) m->shape = ops::broadcast_shape(m->shape, x.shape());
        const Tensor y = Tensor::empty(*m->device, m->shape, m->dtype, detail::kActivations);
        std::vector<ops::MapInput> in;
        for (size_t i = 0; i < operands.size(); ++i) {
          const Tensor& t = operands[i].var().value();
          in.push_back(m->input[i] < 0 ? ops::MapInput(m->numbers[i])
                                       : ops::broadcast(ops::dense(t), m->shape));
          if (reads(*m, values, static_cast<Source>(static_cast<size_t>(Source::a) + i))) m->saved[i] = t;
        }
        ops::map(s, f, ops::dense(y), in);
        if (reads(*m, values, Source::result)) m->result = y;
        return y;
      },
      [m](Stream& s, const BackwardCall& call) { return (*m)(s, call); }, {}, name);
}

/// Comparisons have no derivative.
Operand untracked(const Operand& x) { return x.number() ? x : Operand(x.var().detach()); }
Operand negated(const Operand& x) { return x.number() ? Operand(-*x.number()) : Operand(-x.var()); }

}  // namespace

Var add(const Operand& a, const Operand& b) { return map_function(MapFunction::add, {a, b}); }
Var subtract(const Operand& a, const Operand& b) { return map_function(MapFunction::subtract, {a, b}); }
Var multiply(const Operand& a, const Operand& b) { return map_function(MapFunction::multiply, {a, b}); }
Var divide(const Operand& a, const Operand& b) { return map_function(MapFunction::divide, {a, b}); }

Var power(const Operand& a, const Operand& b) {
  if (!a.number() && b.number() == 1.0) return a.var();
  if (!a.number() && b.number() == 2.0) return map_function(MapFunction::multiply, {a, a});
  if (!a.number() && b.number() == 0.5) return map_function(MapFunction::sqrt, {a});
  return map_function(MapFunction::power, {a, b});
}

Var maximum(const Operand& a, const Operand& b) { return map_function(MapFunction::maximum, {a, b}); }
Var minimum(const Operand& a, const Operand& b) { return -maximum(negated(a), negated(b)); }
Var less(const Operand& a, const Operand& b) {
  return map_function(MapFunction::less, {untracked(a), untracked(b)});
}
Var less_equal(const Operand& a, const Operand& b) {
  return map_function(MapFunction::less_equal, {untracked(a), untracked(b)});
}
Var equal(const Operand& a, const Operand& b) {
  return map_function(MapFunction::equal, {untracked(a), untracked(b)});
}
Var where(const Operand& condition, const Operand& a, const Operand& b) {
  return map_function(MapFunction::where, {untracked(condition), a, b});
}

Var exp(const Var& x) { return map_function(MapFunction::exp, {x}); }
Var log(const Var& x) { return map_function(MapFunction::log, {x}); }
Var sqrt(const Var& x) { return map_function(MapFunction::sqrt, {x}); }
Var tanh(const Var& x) { return map_function(MapFunction::tanh, {x}); }
Var sigmoid(const Var& x) { return map_function(MapFunction::sigmoid, {x}); }
Var abs(const Var& x) { return maximum(x, -x); }

}  // namespace sherd::nn
