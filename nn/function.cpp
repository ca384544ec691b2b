#include <sherd/nn/function.h>

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace sherd::nn {
namespace {

// Describes the arguments of a function, for errors.
std::string describe(const std::vector<Var>& inputs, const std::vector<Parameter>& parameters) {
  std::string text;
  const auto add = [&](const std::string& what) { text += (text.empty() ? "" : ", ") + what; };
  for (const Var& x : inputs)
    if (x.defined()) add(fmt::format("{} {}", name_of(x.dtype()), to_string(x.shape())));
  for (const Parameter& p : parameters) add(fmt::format("parameter '{}' {}", p.name(), to_string(p.shape())));
  return text;
}

// What to do where an input has another dtype than the unit of a parameter computes in; "" elsewhere.
std::string dtype_remedy(const std::vector<Var>& inputs, const std::vector<Parameter>& parameters) {
  for (const Parameter& p : parameters) {
    if (!p.sharded()) continue;
    const DType wanted = p.group().plan().dtype;
    for (const Var& x : inputs)
      if (x.defined() && x.dtype() != wanted && (x.dtype() == DType::f32 || x.dtype() == DType::bf16))
        return fmt::format(
            "; unit '{}' computes in {}, and this input is {}: give all units one "
            "FullyShardOptions::compute_dtype, or the unit that returns the input output_dtype {}",
            p.group().unit(), name_of(wanted), name_of(x.dtype()), name_of(wanted));
  }
  return "";
}

// f(), whose errors of shapes name the function, its inputs and its parameters.
template <class F>
auto with_names(const char* pass, const char* name, const std::vector<Var>& inputs,
                const std::vector<Parameter>& parameters, F f) {
  const auto named = [&](const std::exception& e) {
    return ShapeMismatch(fmt::format("{}{} of {}: {}{}", pass, name, describe(inputs, parameters), e.what(),
                                     dtype_remedy(inputs, parameters)));
  };
  try {
    return f();
  } catch (const ShapeMismatch& e) {
    throw named(e);
  } catch (const std::out_of_range& e) {  // a size of a tensor that has fewer dimensions
    throw named(e);
  }
}

}  // namespace

namespace detail {

Tape* tape_of(const std::vector<Var>& inputs, const std::vector<Parameter>& parameters) {
  for (const Var& x : inputs)
    if (x.tape() != nullptr) return x.tape();
  for (const Parameter& p : parameters)
    if (!p.frozen())
      if (auto* const tape = dynamic_cast<Tape*>(p.recorder())) return tape;
  return nullptr;
}

}  // namespace detail

std::vector<Var> functions(const std::vector<Var>& inputs,
                           const std::function<std::vector<Tensor>(Stream&)>& forward,
                           std::function<std::vector<Gradient>(Stream&, const BackwardCall&)> backward,
                           const std::vector<Parameter>& parameters, const char* name) {
  const auto first = std::find_if(inputs.begin(), inputs.end(), [](const Var& x) { return x.defined(); });
  if (first == inputs.end() && parameters.empty())
    throw InvalidArgument(fmt::format("{}: a function needs an input that is defined, or a parameter", name));
  Stream& stream = first != inputs.end() ? first->stream() : parameters[0].data().device().compute();
  std::vector<Tensor> outputs = with_names("", name, inputs, parameters, [&] { return forward(stream); });
  Tape* const tape = detail::tape_of(inputs, parameters);
  if (tape == nullptr) return {outputs.begin(), outputs.end()};
  const bool trains =
      std::any_of(parameters.begin(), parameters.end(), [](const Parameter& p) { return !p.frozen(); });
  return tape->record(
      inputs, std::move(outputs), trains,
      [&stream, f = std::move(backward), parameters, name](const BackwardCall& call) {
        return with_names("the backward of ", name, {}, parameters, [&] { return f(stream, call); });
      },
      name);
}

Var function(const std::vector<Var>& inputs, const std::function<Tensor(Stream&)>& forward,
             std::function<std::vector<Gradient>(Stream&, const BackwardCall&)> backward,
             const std::vector<Parameter>& parameters, const char* name) {
  return functions(
      inputs, [&](Stream& s) { return std::vector<Tensor>{forward(s)}; }, std::move(backward), parameters,
      name)[0];
}

}  // namespace sherd::nn
