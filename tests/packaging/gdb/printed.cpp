// Values for the gdb printers: stop() has a tensor, a sharded tensor and parameters of a sharded module.
#include <sherd/sherd.h>

using namespace sherd;

struct Net : nn::Module<Net> {
  Parameter w = param("w", {4, 3}, constant(0.5f));
  nn::Var forward(const nn::Var& x) { return nn::linear(x, w); }
};

static int calls = 0;
__attribute__((noinline)) void stop(const Tensor& tensor, const Tensor& half, const DTensor& sharded,
                                    const Parameter& described, const Parameter& parameter) {
  calls += tensor.defined() && half.defined() && sharded.shape().size() == 2 && described.defined() &&
           parameter.sharded();
}

int main() {
  launch(2, [](RankContext& rank) {
    Stream& s = rank.device->compute();
    const Tensor tensor = Tensor::empty(*rank.device, {2, 4}, DType::f32, "data");
    const Tensor half = Tensor::empty(*rank.device, {2}, DType::bf16, "data");
    ops::fill(s, tensor, 1.5);
    ops::fill(s, half, -3);
    const DeviceMesh mesh(rank.world, {{"shard", 2}});
    const DTensor sharded = DTensor::distribute(s, mesh, tensor, {Shard(0)});
    const Net described;
    Net net;
    (void)route(net, {.optimizer = Algorithm::adamw});
    fully_shard(net, mesh);
    s.synchronize();
    if (rank.world->rank() == 0) stop(tensor, half, sharded, described.w, net.w);
    rank.world->barrier(s);
    s.synchronize();
  });
  return calls == 1 ? 0 : 1;
}
