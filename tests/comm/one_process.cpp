// The answers of ranks.h where all ranks are threads of this process.
#include "comm/ranks.h"

namespace sherd::test {

int processes() { return 1; }
int ranks_here(int ranks) { return ranks; }
bool is_here(int, int) { return true; }
std::vector<std::string> from_all_processes(const std::vector<std::string>& texts) { return texts; }
std::shared_ptr<Store> common_store() { return make_memory_store(); }

}  // namespace sherd::test
