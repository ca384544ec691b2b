// Device memory through which updates pass state in 8 bits, and what rests on the host.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <sherd/kernels/device/device.h>
#include <sherd/kernels/device/tensor.h>
#include <sherd/optim/state.h>

namespace sherd {

/// Two windows of device memory, used in turn. While an update computes in one, one stream fetches into the other, and another
/// stores what it held. Events alone order them; no thread that queues waits. State in 8 bits is f32 in a window. Where nothing
/// rests on the host, one window is enough. One rank's thread uses it.
///
/// One optimizer has one, for all of its rules. A rule announces what it has on the host or in 8 bits when it is made, and
/// passes each step's segments through a RestPass.
class RestWindows {
 public:
  /// @param bytes of a window: less where less passes, more where one piece needs it. 0: an eighth of what passes, from 1 to 64 MiB,
  /// to 32 MiB where nothing is on the host, of a CPU to 8
  /// @throws InvalidArgument for fewer than 1024, else.
  RestWindows(Device& device, int64_t bytes);
  ~RestWindows();

  /// Announces state that rests on the host or in 8 bits and passes in pieces of any size; other state is ignored.
  void announce(const RestState& state);
  /// Announces that such tensors pass together, each whole.
  void announce_together(const std::vector<Tensor>& tensors);
  /// Allocates the windows, if anything was announced. Once, after all rules were made. @throws InvalidArgument for windows so small
  /// that a step would take more than a million.
  void allocate();
  /// Begins the passes of a step. What rests on the host is fetched once the device has reached `ready`, also while the
  /// compute stream is not there yet.
  void begin_step(const Event& ready);
  /// Lets the passes that follow fetch what the step has stored before. Otherwise no pass of a step does.
  void fetch_again();
  /// Makes `compute` wait until everything is stored.
  void end_step(Stream& compute);
  /// Returns the bytes of a window; 0 without any.
  int64_t window_bytes() const { return bytes_; }

 private:
  friend class RestPass;
  struct Window {
    Tensor memory;
    Event free;  // what it held is stored
  };
  Device& device_;
  int64_t asked_, bytes_ = 0, total_ = 0, largest_ = 0;
  bool on_host_ = false;
  Window windows_[2];
  int open_ = 0;
  std::unique_ptr<Stream> in_, out_;
};

/// The passes of a step. The compute stream waits for their stores also where an exception ends them.
class [[nodiscard]] RestStep {
 public:
  /// @param windows null: does nothing
  RestStep(RestWindows* windows, Stream& compute, const Event& ready) : windows_(windows), compute_(compute) {
    if (windows_ != nullptr) windows_->begin_step(ready);
  }
  ~RestStep();
  RestStep(const RestStep&) = delete;
  RestStep& operator=(const RestStep&) = delete;
  void end() {
    if (RestWindows* const windows = std::exchange(windows_, nullptr)) windows->end_step(compute_);
  }

 private:
  RestWindows* windows_;
  Stream& compute_;
};

/// One pass over segments: values on the device are used where they are, those on the host and in 8 bits in the windows, as many
/// at a time as fit. Where nothing passes windows it runs `issue` once.
class RestPass {
 public:
  /// @param windows null: nothing is on the host or in 8 bits
  /// @param issue queues the operations on what was opened since it ran last, on `compute`, and forgets it
  /// @param skip of the operations: with other than 0 state in 8 bits stays as it is
  RestPass(RestWindows* windows, Stream& compute, std::function<void()> issue, Tensor skip = {});

  /// Returns how many of `wanted` consecutive elements of these, or undefined ones, can be opened now: at least 1, whole blocks of
  /// state in 8 bits, all of them where nothing passes windows. May run `issue`.
  int64_t fit(std::initializer_list<RestState> states, int64_t wanted);
  /// Calls f(begin, count) for consecutive parts of [begin, begin + count) that can be opened, one after the other.
  template <class F>
  void parts(std::initializer_list<RestState> states, int64_t begin, int64_t count, F f) {
    for (int64_t end = begin + count, n = 0; begin < end; begin += n) f(begin, n = fit(states, end - begin));
  }
  /// Same as fit() for tensors that are opened whole: makes room for all of them.
  void make_room(const std::vector<Tensor>& tensors);
  /// Returns elements [begin, begin + count) in device memory; undefined for an undefined tensor. @param stored: the pass changes them
  Tensor open(const Tensor& t, int64_t begin, int64_t count, bool stored);
  /// The same of state, f32 where it rests in 8 bits. @param updates of `param`: Noise::count of its rounding
  Tensor open(const RestState& state, int64_t begin, int64_t count, bool stored, const Parameter& param,
              const Tensor& updates);
  /// Runs `issue` for what is open. The last call of every pass, also of one that opened nothing.
  void finish();

 private:
  void close();
  /// Returns that many bytes of the open window.
  Tensor take(int64_t bytes);

  RestWindows* windows_;
  Stream& compute_;
  const std::function<void()> issue_;
  const Tensor skip_;
  int64_t used_ = 0;
  struct Stored {
    Tensor rest, window;
  };
  std::vector<Stored> stored_;
  std::vector<BlockSegment> read_, written_;  // in 8 bits
};

/// Returns state at a place, zero. @param key as StateTensor::key
[[nodiscard]] Tensor make_state(Device& device, Place place, int64_t count, DType dtype,
                                std::string_view key);

}  // namespace sherd
