// Base of recorders of forwards, such as the tape.
#pragma once

namespace sherd {

/// Records a forward for its backward. A model's units share the recorder of the innermost running forward or backward
/// (Unit::exchange_recorder()). Functions find it by their parameters (Parameter::recorder()).
class ForwardRecorder {
 public:
  ForwardRecorder() = default;
  virtual ~ForwardRecorder() = default;
  ForwardRecorder(const ForwardRecorder&) = delete;
  ForwardRecorder& operator=(const ForwardRecorder&) = delete;
};

}  // namespace sherd
