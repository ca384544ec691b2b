// Loss curve as a picture.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace sherd {

/// Losses of a run in bounded memory: at most kMost points, each the average of neighbouring steps.
class LossCurve {
 public:
  static constexpr size_t kMost = 1000;

  /// Adds the loss of a step; steps ascend. Non-finite losses are left out.
  void add(int64_t step, double loss);
  /// Returns (step, loss) of each point: averages over 1, 2, 4, ... steps.
  std::vector<std::pair<double, double>> points() const;
  /// Returns the last step added; 0 when empty.
  int64_t last_step() const { return last_step_; }

 private:
  struct Run {
    int64_t index = 0, count = 0;
    double steps = 0, losses = 0;  // sums
  };
  std::vector<Run> runs_;
  int64_t length_ = 1;  // steps of a run
  int64_t last_step_ = 0;
};

/// Draws losses and held-out losses as the text of an SVG picture with axes, legend and both curves.
std::string draw_losses(const LossCurve& losses, const LossCurve& held_out, const std::string& unit);

/// Writes the picture to a file. @throws IoError.
void write_loss_svg(const std::string& path, const LossCurve& losses, const LossCurve& held_out,
                    const std::string& unit);

}  // namespace sherd
