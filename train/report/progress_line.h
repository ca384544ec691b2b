// Progress line: redrawn on a terminal, plain lines elsewhere.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>

namespace sherd {

/// Display of progress; the caller decides when it is updated.
class ProgressLine {
 public:
  enum class Mode { bar, lines, off };

  /// Returns the mode for a descriptor: a bar on a terminal, lines elsewhere, off when `quiet`.
  static Mode mode_of(int descriptor, bool quiet);
  /// Returns the width of the terminal now; 80 when unknown.
  static int columns_of(int descriptor);

  /// `out` outlives this. The destructor writes nothing: call clear() or finish() to end a bar.
  ProgressLine(std::ostream& out, Mode mode) : out_(out), mode_(mode) {}
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  Mode mode() const { return mode_; }
  /// Draws `text` followed by a bar that is done / total full, as wide as `columns` allow, over the current
  /// line. Without room for a bar only the text, cut to the width.
  void draw(const std::string& text, int64_t done, int64_t total, int columns);
  /// Writes a line of its own, replacing a drawn bar; nothing when off.
  void line(const std::string& text);
  /// Returns whether a bar is drawn.
  bool drawn() const { return drawn_; }
  /// Removes the bar, if one is drawn.
  void clear();
  /// Keeps the bar, if one is drawn, and ends its line, so that later output starts on a new line.
  void finish();

 private:
  std::ostream& out_;
  Mode mode_;
  bool drawn_ = false;
};

}  // namespace sherd
