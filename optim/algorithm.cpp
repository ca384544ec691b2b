#include <sherd/optim/algorithm.h>

#include <fmt/format.h>

#include <ostream>

namespace sherd {

void Algorithm::refuse(std::string_view name) {
  throw InvalidArgument(fmt::format(
      "'{}' cannot be the name of an optimizer; use 1 to 31 lower-case letters, digits and underscores",
      name));
}

std::string name_of(const Algorithm& a) { return std::string(a.name()); }

std::string title_of(const Algorithm& a) {
  if (a == Algorithm::adamw) return "AdamW";
  if (a == Algorithm::muon) return "Muon";
  return name_of(a);
}

std::ostream& operator<<(std::ostream& out, const Algorithm& a) { return out << a.name(); }

}  // namespace sherd
