// Autograd tape.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <sherd/fsdp/parameter.h>
#include <sherd/fsdp/recorder.h>
#include <sherd/fsdp/unit.h>
#include <sherd/nn/gradient.h>
#include <sherd/nn/var.h>

namespace sherd::nn {

namespace detail {
class ArgumentStreams;
}

/// Arguments of a function's backward.
class BackwardCall {
 public:
  /// @param sums gradients of the inputs so far, or none.
  BackwardCall(std::span<Gradient> outputs, std::span<Gradient> sums, std::span<const Var> inputs)
      : outputs_(outputs), sums_(sums), inputs_(inputs) {}
  /// Returns the gradient of output i; not defined() when the objective does not depend on it. At least one
  /// is defined.
  const Gradient& output(size_t i = 0) const { return outputs_[i]; }
  /// Moves the same out: its memory may be overwritten where the tensor is then its sole owner.
  Gradient take_output(size_t i = 0) const { return std::exchange(outputs_[i], {}); }
  /// Moves out what functions behind this one have added to the gradient of input i, for a kernel that adds to it: the
  /// function returns the sum. Undefined where that is nothing or a constant.
  Tensor take_sum(size_t i) const {
    return sums_[i].constant() ? Tensor() : std::exchange(sums_[i], {}).tensor();
  }
  /// Returns whether a gradient of input i is needed; others may be left out.
  bool wants(size_t i) const { return inputs_[i].requires_grad(); }
  size_t inputs() const { return inputs_.size(); }

 private:
  std::span<Gradient> outputs_, sums_;
  std::span<const Var> inputs_;
};

/// Backward of a function: adds to the gradients of parameters (Parameter::grad_for_overwrite()) and returns
/// one gradient for each input, by the order of inputs; not defined() where it is zero or unused.
/// It queues its operations on the compute stream and owns the data it needs from forward.
using Backward = std::function<std::vector<Gradient>(const BackwardCall&)>;

/// Autograd tape: the operations of one or several forwards in the order in which they ran, and one backward
/// through all of them. The training program owns one or more for each rank. No tape is global: values carry
/// the tape that they are on.
///
///    nn::Tape tape;
///    for (each batch) {
///      nn::Var loss = model(tape.input(tokens), targets);
///      tape.backward(loss);     // the tape is empty again
///      optimizer.step(lr);
///    }
///
/// backward() runs through the whole tape, last operation first, and drops each after use. So a tape has one
/// backward: objectives of one graph are added up, and graphs with separate backwards (the two players of a
/// GAN) have separate tapes. Saved activations are freed on the way. Gradients are constants: an objective of
/// gradients alone is refused by backward(), as the tape has no second derivatives.
///
/// Wrapped modules (fully_shard) unshard their unit for the part of the backward that belongs to one of their
/// calls: from the first operation that has a gradient until all operations of the call are done. The unit's
/// gradients are reduced after the last of its calls in this backward. While others are pending they stay
/// open, which holds one gradient buffer of the unit (f32, all of its parameters) until then.
///
/// Several tapes may record forwards of one model before its optimizer steps. The gradients of the step are
/// final when the last of these forwards has had its backward, or was dropped by clear(). Backward through a
/// call of a wrapped module from before the latest step or reset_step() throws, since the weights that it
/// used have changed.
///
/// An exception that leaves backward() leaves the tape empty. An exception that leaves a wrapped module's
/// forward drops the operations of that call. It ends the step of every model on the tape: clear() and
/// reset_step(model) make both usable again. A step that is dropped for other reasons needs both as well.
class Tape : public ForwardRecorder {
 public:
  /// For errors of units: what to do about a recorded forward whose backward is still to come.
  static constexpr const char* kHowToDrop =
      "run backward() of the nn::Tape that recorded it (a second tape, if the tape of this step has had its "
      "backward), or "
      "clear() or destroy that tape; evaluate inside nn::NoGrad";

  Tape() = default;
  /// Same as clear().
  ~Tape() override;

  /// Returns a value that needs no gradient (for example a batch) and starts recording: values computed from
  /// it are on this tape.
  Var input(Tensor value);
  /// Returns a value that needs a gradient: see gradient(). @throws InvalidArgument inside a recomputed
  /// scope.
  Var leaf(Tensor value);
  /// Returns the gradient that the latest backward gave to a leaf; undefined when it gave none. Valid until
  /// the next backward() or clear(). Read it only: other leaves may share its memory.
  Tensor gradient(const Var& leaf) const;

  /// Adds the gradients of `objective` to all parameters from which it was computed. Queues the operations
  /// and returns.
  /// @param seed the gradient of the objective's elements. Not defined(): 1, for an objective of one element;
  /// one of several elements needs a seed. Gradient::constant(1) differentiates the sum of the elements.
  /// @throws InvalidArgument when the objective has other than one element and no seed, is on another tape or
  /// none, was computed before the latest backward() or clear(), or depends on nothing that has a gradient;
  /// ShapeMismatch for a seed, or a gradient that a function returns, of another shape or dtype than its value.
  void backward(const Var& objective, Gradient seed = {});
  /// Clears the tape, and drops the units' pending backwards; nothing is reduced. Without effect inside a
  /// module's forward or a function's backward on this tape.
  void clear() noexcept;
  /// Returns the number of operations that wait for backward.
  int64_t size() const { return static_cast<int64_t>(nodes_.size()); }
  /// Returns whether functions are recorded: not inside NoGrad, nor in the first run of recompute().
  bool recording() const { return paused_ == 0 && scope_ == nullptr; }
  /// Returns whether the running code is part of training: false inside NoGrad alone.
  bool training() const { return paused_ == 0; }

  /// For functions: notes that `outputs` came of `inputs`, all of which are on this tape or on none, and perhaps of
  /// parameters, and returns them as values. They need a gradient when an input does or `trains_parameters`; else
  /// nothing is noted and `backward` is dropped. Errors name `function`, a string literal.
  std::vector<Var> record(std::vector<Var> inputs, std::vector<Tensor> outputs, bool trains_parameters,
                          Backward backward, const char* function = __builtin_FUNCTION());

  /// For modules: the operations between the two belong to one call of the unit, between its pre_ and
  /// post_forward(). Calls nest.
  void begin_call(std::shared_ptr<Unit> unit);
  void end_call();
  /// Instead of end_call() when an exception has ended the forward: its operations are dropped.
  void cancel_call() noexcept;
  /// Returns the innermost unit whose forward runs on this tape; null outside of forwards.
  Unit* running_unit() const;
  /// Returns whether the running code is a recomputation inside backward.
  bool recomputing() const { return recomputing_; }

  /// See nn::recompute(): runs `forward` without keeping what functions inside leave for backward. When backward
  /// comes to one of the values that were made inside, `again` is run, recorded, and has to do the same.
  /// Just runs `forward` when this tape does not record.
  /// @param offloaded values among what `again` owns that rest on the host between the two (Place::host); not inside of a
  /// scope's second run
  void recompute(const std::function<void()>& forward, std::function<void()> again,
                 const std::vector<Var*>& offloaded = {});
  /// For functions that advance a state of the caller's (counters of random numbers): before the first that does so
  /// in a scope that is recomputed. `make_exchange` returns what exchanges the state for what it is now; that is called
  /// before and behind the scope's second run. Without effect outside of scopes.
  void repeat(const void* state, const std::function<std::function<void()>()>& make_exchange);

 private:
  friend class NoGrad;
  struct Value {
    Shape shape;
    DType dtype;
    Device* device;
    bool leaf;
    Gradient gradient;
  };
  // A unit's forward, and the step of its model in which that ran.
  struct Forward {
    std::shared_ptr<Unit> unit;
    uint64_t step = 0;
    static Forward now(std::shared_ptr<Unit> unit);
    // Its backward is due no more: the weights have changed since, or the step was reset.
    bool stale() const;
    void give_up() noexcept;
    bool operator==(const Forward&) const = default;
  };
  struct Node {
    enum class Kind { operation, begin_call, end_call, recompute } kind;
    std::vector<Var> inputs = {};
    int64_t first_output =
        0;  // the values that it made: of an operation its own, of a call or scope all inside
    int64_t end_output = 0;
    Backward backward = {};
    Forward call = {};
    std::function<void()> again = {};                          // of a scope
    std::shared_ptr<detail::ScopeArguments> arguments = {};    // of a scope, on the host; null: none
    std::vector<Forward> hidden = {};                          // the calls inside of it, in order
    std::map<const void*, std::function<void()>> states = {};  // exchanged around the second run
    const char* function = nullptr;                            // of an operation
  };
  // The first run of recompute(): calls inside are counted, their operations are not kept.
  struct Scope {
    struct Call {
      Forward forward;
      int64_t first_value;
      bool ended;
    };
    std::vector<Call> calls;  // in the order in which they began
    std::map<const void*, std::function<void()>> states;
    Call& innermost();  // of those that have not ended
  };
  class Again;
  class Pass;
  Var add_value(Tensor value, bool leaf);
  /// @param function the one whose backward returned the gradient; null: the caller of backward() gave it
  /// @throws ShapeMismatch for a gradient that is not like the value.
  static void check(const Gradient& gradient, const Value& value, const char* function);
  /// No backward of the calls that end behind this node comes.
  void give_up_from(size_t begin) noexcept;
  /// Removes the call that ends, since nothing inside has a gradient.
  void leave_out(const Forward& call);
  void forget();
  /// Returns the offloaded arguments of a scope that was just recorded, and sends those of the scope before to the host.
  std::shared_ptr<detail::ScopeArguments> keep(const std::vector<Var*>& offloaded);
  /// Fetches the arguments of a scope, and begins to fetch those of the scope before it.
  void fetch(detail::ScopeArguments& arguments);

  std::shared_ptr<detail::ArgumentStreams> copies_;         // made by the first offloaded scope
  std::weak_ptr<detail::ScopeArguments> latest_, leaving_;  // on the device; on its way to the host
  std::vector<Node> nodes_;
  std::vector<Value> values_;
  std::vector<size_t> open_calls_;                  // their begin_call nodes
  std::vector<std::pair<int64_t, Tensor>> leaves_;  // after a backward
  int64_t run_ = 1;
  int paused_ = 0;
  Scope* scope_ = nullptr;    // the outermost first run of recompute() that is open
  bool running_ = false;      // a backward
  bool recomputing_ = false;  // inside of it, a scope's second run
};

/// Scope in which nothing is recorded on the tape, and modules run without saving activations.
class NoGrad {
 public:
  explicit NoGrad(Tape& tape) : tape_(tape) { ++tape_.paused_; }
  ~NoGrad() { --tape_.paused_; }
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  Tape& tape_;
};

/// Calls objective.tape()->backward(objective), for one element. @throws InvalidArgument for a value without a tape.
void backward(const Var& objective);

}  // namespace sherd::nn
