// Checks of mk_measure's arguments; pure functions, tested without a GPU.
#pragma once
#include "include/mkernel_measure.h"

namespace mk {

// The options with their defaults filled in; throws Error. `options` may be null.
mk_measure_options measure_options(const mk_measure_options* options);

}  // namespace mk
