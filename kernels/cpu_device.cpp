#include <fmt/format.h>

#include <sherd/kernels/kernel_table.h>
#include <sherd/kernels/queue_stream.h>

namespace sherd {
namespace {

const KernelTable& table_named(const std::string& name) {
  if (name == "cpu") return cpu_kernels();
  if (name == "reference") return reference_kernels();
  throw InvalidArgument(fmt::format("kernels '{}' are unknown; use 'cpu' or 'reference'", name));
}

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const DeviceOptions& o)
      : options_(o), kernels_(table_named(o.kernels)), allocator_(o.label, o.memory_limit) {
    compute_ = make_stream("compute", StreamPriority::normal);
  }

  Allocator& allocator() override { return allocator_; }
  const KernelTable& kernels() const override { return kernels_; }
  Stream& compute() override { return *compute_; }
  std::unique_ptr<Stream> make_stream(std::string name, StreamPriority) override {
    return std::make_unique<QueueStream>(*this, std::move(name), options_.threads);
  }
  const std::string& label() const override { return options_.label; }
  std::string describe() const override {
    return fmt::format("cpu, {} thread{}, kernels {}", options_.threads, options_.threads == 1 ? "" : "s",
                       options_.kernels);
  }

 private:
  DeviceOptions options_;
  const KernelTable& kernels_;
  Allocator allocator_;
  std::unique_ptr<Stream> compute_;  // after the allocator: its scratch goes back first
};

}  // namespace

std::shared_ptr<Device> make_cpu_device(const DeviceOptions& options) {
  if (options.threads < 1)
    throw InvalidArgument(
        fmt::format("{}: {} kernel threads; use at least 1", options.label, options.threads));
  return std::make_shared<CpuDevice>(options);
}

}  // namespace sherd
