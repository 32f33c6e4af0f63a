// What a rank sends when SMs move the bytes.
#pragma once
#include <cstdint>

namespace mk {

struct PushPlan {
  int32_t group;  // row blocks pushed together
  int32_t ctas;   // CTAs that push; 0: another mover
};

}  // namespace mk
