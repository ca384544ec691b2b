// Modules of one type, made in place and registered by index.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <utility>

#include <sherd/fsdp/module_base.h>

namespace sherd {

/// Growing list of modules that do not move. emplace_back() constructs one and registers it as "0", "1", ...
/// below the list. The list's owner registers the list like any child:
///
///    struct Net : nn::Module<Net> {
///      ModuleList<Block> blocks;
///      explicit Net(int layers) {
///        child("blocks", blocks);
///        for (int i = 0; i < layers; ++i) blocks.emplace_back(width);  // parameters "blocks.0.weight", ...
///      }
///    };
///
/// It has no forward: callers loop over it. fully_shard(net.blocks, mesh, options) makes each of them a unit.
template <class M>
class ModuleList : public ModuleBase {
 public:
  /// Returns the new module, whose address stays valid.
  template <class... Args>
  M& emplace_back(Args&&... args) {
    M& made = modules_.emplace_back(std::forward<Args>(args)...);
    child(std::to_string(modules_.size() - 1), made);
    return made;
  }

  size_t size() const { return modules_.size(); }
  bool empty() const { return modules_.empty(); }
  M& operator[](size_t i) { return modules_[i]; }
  const M& operator[](size_t i) const { return modules_[i]; }
  M& front() { return modules_.front(); }
  M& back() { return modules_.back(); }
  auto begin() { return modules_.begin(); }
  auto end() { return modules_.end(); }
  auto begin() const { return modules_.begin(); }
  auto end() const { return modules_.end(); }
  auto rbegin() { return modules_.rbegin(); }
  auto rend() { return modules_.rend(); }

 private:
  std::deque<M> modules_;
};

}  // namespace sherd
