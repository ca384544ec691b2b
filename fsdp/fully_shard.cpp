#include <sherd/fsdp/fully_shard.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace sherd {
namespace {

/// Checks the options of all wraps at once. @throws InvalidArgument that lists every problem.
void check(ModuleBase& root, const RootOptions& root_options) {
  std::vector<std::string> wrong;
  auto check_one = [&](const std::string& name, const Wrap& w) {
    const std::string who = name.empty() ? "root" : name;
    const FullyShardOptions& o = w.options;
    if (!w.mesh.has(o.shard_dim))
      wrong.push_back(
          fmt::format("{}: mesh '{}' has no dimension '{}'; name the one to shard over as shard_dim", who,
                      w.mesh.describe(), o.shard_dim));
    if (o.shard_dim == o.replicate_dim)
      wrong.push_back(fmt::format("{}: shard and replicate dimension are both '{}'", who, o.shard_dim));
    if (o.context_dim != FullyShardOptions().context_dim && !o.shares_sequences(o.context_dim))
      wrong.push_back(
          fmt::format("{}: context_dim '{}' is its shard, replicate or tensor dimension, too; name another",
                      who, o.context_dim));
    if (!(o.padding_budget >= 0 && o.padding_budget <= 1))
      wrong.push_back(fmt::format("{}: padding budget {} is not in [0, 1]", who, o.padding_budget));
    if (o.bucket_elements < 0)
      wrong.push_back(
          fmt::format("{}: bucket_elements {} are negative; 0 is one bucket", who, o.bucket_elements));
    if (o.gradient_ranks < 0)
      wrong.push_back(fmt::format("{}: gradient ranks {} are negative", who, o.gradient_ranks));
    if (o.compute_dtype != DType::f32 && o.compute_dtype != DType::bf16)
      wrong.push_back(fmt::format("{}: compute dtype {} (use f32 or bf16)", who, name_of(o.compute_dtype)));
    if (o.master != Master::f32 && o.compute_dtype == DType::f32)
      wrong.push_back(fmt::format(
          "{}: master {} with compute dtype f32, whose weights are their own masters (use compute dtype "
          "bf16, or master f32)",
          who, name_of(o.master)));
    if (o.reduce_dtype != DType::f32 && o.reduce_dtype != DType::bf16)
      wrong.push_back(fmt::format("{}: reduce dtype {} (use f32 or bf16)", who, name_of(o.reduce_dtype)));
    if (o.grad_dtype != DType::f32 && o.grad_dtype != DType::bf16)
      wrong.push_back(fmt::format("{}: grad_dtype {} (use f32 or bf16)", who, name_of(o.grad_dtype)));
    if (o.output_dtype && *o.output_dtype != DType::f32 && *o.output_dtype != DType::bf16)
      wrong.push_back(fmt::format("{}: output dtype {} (use f32 or bf16)", who, name_of(*o.output_dtype)));
  };
  root.visit([&](const std::string& name, ModuleBase& m) {
    if (const Wrap* w = m.wrap()) check_one(name, *w);
  });
  if (root_options.prefetch < 0)
    wrong.push_back(fmt::format("prefetch {} is negative", root_options.prefetch));
  const auto params = root.named_parameters();
  if (params.empty()) wrong.push_back("the model has no parameters");
  for (auto& [name, p] : params)
    if (p.sharded())
      wrong.push_back(fmt::format("parameter '{}' belongs to unit '{}' of another sharded model", name,
                                  p.group().unit_of(p.index_in_group())));
  for (auto& name : root_options.ignored) {
    const bool known = std::any_of(params.begin(), params.end(), [&](auto& p) { return p.first == name; });
    if (!known) wrong.push_back(fmt::format("ignored parameter '{}' does not exist", name));
  }
  if (!wrong.empty()) throw InvalidArgument(fmt::format("fully_shard: {}", fmt::join(wrong, "; ")));
}

}  // namespace

void wrap_module(ModuleBase& module, Wrap wrap) {
  // Inner modules may outlive their root: they can be wrapped again.
  module.visit([](const std::string&, ModuleBase& m) {  // drops units of a destroyed root
    if (m.unit_ && !m.unit_->attached()) m.unit_ = nullptr, m.wrap_ = nullptr;
  });
  if (module.wrap_) throw InvalidArgument("fully_shard: this module is wrapped already");
  for (const ModuleBase* m = &module; m != nullptr; m = m->parent_)
    if (m->runtime_)
      throw InvalidArgument("fully_shard: the root is sharded already; wrap inner modules before it");
  module.visit([](const std::string&, ModuleBase& m) {
    if (m.runtime_) throw InvalidArgument("fully_shard: the module holds a root that is sharded already");
  });
  module.wrap_ = std::make_shared<Wrap>(std::move(wrap));
  // Inner modules are only marked. The root, which is wrapped last, builds the runtime for all of them.
  if (!module.is_root()) return;
  try {
    check(module, module.wrap_->root);
    module.runtime_ = std::make_shared<ShardRuntime>(module);
  } catch (...) {  // as before the first wrap, so that the caller may try other options
    module.visit([](const std::string&, ModuleBase& m) {
      m.unit_ = nullptr;
      m.wrap_ = nullptr;
    });
    throw;
  }
}

void fully_shard(ModuleBase& module, const DeviceMesh& mesh, const FullyShardOptions& options) {
  wrap_module(module, {mesh, options});
}

void fully_shard(ModuleBase& root, const DeviceMesh& mesh, const FullyShardOptions& options,
                 const RootOptions& root_options) {
  if (!root.is_root())
    throw InvalidArgument(
        "fully_shard: RootOptions for a module inside another one; give them to the call of the root, which "
        "has "
        "no parent");
  wrap_module(root, {mesh, options, root_options});
}

int fully_shard_all(ModuleBase& root, const std::function<bool(const std::string&, ModuleBase&)>& which,
                    const DeviceMesh& mesh, const FullyShardOptions& options) {
  std::vector<ModuleBase*> chosen;
  std::vector<std::string> wrapped;
  root.visit([&](const std::string& name, ModuleBase& m) {
    if (&m == &root || !which(name, m)) return;
    chosen.push_back(&m);
    const bool left_behind = m.unit() && !m.unit()->attached();  // of a destroyed root
    if (m.wrap() != nullptr && !left_behind) wrapped.push_back("'" + name + "'");
  });
  if (chosen.empty())
    throw InvalidArgument(
        "fully_shard_all: no module below this one was chosen; register modules by child() in their parent's "
        "constructor, and check the type or the condition");
  if (!wrapped.empty())
    throw InvalidArgument(
        fmt::format("fully_shard_all: {} {} wrapped already; leave them out of the condition",
                    fmt::join(wrapped, ", "), wrapped.size() == 1 ? "is" : "are"));
  // Modules are visited before those inside them.
  for (size_t i = chosen.size(); i-- > 0;) fully_shard(*chosen[i], mesh, options);
  return static_cast<int>(chosen.size());
}

void reset_step(ModuleBase& root) { runtime_of(root).reset_step(); }

void zero_grad(ModuleBase& root) { runtime_of(root).zero_grad(); }

ShardRuntime& runtime_of(const ModuleBase& root) {
  if (!root.runtime_)
    throw InvalidArgument(
        "the model is not sharded; call fully_shard() on the root module (the one without a parent)");
  return *root.runtime_;
}

}  // namespace sherd
