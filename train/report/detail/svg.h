// SVG pictures: frame, text, ticks. Private to the repository.
#pragma once

#include <string>

namespace sherd::svg {

/// Returns the whole file: a white page of that many pixels with `body` on it.
std::string page(double width, double height, int font_size, const std::string& body);

/// Text at a point. `anchor`: start, middle or end. `attributes` begin with a blank. Markup in the text is escaped, control
/// characters become '?'.
std::string text(double x, double y, const char* anchor, const std::string& text,
                 const char* attributes = "");

/// Distance between the ticks of an axis: 1, 2 or 5 times a power of ten.
struct Ticks {
  double distance = 1;
  int decimals = 0;  // of the labels

  /// About `count` ticks over `span` > 0.
  Ticks(double span, double count);
  std::string label(double value) const;
};

}  // namespace sherd::svg
