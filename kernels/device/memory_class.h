// Classes of memory. Every allocation has a class beside its name.
#pragma once

#include <array>
#include <string_view>

#include <sherd/base/enum_table.h>

namespace sherd {

/// Content of an allocation. Planners, memory tables and tests ask for bytes by class; names are
/// human-readable.
enum class MemoryClass {
  parameter,   ///< weights in the dtype they are computed with, as stored between uses
  master,      ///< fp32 weights that the optimizer updates, where they are not the parameters themselves
  gradient,    ///< sums of gradients, of this rank's part and of whole units
  gathered,    ///< unsharded parameters of a unit, while it computes
  optimizer,   ///< state that the optimizer keeps between steps
  buffer,      ///< values of the model that are kept and not trained
  activation,  ///< saved activations, and other allocations of a model's code
  message,     ///< buffers that collectives alone use
  scratch      ///< temporaries of one operation, staging memory
};

/// All of them, in the order of the enumeration.
inline constexpr std::array kMemoryClasses = {
    MemoryClass::parameter,  MemoryClass::master,    MemoryClass::gradient,
    MemoryClass::gathered,   MemoryClass::optimizer, MemoryClass::buffer,
    MemoryClass::activation, MemoryClass::message,   MemoryClass::scratch};

inline constexpr EnumTable<MemoryClass, kMemoryClasses.size()> kMemoryClassNames{
    "parameter", "master", "gradient", "gathered", "optimizer", "buffer", "activation", "message", "scratch"};
inline std::string_view name_of(MemoryClass c) { return kMemoryClassNames.name(c); }

}  // namespace sherd
