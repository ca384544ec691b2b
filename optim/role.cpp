#include <sherd/optim/role.h>

namespace sherd {

const char* name_of(Role role) {
  switch (role) {
    case Role::hidden:
      return "hidden";
    case Role::embedding:
      return "embedding";
    case Role::head:
      return "head";
    case Role::norm:
      return "norm";
    case Role::bias:
      return "bias";
    case Role::router:
      return "router";
    case Role::conv:
      return "conv";
    case Role::state_space:
      return "state space";
    case Role::vector:
      break;
  }
  return "vector";
}

}  // namespace sherd
