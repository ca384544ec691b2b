#include <sherd/train/report/dense_peak.h>

#include <bit>
#include <cstdint>
#include <map>
#include <vector>

#include <sherd/comm/core/require_equal.h>
#include <sherd/kernels/random/random.h>
#include <sherd/train/plan/hardware_profile.h>

namespace sherd {

std::optional<double> dense_peak(Communicator& world, Stream& stream, const Hardware& hardware, DType dtype,
                                 bool tf32) {
  const auto profile = profile_of_device(hardware.name);
  const double mine = profile ? profile->dense_peak(dtype, tf32).value_or(0) : 0;
  const uint64_t words[] = {hash64(0, hardware.id), std::bit_cast<uint64_t>(mine)};
  const std::vector<uint64_t> all = gather_values(world, stream, words);
  std::map<uint64_t, double> of_each;
  for (size_t i = 0; i < all.size(); i += 2) {
    const auto peak = std::bit_cast<double>(all[i + 1]);
    if (peak == 0) return std::nullopt;
    of_each[all[i]] = peak;
  }
  double sum = 0;
  for (const auto& [id, peak] : of_each) sum += peak;
  return sum;
}

}  // namespace sherd
