// Oracle of routing in groups; experts.h says what it computes. Private to the experts' kernels.
#pragma once

#include <sherd/nn/kernels/experts/experts.h>

namespace sherd::reference {

void route_in_groups(ExecutionContext&, const GroupRouteArgs& a);
void route_in_groups_backward(ExecutionContext&, const GroupRouteArgs& a);
void count_choices(ExecutionContext&, const CountChoicesArgs& a);
void update_selection_bias(ExecutionContext&, const SelectionBiasArgs& a);

}  // namespace sherd::reference
