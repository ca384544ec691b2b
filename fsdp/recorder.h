// Base of what records forwards for a backward.
#pragma once

namespace sherd {

/// A tape, say. Units hold the one that records the innermost forward or backward of their model that runs
/// (Unit::exchange_recorder()), so that functions find it by their parameters (Parameter::recorder()).
class ForwardRecorder {
 public:
  ForwardRecorder() = default;
  virtual ~ForwardRecorder() = default;
  ForwardRecorder(const ForwardRecorder&) = delete;
  ForwardRecorder& operator=(const ForwardRecorder&) = delete;
};

}  // namespace sherd
