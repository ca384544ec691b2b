// Loss curve as a picture.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace sherd {

/// Draws losses of steps 1, 2, ... and (step, held-out loss) pairs as the text of an SVG picture with axes,
/// legend and both curves. Non-finite values are left out; above 1000 steps neighbours are averaged.
std::string draw_losses(const std::vector<double>& losses,
                        const std::vector<std::pair<int64_t, double>>& held_out, const std::string& unit);

/// Writes the picture to a file. @throws IoError.
void write_loss_svg(const std::string& path, const std::vector<double>& losses,
                    const std::vector<std::pair<int64_t, double>>& held_out, const std::string& unit);

}  // namespace sherd
