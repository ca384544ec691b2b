// Exceptions of sherd. Every message names the place, repeats the invalid values and says what to do.
#pragma once

#include <stdexcept>
#include <string>

namespace sherd {

/// Root of everything sherd throws on purpose.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A value the caller passed (an option, an argument, a configuration) can never be right.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// Shapes, element counts or dtypes of tensors that must agree do not.
class ShapeMismatch : public Error {
 public:
  using Error::Error;
};

/// The request is meaningful but this build of sherd does not implement it.
class NotSupported : public Error {
 public:
  using Error::Error;
};

/// The backend was left out at compile time; the message names the CMake option that turns it on.
class NotCompiled : public Error {
 public:
  using Error::Error;
};

/// An allocation would pass the device's memory limit; the message holds the table of named allocations.
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

/// A file or folder could not be opened, read or written.
class IoError : public Error {
 public:
  using Error::Error;
};

/// A collective failed: timeout, mismatched calls, or a failed peer (the first cause is quoted).
class CommError : public Error {
 public:
  CommError(const std::string& what, int failed_rank) : Error(what), failed_rank_(failed_rank) {}
  explicit CommError(const std::string& what) : CommError(what, -1) {}
  /// World rank of the first failure, or -1 when unknown.
  int failed_rank() const { return failed_rank_; }

 private:
  int failed_rank_;
};

/// A CUDA runtime or library call failed.
class CudaError : public Error {
 public:
  using Error::Error;
};

/// A tensor file or manifest is damaged or hostile.
class CorruptCheckpoint : public Error {
 public:
  using Error::Error;
};

}  // namespace sherd
