#include <sherd/fsdp/module_base.h>

#include <fmt/format.h>

#include <unordered_map>
#include <unordered_set>

#include <sherd/fsdp/detail/names.h>

namespace sherd {
namespace {

std::string join(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

}  // namespace

// Modules may be destroyed in any order: each clears the references of its parent and children to itself.
ModuleBase::~ModuleBase() {
  if (parent_ != nullptr) std::erase_if(parent_->children_, [&](auto& c) { return c.second == this; });
  for (auto& [name, module] : children_) module->parent_ = nullptr;
  // Handles of a tied parameter may remain in other modules.
  for (auto& [name, p] : parameters_) --p.state().registrations;
}

void ModuleBase::visit(const std::function<void(const std::string&, ModuleBase&)>& f,
                       const std::string& prefix) {
  f(prefix, *this);
  for (auto& [name, module] : children_) module->visit(f, join(prefix, name));
}

// A tied parameter appears once, under the name of its first registration.
std::vector<std::pair<std::string, Parameter>> ModuleBase::named_parameters() const {
  std::vector<std::pair<std::string, Parameter>> all;
  std::unordered_set<const void*> seen;
  const_cast<ModuleBase*>(this)->visit([&](const std::string& prefix, ModuleBase& m) {
    for (auto& [name, p] : m.parameters_)
      if (seen.insert(p.state_.get()).second) all.emplace_back(join(prefix, name), p);
  });
  return all;
}

/// Returns (later name, first name) of every handle that is registered more than once.
template <class Handle>
std::vector<std::pair<std::string, std::string>> ModuleBase::tied_in(
    std::vector<std::pair<std::string, Handle>> ModuleBase::*registered) const {
  std::vector<std::pair<std::string, std::string>> tied;
  std::unordered_map<const void*, std::string> first;
  const_cast<ModuleBase*>(this)->visit([&](const std::string& prefix, ModuleBase& m) {
    for (auto& [name, handle] : m.*registered) {
      const std::string full = join(prefix, name);
      const auto [known, is_new] = first.try_emplace(handle.state_.get(), full);
      if (!is_new) tied.emplace_back(full, known->second);
    }
  });
  return tied;
}

std::vector<std::pair<std::string, std::string>> ModuleBase::tied_names() const {
  return tied_in(&ModuleBase::parameters_);
}

std::vector<std::pair<std::string, std::string>> ModuleBase::tied_buffer_names() const {
  return tied_in(&ModuleBase::buffers_);
}

std::vector<std::pair<std::string, Buffer>> ModuleBase::named_buffers() const {
  std::vector<std::pair<std::string, Buffer>> all;
  std::unordered_set<const void*> seen;
  const_cast<ModuleBase*>(this)->visit([&](const std::string& prefix, ModuleBase& m) {
    for (auto& [name, b] : m.buffers_)
      if (seen.insert(b.state_.get()).second) all.emplace_back(join(prefix, name), b);
  });
  return all;
}

std::vector<Parameter> ModuleBase::own_parameters() const {
  std::vector<Parameter> own;
  for (auto& [name, p] : parameters_) own.push_back(p);
  return own;
}

void ModuleBase::set_training(bool on) {
  visit([on](const std::string&, ModuleBase& m) { m.training_ = on; });
}

Parameter ModuleBase::param(std::string name, Shape shape, Init init) {
  return tie(name, Parameter(name, std::move(shape), std::move(init)));
}

Parameter ModuleBase::tie(std::string name, const Parameter& other) {
  check_name("parameter", name);
  // A linear search: modules have few parameters of their own.
  for (auto& [existing, p] : parameters_)
    if (existing == name)
      throw InvalidArgument(fmt::format("two parameters of one module are named '{}'", name));
  ++other.state().registrations;
  parameters_.emplace_back(std::move(name), other);
  return other;
}

Buffer ModuleBase::buffer(std::string name, Shape shape, DType dtype, Init init, bool persistent) {
  return tie(name, Buffer(name, std::move(shape), dtype, std::move(init), persistent));
}

Buffer ModuleBase::tie(std::string name, const Buffer& other) {
  check_name("buffer", name);
  for (auto& [existing, b] : buffers_)
    if (existing == name)
      throw InvalidArgument(fmt::format("two buffers of one module are named '{}'", name));
  return buffers_.emplace_back(std::move(name), other).second;
}

void ModuleBase::child(std::string name, ModuleBase& module) {
  check_name("child module", name);
  for (auto& [existing, m] : children_)
    if (existing == name)
      throw InvalidArgument(fmt::format("two children of one module are named '{}'", name));
  if (module.parent_ != nullptr)
    throw InvalidArgument(
        fmt::format("module '{}' already has a parent; register it once and call it twice", name));
  module.parent_ = this;
  children_.emplace_back(std::move(name), &module);
}

// Names are the keys of checkpoints, so they are unique over parameters, buffers and their tied names.
void assign_names(ModuleBase& root) {
  std::unordered_set<std::string> names;
  const auto claim = [&](const char* what, const std::string& name) {
    if (!names.insert(name).second)
      throw InvalidArgument(fmt::format("two parameters or buffers are named '{}'", name));
    if (name == "__metadata__")
      throw InvalidArgument(
          fmt::format("a {} is named '__metadata__', which safetensors files keep for themselves", what));
  };
  for (auto& [name, p] : root.named_parameters()) {
    claim("parameter", name);
    p.state_->name = name;
  }
  for (auto& [name, b] : root.named_buffers()) {
    claim("buffer", name);
    b.state_->name = name;
  }
  for (auto& [other, first] : root.tied_names()) claim("parameter", other);
  for (auto& [other, first] : root.tied_buffer_names()) claim("buffer", other);
}

}  // namespace sherd
