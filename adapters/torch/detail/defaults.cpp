#include <sherd/torch/detail/defaults.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <sherd/torch/detail/written_tensors.h>
#include <sherd/torch/generator.h>
#include <sherd/torch/meta_device.h>
#include <torch/library.h>

#include <algorithm>
#include <string>
#include <utility>

namespace sherd::torch {
namespace detail {
namespace {

// Key that libtorch reserves for libraries that change how modules are made.
constexpr c10::DispatchKey kDefaultsKey = c10::DispatchKey::DeferredInit;

DefaultsScope::Values& defaults_of_thread() {
  static thread_local DefaultsScope::Values values;
  return values;
}

// Returns the first tensor of a call, or null.
const at::Tensor* tensor_among(c10::ArrayRef<c10::IValue> arguments) {
  for (const c10::IValue& a : arguments)
    if (a.isTensor() && a.toTensor().defined()) return &a.toTensor();
  return nullptr;
}

bool takes_tensors(const c10::FunctionSchema& schema) {
  return std::any_of(schema.arguments().begin(), schema.arguments().end(), [](const c10::Argument& a) {
    return a.type()->isSubtypeOf(c10::OptionalType::ofTensor()) ||
           a.type()->isSubtypeOf(c10::ListType::ofTensors()) ||
           a.type()->isSubtypeOf(c10::ListType::ofOptionalTensors());
  });
}

// Handles every operation in a scope: fills in left-out arguments, then continues with the usual kernel. Runs
// of recomputed functions are in such a scope, with their generator.
void fill_in_defaults(const c10::OperatorHandle& op, c10::DispatchKeySet keys, ::torch::jit::Stack* stack) {
  const DefaultsScope::Values& values = defaults_of_thread();
  const c10::FunctionSchema& schema = op.schema();
  const size_t count = schema.arguments().size();
  for (size_t i = 0; i < count; ++i) {
    c10::IValue& given = ::torch::jit::peek(*stack, i, count);
    if (!given.isNone()) continue;
    const std::string& name = schema.arguments()[i].name();
    if (name == "generator" && values.generator) {
      const at::Tensor* tensor = tensor_among(::torch::jit::last(*stack, count));
      if (tensor == nullptr || tensor->is_cpu()) given = *values.generator;
    } else if (name == "device" && values.device && !takes_tensors(schema)) {
      given = *values.device;
    }
  }
  const WrittenTensors::Memory arguments = WrittenTensors::before(schema, *stack);
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kDefaultsKey), stack);
  WrittenTensors::after(arguments, schema, *stack);
}

}  // namespace

DefaultsScope::DefaultsScope(const at::Generator& generator)
    : before_(defaults_of_thread()), heard_(kDefaultsKey) {
  defaults_of_thread().generator = generator;
}

DefaultsScope::DefaultsScope(at::Device device) : before_(defaults_of_thread()), heard_(kDefaultsKey) {
  defaults_of_thread().device = device;
}

DefaultsScope::~DefaultsScope() { defaults_of_thread() = std::move(before_); }

const DefaultsScope::Values& DefaultsScope::now() { return defaults_of_thread(); }

at::Generator generator_now() {
  const auto& own = DefaultsScope::now().generator;
  return own ? *own : at::detail::getDefaultCPUGenerator();
}

}  // namespace detail

ThreadGenerator::ThreadGenerator(uint64_t seed) : ThreadGenerator(at::detail::createCPUGenerator(seed)) {}
ThreadGenerator::ThreadGenerator(const at::Generator& generator)
    : generator_(generator), scope_(std::make_unique<detail::DefaultsScope>(generator)) {}
ThreadGenerator::~ThreadGenerator() = default;

MetaDevice::MetaDevice() : scope_(std::make_unique<detail::DefaultsScope>(at::Device(at::kMeta))) {}
MetaDevice::~MetaDevice() = default;

}  // namespace sherd::torch

TORCH_LIBRARY_IMPL(_, DeferredInit, library) {
  library.fallback(::torch::CppFunction::makeFromBoxedFunction<&sherd::torch::detail::fill_in_defaults>());
}
