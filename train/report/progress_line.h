// One line that tells how far something is: redrawn on a terminal, plain lines elsewhere.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>

namespace sherd {

/// How progress is shown; when it is due is the business of who shows it.
class ProgressLine {
 public:
  enum class Mode { bar, lines, off };

  /// For a descriptor as it is: a bar on a terminal, lines elsewhere, nothing when `quiet`.
  static Mode mode_of(int descriptor, bool quiet);
  /// Of the terminal, now; 80 where that is not known.
  static int columns_of(int descriptor);

  /// `out` outlives this. Nothing is written at the end: clear() and finish() end a bar.
  ProgressLine(std::ostream& out, Mode mode) : out_(out), mode_(mode) {}
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  Mode mode() const { return mode_; }
  /// Draws `text` and behind it a bar that is done / total full, as wide as `columns` leave room for, over
  /// the line that is there. Without room for a bar the text alone, cut to the width.
  void draw(const std::string& text, int64_t done, int64_t total, int columns);
  /// Writes a line of its own, in place of a bar that is drawn; nothing when off.
  void line(const std::string& text);
  /// Whether a bar stands on the line.
  bool drawn() const { return drawn_; }
  /// Takes the bar away, if one is drawn.
  void clear();
  /// Leaves the bar, if one is drawn, and ends its line, so that what is printed next starts on its own.
  void finish();

 private:
  std::ostream& out_;
  Mode mode_;
  bool drawn_ = false;
};

}  // namespace sherd
