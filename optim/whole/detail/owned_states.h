// State of whole matrices on the rank that computes them. Private to optim/.
#pragma once

#include <cstddef>
#include <vector>

#include <sherd/kernels/device/device.h>
#include <sherd/optim/rest_windows.h>
#include <sherd/optim/state.h>
#include <sherd/optim/whole/detail/team.h>
#include <sherd/optim/whole/matrix_rule.h>

namespace sherd {

/// Form of a parameter's state.
struct StateForm {
  DType dtype = DType::f32;  // of what is elementwise
  Place place = Place::device;
  RestWindows* windows = nullptr;
};

class OwnedStates {
 public:
  /// Queues the tensors' zeros. Makes one tensor for each parameter, stack (LogicalMatrix::stack) and key, of the matrices
  /// that this rank computes.
  /// @param params of the team, in its order, with the forms of their state.
  /// @throws InvalidArgument naming all invalid keys and shapes.
  OwnedStates(Device& device, const std::vector<Parameter>& params, const std::vector<StateForm>& forms,
              const MatrixTeam& team, const MatrixRule& rule);

  /// Returns whether any matrix of the team has state, on whatever rank.
  bool any() const { return !all_.empty(); }
  /// Returns the tensors of a matrix that this rank computes, shaped as MatrixRule::state().
  std::vector<Tensor> of(int matrix) const;
  const std::vector<OwnedState>& all() const { return all_; }

 private:
  struct Place {
    size_t first = 0, count = 0;  // its tensors in all_
    size_t index = 0;             // among the matrices on this rank that share them
  };
  /// Makes the tensors of the matrices of one parameter and one stack.
  void add(Device& device, const Parameter& p, const StateForm& form, const MatrixTeam& team,
           const std::vector<int>& matrices, const std::vector<MatrixStateSpec>& specs);

  std::vector<OwnedState> all_;
  std::vector<Shape> shapes_;  // of one matrix, for each of all_
  std::vector<Place> places_;  // of each matrix of the team
};

}  // namespace sherd
