#include <sherd/train/report/memory_report.h>

#include <algorithm>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include <sherd/fsdp/group.h>
#include <sherd/kernels/ops.h>

namespace sherd {
namespace {

std::string mebibytes(int64_t bytes) { return fmt::format("{:.2f}", static_cast<double>(bytes) / (1 << 20)); }

std::string ratio(int64_t part, int64_t whole) {
  if (whole == 0) return "-";
  return fmt::format("{:.1f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string table_line(std::string_view title, std::string_view parameters, std::string_view gradients,
                       std::string_view optimizer, std::string_view sum, std::string_view other = "",
                       std::string_view host = "") {
  return fmt::format("  {:<17}{:>12}{:>12}{:>12}{:>12}{:>{}}{:>{}}\n", title, parameters, gradients,
                     optimizer, sum, other, other.empty() ? 0 : 12, host, host.empty() ? 0 : 13);
}

int64_t sum_of(const RankMemory& m) { return m.parameters + m.gradients + m.optimizer; }

}  // namespace

std::vector<RankMemory> rank_memory(Communicator& world) {
  Device& device = world.device();
  const auto peak = [&](MemoryClass kind) { return device.allocator().peak_bytes(kind); };
  RankMemory mine;
  mine.parameters = peak(MemoryClass::parameter) + peak(MemoryClass::master) + peak(MemoryClass::gathered);
  mine.gradients = peak(MemoryClass::gradient);
  mine.optimizer = peak(MemoryClass::optimizer);
  mine.other_peak = device.allocator().peak_held_bytes() - mine.parameters - mine.gradients - mine.optimizer;
  for (const Allocator* a : std::set<Allocator*>{&device.staging(), &device.copies()})
    if (a != &device.allocator()) mine.other_peak += a->peak_held_bytes();
  if (&device.host_tier() != &device.staging()) mine.host = device.host_tier().peak_held_bytes();
  constexpr int64_t kWords = 5;
  static_assert(sizeof(RankMemory) == kWords * sizeof(int64_t));
  std::vector<RankMemory> all(static_cast<size_t>(world.size()));
  Stream& s = device.compute();
  const Tensor send = Tensor::empty(device, {kWords}, DType::i64, "metrics");
  const Tensor recv = Tensor::empty(device, {kWords * world.size()}, DType::i64, "metrics");
  ops::copy_from_host(s, send, &mine, sizeof mine);
  world.all_gather(s, recv, send);
  ops::copy_to_host(s, all.data(), recv);
  return all;
}

RankMemory replicated_memory(ModuleBase& root, const Routing& routing, const Optimizer* optimizer) {
  RankMemory r;
  for (auto& [name, p] : root.named_parameters()) {
    const GroupPlan& plan = p.group().plan();
    const int64_t copy = plan.master == Master::f32 && plan.dtype != DType::f32 ? size_of(plan.dtype) : 0;
    r.parameters += numel_of(p.global_shape()) * (bytes_of(plan.master) + copy);
  }
  for (auto& route : routing.routes) {
    const int64_t n = numel_of(route.param.global_shape());
    r.gradients += n * size_of(route.param.group().plan().grad_dtype);
    if (!optimizer) r.optimizer += n * (route.algorithm == Algorithm::muon ? 4 : 8);
  }
  if (!optimizer) return r;
  for (const StateTensor& s : optimizer->state())
    r.optimizer += (size_of(s.local.dtype()) * numel_of(s.param.global_shape())) +
                   (s.block > 0 ? size_of(DType::f32) * numel_of(s.param.global_shape()) / s.block : 0);
  for (const OwnedState& s : optimizer->owned_state())
    r.optimizer += size_of(s.local.dtype()) * numel_of(s.shape);
  return r;
}

std::string memory_table(const std::vector<RankMemory>& ranks, const RankMemory& replicated) {
  std::string text = "memory per rank, peak, in MiB\n";
  const bool host = std::any_of(ranks.begin(), ranks.end(), [](const RankMemory& m) { return m.host > 0; });
  text += table_line("", "parameters", "gradients", "optimizer", "sum", "other", host ? "on the host" : "");
  RankMemory largest;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const RankMemory& m = ranks[r];
    text += table_line(fmt::format("rank {}", r), mebibytes(m.parameters), mebibytes(m.gradients),
                       mebibytes(m.optimizer), mebibytes(sum_of(m)), mebibytes(m.other_peak),
                       host ? mebibytes(m.host) : "");
    if (sum_of(m) >= sum_of(largest)) largest = m;
  }
  text += table_line("if replicated", mebibytes(replicated.parameters), mebibytes(replicated.gradients),
                     mebibytes(replicated.optimizer), mebibytes(sum_of(replicated)));
  text +=
      table_line("largest rank", ratio(largest.parameters, replicated.parameters),
                 ratio(largest.gradients, replicated.gradients),
                 ratio(largest.optimizer, replicated.optimizer), ratio(sum_of(largest), sum_of(replicated)));
  if (largest.parameters > replicated.parameters || largest.gradients > replicated.gradients)
    text +=
        "  above 100 %: a rank has its own share of the weights and reduced gradients beside those that are "
        "whole\n"
        "  (gathered parameters, gradients to be reduced), which zero1 keeps of all units, zero3 of a few\n";
  return text;
}

}  // namespace sherd
