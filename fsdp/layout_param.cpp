#include <sherd/fsdp/layout_param.h>

#include <utility>

namespace sherd {
namespace {

double stack_cost(const std::string& name, Shape shape) {
  double count = 1;
  if (shape.size() == 3) {
    count = static_cast<double>(shape.front());
    shape.erase(shape.begin());
  }
  return count * packing_cost({name, std::move(shape)});
}

}  // namespace

// A cost of 0 makes packing_cost() use its default rule.
LayoutParam layout_param(std::string name, Shape shape, CutClass cut, const RowBlocks& blocks) {
  LayoutParam out{std::move(name), std::move(shape), cut};
  if (out.shape.size() != 2 && out.shape.size() != 3) return out;
  for (const RowBlock& b : blocks) {
    Shape block = out.shape;
    block[block.size() - 2] = b.rows();
    out.cost += stack_cost(out.name, std::move(block));
  }
  if (blocks.empty() && out.shape.size() == 3) out.cost = stack_cost(out.name, out.shape);
  return out;
}

}  // namespace sherd
