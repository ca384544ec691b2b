#include "soap_config.h"

namespace train_gpt {

std::vector<std::string> soap_problems(const TrainConfig& c) {
  std::vector<std::string> problems;
  if (c.soap_beta == 1) problems.push_back("--soap-beta 1: must be less than 1");
  if (c.soap_eps == 0) problems.push_back("--soap-eps 0: must be greater than 0");
  return problems;
}

sherd::SoapOptions soap_options(const TrainConfig& c) {
  return {.constants = {.beta1 = c.adam_beta1,
                        .beta2 = c.adam_beta2,
                        .shampoo_beta = c.soap_beta,
                        .eps = c.soap_eps},
          .max_dim = c.soap_max_dim,
          .whole = {.state_weight = c.whole_balance}};
}

}  // namespace train_gpt
