#include <sherd/fsdp/update_set.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <set>

#include <sherd/fsdp/group.h>

namespace sherd {

UpdateSet::UpdateSet(std::shared_ptr<UpdateSets> sets, const std::vector<Parameter>& params)
    : sets_(std::move(sets)) {
  std::vector<std::string> twice;
  for (const Parameter& p : params) {
    if (sets_->set_of(p) != nullptr) twice.push_back(p.name());
    std::vector<bool>& members = members_[&p.group()];
    members.resize(p.group().params().size(), false);
    members[static_cast<size_t>(p.index_in_group())] = true;
    // Gradients may be final already when the optimizer is made between backward and its first step.
    ready_ = ready_ || p.group().grad_final(p.index_in_group());
  }
  if (!twice.empty())
    throw InvalidArgument(fmt::format("{}: parameters that another optimizer of this root updates: {}",
                                      sets_->label_, fmt::join(twice, ", ")));
  sets_->all_.push_back(this);
}

// sets_ is shared: the root, and the runtime with it, may be destroyed earlier.
UpdateSet::~UpdateSet() { std::erase(sets_->all_, this); }

bool UpdateSet::holds(const Parameter& p) const {
  const auto found = members_.find(&p.group());
  return found != members_.end() && found->second[static_cast<size_t>(p.index_in_group())];
}

bool UpdateSet::holds_all_of(const ParamGroup& group) const {
  const auto found = members_.find(&group);
  return found != members_.end() &&
         std::find(found->second.begin(), found->second.end(), false) == found->second.end();
}

std::vector<bool> UpdateSet::members_of(const ParamGroup& group) const {
  const auto found = members_.find(&group);
  return found == members_.end() ? std::vector<bool>() : found->second;
}

int UpdateSets::index_of(const UpdateSet* set) const {
  const auto at = std::find(all_.begin(), all_.end(), set);
  return at == all_.end() ? -1 : static_cast<int>(at - all_.begin());
}

const UpdateSet* UpdateSets::set_of(const Parameter& p) const {
  for (const UpdateSet* s : all_)
    if (s->holds(p)) return s;
  return nullptr;
}

bool UpdateSets::any_ready() const {
  return std::any_of(all_.begin(), all_.end(), [](const UpdateSet* s) { return s->ready(); });
}

std::vector<std::string> UpdateSets::alone(const std::vector<ParamGroup*>& groups) const {
  std::vector<std::string> names;
  for (const ParamGroup* g : groups)
    for (auto& p : g->params())
      if (!p.frozen() && set_of(p) == nullptr) names.push_back(p.name());
  return names;
}

// Returns the sets whose parameters got no gradient in this step, or are all frozen.
std::vector<const UpdateSet*> UpdateSets::left_out(const std::vector<ParamGroup*>& groups) const {
  std::set<const UpdateSet*> touched, frozen;  // the latter: all of it
  std::vector<const UpdateSet*> all, out;
  for (const ParamGroup* g : groups)
    for (auto& p : g->params()) {
      if (!p.trainable()) continue;
      const UpdateSet* set = set_of(p);
      if (std::find(all.begin(), all.end(), set) == all.end()) {
        all.push_back(set);
        frozen.insert(set);
      }
      // One parameter that is not frozen suffices for the set to take part.
      if (!p.frozen()) frozen.erase(set);
      if (g->touched(p.index_in_group())) touched.insert(set);
    }
  // A step that reaches nothing at all leaves out no set in particular.
  for (const UpdateSet* set : all)
    if (frozen.contains(set) || (!touched.empty() && !touched.contains(set))) out.push_back(set);
  return out;
}

void UpdateSets::set_ready(const std::vector<const UpdateSet*>& but) {
  for (UpdateSet* s : all_)
    if (std::find(but.begin(), but.end(), s) == but.end()) s->ready_ = true;
}

void UpdateSets::set_skip(const Tensor& skip) {
  for (UpdateSet* s : all_)
    if (s->ready_) s->skip_ = skip;
}

void UpdateSets::set_gradient_factor(const Tensor& factor) {
  for (UpdateSet* s : all_)
    if (s->ready_) s->gradient_factor_ = factor;
}

void UpdateSets::forget(const UpdateSet* set) {
  for (UpdateSet* s : all_) {
    if (set != nullptr && s != set) continue;
    s->ready_ = false;
    s->skip_ = s->gradient_factor_ = Tensor();
  }
}

void UpdateSets::weights_replaced() {
  for (const UpdateSet* s : all_)
    if (s->weights_replaced_) s->weights_replaced_();
}

}  // namespace sherd
