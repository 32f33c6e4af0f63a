// Checks of mk_measure's arguments; pure functions, tested without a GPU.
#pragma once
#include <cstdint>

#include "include/mkernel_measure.h"

namespace mk {

// The options with their defaults filled in; throws Error. `options` may be null.
mk_measure_options measure_options(const mk_measure_options* options);

// Bytes that each peer gets: a multiple of the blocks; throws Error where a fan is none, or devices are.
uint64_t measure_fan_shard(const int32_t* devices, int32_t count, const mk_measure_options& options, const mk_measure_fan* fans,
                           int32_t fan_count);

// Throws Error where a trip cannot be made.
void check_trips(const mk_measure_trip* trips, int32_t count);

}  // namespace mk
