// Model and optimizer as named tensors in host memory, both ways.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <sherd/checkpoint/model_state.h>

namespace sherd {

/// Elements of one tensor: all of it, or some boxes.
struct HostTensor {
  DType dtype = DType::f32;
  /// Shape of the unsharded tensor; [1] for a scalar, as in checkpoints.
  Shape shape = {};
  /// Boxes of the whole tensor. Box after box, each in row-major order, gives the elements of `data`.
  std::vector<Box> boxes = {};
  std::vector<std::byte> data = {};

  /// Returns all of a tensor, in row-major order. @throws ShapeMismatch unless `values` has as many elements.
  template <class T>
  [[nodiscard]] static HostTensor of(Shape shape, std::span<const T> values) {
    return of(dtype_of<T>(), std::move(shape), std::as_bytes(values));
  }
  [[nodiscard]] static HostTensor of(DType dtype, Shape shape, std::span<const std::byte> values);

  int64_t elements() const { return static_cast<int64_t>(data.size()) / size_of(dtype); }
  /// Returns whether `data` is all of it, in row-major order.
  bool whole() const;
  /// @throws ShapeMismatch when T is not the dtype.
  template <class T>
  std::span<const T> values() const {
    require(dtype_of<T>());
    return {reinterpret_cast<const T*>(data.data()), data.size() / sizeof(T)};
  }
  template <class T>
  std::span<T> values() {
    require(dtype_of<T>());
    return {reinterpret_cast<T*>(data.data()), data.size() / sizeof(T)};
  }

 private:
  void require(DType wanted) const;
};

struct StateDict {
  /// Parameters (master weights, bf16 where FullyShardOptions::master is bf16, else f32) and persistent buffers (in their dtype) by full name.
  std::map<std::string, HostTensor> model = {};
  /// State by the names of checkpoints, "optim.state.NAME.KEY"; state in 8 bits as f32 values.
  std::map<std::string, HostTensor> optimizer = {};
  /// Optimizer::steps().
  int64_t steps = 0;
};

/// Distribution of the dict over ranks.
enum class DictKind {
  on_first,  // all of every tensor on world rank 0; the other ranks' dicts are empty
  on_all,    // all of every tensor on every rank
  sharded,   // each rank has its pieces of parameters and state, and all of buffers and counters
};

/// Returns the state of the model, and of the optimizer if it is not null, after all operations queued on the
/// compute stream so far.
///
/// Collective over the root's mesh; the same kind on every rank. Blocks the host. Beside the dict a rank
/// holds at most one more tensor on the host (rank 0 of on_first) and one on the device. For ignored
/// parameters and buffers, which may differ between ranks, on_first and on_all take world rank 0's values;
/// sharded takes each rank's own.
/// @throws ShapeMismatch on every rank when ranks pass different kinds; NotSupported when a unit's mesh
/// orders the ranks differently from the root's.
[[nodiscard]] StateDict state_dict(ModuleBase& root, const Optimizer* optimizer, DictKind kind);

/// Fills a model and, unless options.optimizer is false, its optimizer from dicts of that kind. on_first is
/// sent from rank 0 in pieces of 16 MiB. on_all is cut by each rank from its own dict. sharded requires equal
/// layouts, ranks and strategies (otherwise use a full dict, or a checkpoint, which reshards). f32 is also
/// read from bf16 and f16.
///
/// Collective over the root's mesh, the same kind and options on every rank, also when it fails: every rank
/// then throws the same error, before anything is changed.
/// @returns the names that options allowed to be missing or unexpected; `training` has the steps alone.
/// @throws InvalidArgument listing *all* missing, unexpected and mismatching names; ShapeMismatch when ranks
/// pass different kinds, or dicts (on_all, sharded) of different names.
LoadReport load_state_dict(ModuleBase& root, Optimizer* optimizer, const StateDict& dict, DictKind kind,
                           const LoadOptions& options = {});

}  // namespace sherd
