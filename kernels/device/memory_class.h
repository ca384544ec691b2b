// Classes of memory. Every allocation has a class beside its name.
#pragma once

#include <array>
#include <cstdint>
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

/// Place of memory: the device's own, or the host's beside it (Device::host_tier()).
enum class Place : uint8_t { device, host };
inline constexpr EnumTable<Place, 2> kPlaceNames{"device", "host"};
constexpr const char* name_of(Place p) { return kPlaceNames.name(p); }

}  // namespace sherd
