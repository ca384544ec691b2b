// Output streams of a command of the program.
#pragma once

#include <ostream>
#include <string>

#include <sherd/base/error.h>

#include "progress.h"

namespace sherd::tools {

struct Console {
  /// Results.
  std::ostream& out;
  /// Progress and hints.
  std::ostream& err;
  Progress::Mode progress = Progress::Mode::off;

  /// @throws IoError when results could not be written.
  void finish() const {
    if (!out.flush()) throw IoError("the output could not be written; is the disk full, or the reader gone?");
  }
};

}  // namespace sherd::tools
