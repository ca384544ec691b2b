#include <sherd/optim/muon.h>

#include <memory>
#include <utility>

#include <sherd/optim/muon/detail/muon_rule.h>

namespace sherd {
UpdateRuleFactory Muon::factory(const MuonOptions& o) {
  return {.algorithm = Algorithm::muon,
          .settings = to_string(momentum_options(o)) + " " + MuonRule(o).settings(),
          .problems = problems_of(o),
          .writes_copies = false,
          .heeds_lr_factor = true,
          .heeds_betas = false,
          .make = [o](Device& device, std::vector<UpdateItem> items) {
            return std::make_unique<Muon>(device, std::move(items), o);
          }};
}

Muon::Muon(Device& device, std::vector<Item> items, const MuonOptions& options, MatrixRefinement* refinement)
    : WholeMatrices(device, std::move(items), std::make_shared<MuonRule>(options), momentum_options(options),
                    refinement) {}

}  // namespace sherd
