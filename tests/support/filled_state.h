// Models whose elements all differ, to see where elements end up.
#pragma once

#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include <sherd/fsdp/weights_change.h>
#include <sherd/kernels/random/random.h>
#include <sherd/optim/optimizer.h>

#include "support/toy_model.h"

namespace sherd::test {

/// Returns the bits of element `index` of an unsharded tensor: any bits, NaNs, zeros of both signs and
/// denormals included.
inline uint32_t bits_of(const std::string& tensor, int64_t index, uint64_t salt) {
  const uint64_t key = hash64(salt, tensor);
  const auto words = philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0},
                                {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
  return words[0];
}

/// One flat local piece of a whole tensor.
struct Piece {
  std::string name;
  std::vector<GlobalRun> runs;
  Tensor local;
};

inline std::vector<Piece> pieces_of(ModuleBase& root, const Optimizer* optimizer) {
  std::vector<Piece> pieces;
  const auto add = [&](const std::string& name, const Parameter& p, const Tensor& local) {
    pieces.push_back({name, p.global_runs(p.shard_range()), local});
  };
  for (auto& [name, p] : root.named_parameters()) add(name, p, p.shard());
  if (!optimizer) return pieces;
  for (auto& s : optimizer->state()) add(s.param.name() + "/" + s.key, s.param, s.local);
  return pieces;
}

/// Gives every element of weights and states the value that its name, index and `salt` decide.
inline void fill_state(ModuleBase& root, Optimizer* optimizer, uint64_t salt) {
  ShardRuntime& runtime = runtime_of(root);
  WeightsChange change(runtime);
  for (const Piece& piece : pieces_of(root, optimizer)) {
    std::vector<uint32_t> values;
    for (const GlobalRun& run : piece.runs)
      for (int64_t i = 0; i < run.count; ++i)
        values.push_back(bits_of(piece.name, run.global.value + i, salt));
    ops::copy_from_host(runtime.device().compute(), piece.local, values.data(), piece.local.nbytes());
  }
  int64_t n = static_cast<int64_t>(salt % 1000);
  if (optimizer)
    for (auto& c : optimizer->counters())
      ops::fill(runtime.device().compute(), c.value, static_cast<double>(++n));
  runtime.device().compute().synchronize();
  change.end();
}

/// Names of local pieces (and counters) that do not hold exactly that.
inline std::vector<std::string> wrong_state(ModuleBase& root, Optimizer* optimizer, uint64_t salt) {
  std::vector<std::string> wrong;
  Stream& stream = runtime_of(root).device().compute();
  for (const Piece& piece : pieces_of(root, optimizer)) {
    std::vector<uint32_t> values(static_cast<size_t>(piece.local.numel()));
    if (!values.empty()) ops::copy_to_host(stream, values.data(), piece.local);
    size_t at = 0;
    bool same = true;
    for (const GlobalRun& run : piece.runs)
      for (int64_t i = 0; i < run.count; ++i)
        same = values[at++] == bits_of(piece.name, run.global.value + i, salt) && same;
    if (!same || at != values.size()) wrong.push_back(piece.name);
  }
  int64_t n = static_cast<int64_t>(salt % 1000);
  if (optimizer)
    for (auto& c : optimizer->counters())
      if (ops::to_floats(stream, c.value)[0] != static_cast<float>(++n))
        wrong.push_back(c.param.name() + "/" + c.key);
  return wrong;
}

/// Parameters of awkward shapes in a root and two inner units. Never run.
class Awkward : public ModuleBase {
 public:
  Awkward() {
    for (size_t i = 0; i < 2; ++i) child("inner" + std::to_string(i), inner_[i]);
    param("scalar", {}, constant(1));
    param("one", {1}, constant(1));
    param("vector", {7}, normal(1));
    param("wide.weight", {3, 19}, normal(1));
  }
  void wrap(const DeviceMesh& mesh, const FullyShardOptions& options) {
    for (auto& i : inner_) fully_shard(i, mesh, options);
    fully_shard(*this, mesh, options);
  }

 private:
  struct Inner : ModuleBase {
    Inner() {
      param("tall.weight", {17, 4}, normal(1));
      param("small.weight", {2, 2}, normal(1));
      param("gain", {5}, normal(1));
      param("stack.weight", {2, 3, 5}, normal(1));
      param("odd.weight", {29, 13}, normal(1));
    }
  };
  Inner inner_[2];
};

}  // namespace sherd::test
