#include <sherd/optim/role.h>

#include <sherd/base/enum_table.h>

namespace sherd {

const char* name_of(Role role) {
  constexpr EnumTable<Role, 9> kRoles{"hidden", "embedding", "head",        "norm",  "bias",
                                      "router", "conv",      "state space", "vector"};
  return kRoles.name(role);
}

}  // namespace sherd
