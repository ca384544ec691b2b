#include <sherd/nn/function.h>

#include <algorithm>
#include <utility>

namespace sherd::nn {
namespace {

Tape* tape_of(const std::vector<Var>& inputs) {
  for (const Var& x : inputs)
    if (x.tape() != nullptr) return x.tape();
  return nullptr;
}

}  // namespace

std::vector<Var> functions(const std::vector<Var>& inputs, const std::function<std::vector<Tensor>(Stream&)>& forward,
                           std::function<std::vector<Gradient>(Stream&, const BackwardCall&)> backward,
                           const std::vector<Parameter>& parameters) {
  const auto first = std::find_if(inputs.begin(), inputs.end(), [](const Var& x) { return x.defined(); });
  if (first == inputs.end()) throw InvalidArgument("a function needs an input that is defined");
  Stream& stream = first->stream();
  std::vector<Tensor> outputs = forward(stream);
  if (Tape* const tape = tape_of(inputs)) {
    const bool trains =
        std::any_of(parameters.begin(), parameters.end(), [](const Parameter& p) { return p.trainable(); });
    return tape->record(inputs, std::move(outputs), trains,
                        [&stream, f = std::move(backward)](const BackwardCall& call) { return f(stream, call); });
  }
  return {outputs.begin(), outputs.end()};
}

Var function(const std::vector<Var>& inputs, const std::function<Tensor(Stream&)>& forward,
             std::function<std::vector<Gradient>(Stream&, const BackwardCall&)> backward,
             const std::vector<Parameter>& parameters) {
  return functions(inputs, [&](Stream& s) { return std::vector<Tensor>{forward(s)}; }, std::move(backward),
                   parameters)[0];
}

}  // namespace sherd::nn
