// Lower bounds of the memory and the step time of runs, without their own dry run.
#pragma once

#include <algorithm>
#include <utility>

#include <sherd/train/plan/dry_rank.h>
#include <sherd/train/plan/hardware_profile.h>

#include "train_gpt/model/trained_work.h"
#include "train_gpt/settings/train_config.h"

namespace train_gpt {

/// Least part of their time that operations on masters, states and gradients take in another form: 14 of AdamW's 30 bytes.
inline constexpr double kLeastForm = 0.4;

/// Bytes of an element as stored on the device.
struct Forms {
  explicit Forms(const TrainConfig& config);
  /// Of a weight in a step of AdamW, and in the sum of squares.
  double update_bytes() const {
    const double updated = master == 0 && weight == 2 ? 2 : 4;
    return 2 * updated + 4 * state + 2 * gradient + (master == 4 ? 2 : 0);
  }
  double weight, master, state, gradient;
};

/// Returns bytes of a rank that takes no less than the mean: for the whole step, and gradients at the end of the backward.
std::pair<double, double> stored_bytes(const TrainConfig& config, const ParameterCount& count,
                                       const Forms& form);

/// Seconds in which the links inside hosts and between them are busy. The collectives of a link follow each other.
struct LinkTime {
  double host = 0, network = 0;
  LinkTime with(const LinkTime& other, double times) const {
    return {host + times * other.host, network + times * other.network};
  }
  double most() const { return std::max(host, network); }
};

/// Returns those of weights and gradients in a step.
LinkTime link_time(const TrainConfig& config, const ParameterCount& count,
                   const sherd::HardwareProfile& hardware);

/// What all runs of a shape have in each microbatch, at least.
struct LeastMicrobatch {
  double seconds = 0, activations = 0;
  LinkTime links = {};  // of the model's collectives
};

/// Returns what the record of one microbatch has between its first and its last product.
LeastMicrobatch shape_of(const sherd::RankForecast& rank, const sherd::HardwareProfile& hardware);

/// Seconds of a run of which `part` is what its optimizers' operations take of their time, at least.
struct LeastTime {
  LeastTime() = default;
  LeastTime(const sherd::DryRecord& record, const sherd::HardwareProfile& hardware);
  /// With the same units gathered at the same time. The time is convex in the part, as all of it are sums and maxima.
  double same_traffic(double part) const { return seconds - (1 - part) * slope; }
  /// With units that are gathered earlier or later.
  double same_work(double part) const { return std::max(busiest, compute + part * optimizers); }

  double seconds = 0, slope = 0, compute = 0, optimizers = 0, busiest = 0;
};

}  // namespace train_gpt
