#include <sherd/optim/muon.h>

#include <memory>
#include <utility>

#include <sherd/optim/muon/muon_rule.h>

namespace sherd {

UpdateRuleFactory Muon::factory(const MuonOptions& o) {
  UpdateRuleFactory f = WholeMatrices::factory(
      Algorithm::muon, [o] { return std::make_shared<MuonRule>(o); }, o.whole);
  f.make = [o](Device& device, std::vector<UpdateItem> items) {
    return std::make_unique<Muon>(device, std::move(items), o);
  };
  return f;
}

Muon::Muon(Device& device, std::vector<Item> items, const MuonOptions& options, MatrixRefinement* refinement)
    : WholeMatrices(device, std::move(items), std::make_shared<MuonRule>(options), options.whole,
                    refinement) {}

}  // namespace sherd
