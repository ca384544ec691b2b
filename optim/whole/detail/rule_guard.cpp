#include <sherd/optim/whole/detail/rule_guard.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace sherd {
namespace {

constexpr size_t kNamesShown = 3;

/// Returns the first names, and the number of others.
std::string first_of(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kNamesShown);
  const std::string more =
      names.size() > shown ? fmt::format(" and {} more", names.size() - shown) : std::string();
  return fmt::format(
      "{}{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "), more);
}

}  // namespace

std::string RuleGuard::place(int64_t step) const {
  return fmt::format("{}: {}: step {} of this optimizer", rank_, rule_, step);
}

void RuleGuard::call(const std::vector<int>& matrices, const std::function<void()>& rule) const {
  const auto described = [&](const Error& e) {
    std::vector<std::string> names;
    for (const int m : matrices) names.push_back(team_.matrices()[static_cast<size_t>(m)].label());
    const std::string text =
        fmt::format("{}: the rule failed for {}: {}", place(step_), first_of(names), e.what());
    // The other ranks of the launch quote it.
    team_.abort(text);
    return text;
  };
  try {
    rule();
  } catch (const ShapeMismatch& e) {
    throw ShapeMismatch(described(e));
  } catch (const InvalidArgument& e) {
    throw InvalidArgument(described(e));
  }
}

void RuleGuard::end_step(Stream& compute) {
  if (compute.device().dry()) return;
  Step s{step_, team_.copy_statuses(compute), {}};
  if (s.statuses.numel() == 0) return;
  s.copied = compute.record();
  pending_.push_back(std::move(s));
}

void RuleGuard::require_sound() {
  while (failure_.empty() && !pending_.empty() && pending_.front().copied.done()) {
    const Step s = std::move(pending_.front());
    pending_.pop_front();
    std::vector<std::string> results, states;
    for (auto& [name, status] : team_.report(s.statuses)) {
      if (status == MatrixStatus::bad_result) results.push_back(name);
      if (status == MatrixStatus::bad_state) states.push_back(name);
    }
    const auto say = [&](const char* what, const std::vector<std::string>& names) {
      if (names.empty()) return;
      failure_ += failure_.empty() ? place(s.step) + ": " : "; ";
      failure_ += fmt::format("the rule's {} of {} is NaN or Inf although the input is finite", what,
                              first_of(names));
    };
    say("result", results);
    say("state", states);
    if (failure_.empty()) continue;
    failure_ += "; correct the rule, or resume from a checkpoint with another learning rate or eps";
    team_.abort(failure_);
  }
  if (!failure_.empty()) throw Error(failure_);
}

}  // namespace sherd
