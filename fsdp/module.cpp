#include <sherd/fsdp/module.h>

#include <sherd/fsdp/unit.h>

namespace sherd {

Tensor Module::operator()(const Tensor& x) {
  if (!unit()) return forward(x);
  ForwardScope scope(*unit(), training());
  Tensor y = forward(x);
  scope.end();
  return y;
}

Tensor Module::run_backward(const Tensor& dy) {
  if (!unit()) return backward(dy);
  BackwardScope scope(*unit());
  Tensor dx = backward(dy);
  scope.end();
  return dx;
}

}  // namespace sherd
