// Modules without a forward for their call, each of which is one error (no_forward.sh).
#include <sherd/nn/module.h>

using sherd::nn::Module;
using sherd::nn::Var;

struct Without : Module<Without> {};
struct OfTwo : Module<OfTwo> {
  Var forward(const Var& x, const Var&) { return x; }
};
class Private : public Module<Private> {
  Var forward(const Var& x) { return x; }
};

void call(const Var& x) {
  Without without;
  const auto a = without(x);
  OfTwo of_two;
  const auto b = of_two(x);
  Private private_one;
  const auto c = private_one(x);
}
