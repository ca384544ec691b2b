#include <sherd/optim/update_settings.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <utility>

namespace sherd {

std::vector<std::string> problems_of(const UpdateSettings& s) {
  std::vector<std::string> wrong;
  const auto check = [&](const char* what, const std::optional<double>& value) {
    if (value && !(*value >= 0 && std::isfinite(*value)))
      wrong.push_back(fmt::format("{} {} must be finite and not negative", what, *value));
  };
  check("lr_factor", s.lr_factor);
  check("weight decay", s.weight_decay);
  for (const auto& [name, beta] : {std::pair("beta1", s.beta1), std::pair("beta2", s.beta2)})
    if (beta && !(*beta >= 0 && *beta < 1))
      wrong.push_back(fmt::format("{} {} must lie in [0, 1)", name, *beta));
  check("eps", s.eps);
  if (s.state_dtype && !is_state_dtype(*s.state_dtype))
    wrong.push_back(fmt::format("state dtype {} (use f32, bf16 or i8)", name_of(*s.state_dtype)));
  return wrong;
}

std::string to_string(const UpdateSettings& s) {
  std::vector<std::string> parts;
  const auto add = [&](const char* what, const std::optional<double>& value) {
    if (value) parts.push_back(fmt::format("{} {}", what, *value));
  };
  if (s.lr_factor != 1) add("lr x", s.lr_factor);
  add("weight decay", s.weight_decay);
  add("beta1", s.beta1);
  add("beta2", s.beta2);
  add("eps", s.eps);
  if (s.master) parts.push_back(fmt::format("master {}", name_of(*s.master)));
  if (s.state_dtype) parts.push_back(fmt::format("state {}", name_of(*s.state_dtype)));
  for (const auto& [what, place] : {std::pair("master", s.master_place), std::pair("state", s.state_place)})
    if (place) parts.push_back(fmt::format("{} on the {}", what, name_of(*place)));
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace sherd
