// Kernel sets: the implementations of operations that a device can run.
//
// Operations come in families. A family's table is a struct of function pointers on raw memory, run inside a stream; the
// family's functions in namespace ops check their arguments and queue. A table type, of the library or of a user, has
//   static constexpr const char* kName;                                       the family's name in messages
//   static const Table* reference(); static const Table* cpu(); ... cuda();   null: no kernels of that set
// and Device::kernels<Table>() gives the device's. What an entry computes is said in the header of its family, at its
// argument struct or at the function of its name.
#pragma once

namespace sherd {

enum class KernelSet {
  cpu,        // vectorised, threaded (OpenMP, ExecutionContext::threads), with oneDNN and LAPACK
  reference,  // slow and obvious; the oracle of every test
  cuda,
};

/// Returns whether activations may be f64. Values saved beside them, and gradients of weights, are then f64,
/// too.
constexpr bool takes_f64(KernelSet set) { return set == KernelSet::reference; }

template <class Table>
const Table* kernels_of(KernelSet set) {
  switch (set) {
    case KernelSet::reference:
      return Table::reference();
    case KernelSet::cpu:
      return Table::cpu();
    case KernelSet::cuda:
      return Table::cuda();
  }
  return nullptr;
}

}  // namespace sherd
