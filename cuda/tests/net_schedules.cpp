// The two ways of transfer under thousands of schedules, over software NICs that delay, split and reorder.
#include "net/emu.h"
#include "tests/check.h"
#include "tests/net_model.h"

using namespace mk::net;
using test::Model;
using test::ModelOptions;
using test::Rng;

namespace {

#if defined(__SANITIZE_THREAD__)
constexpr uint64_t kSchedules = 60;
#else
constexpr uint64_t kSchedules = 700;
#endif

struct Network {
  bool unordered = false;
  uint32_t nics = 1;
};

std::string run(uint64_t seed, ModelOptions o, const Network& n) {
  Rng rng{seed};
  mknet_emu link = {};
  link.unordered = n.unordered ? 1 : 0;
  link.piece = static_cast<uint32_t>(8 + rng.below(120));
  link.latency_ns = rng.below(3000);
  link.jitter_ns = rng.below(4) == 0 ? 0 : rng.below(20000);
  link.bandwidth = rng.below(2) == 0 ? 0 : 1e8 * static_cast<double>(1 + rng.below(50));
  link.seed = seed;
  Model model(seed, o, [&](uint32_t rank, ClockRef clock, const Device& device) {
    std::vector<std::unique_ptr<Nic>> nics;
    for (uint32_t i = 0; i < n.nics; ++i) nics.push_back(make_emu({link, i, rank, o.ranks, clock}, device));
    return nics;
  });
  return model.run();
}

// Runs all schedules; prints and counts the first that goes wrong.
uint64_t faults(const char* name, const ModelOptions& base, const Network& n, uint64_t schedules) {
  uint64_t wrong = 0;
  for (uint64_t seed = 1; seed <= schedules && wrong < 3; ++seed) {
    ModelOptions o = base;
    o.ranks = 2 + static_cast<uint32_t>(seed % 3);
    if (seed % 4 == 0) o.start = (uint64_t{1} << 32) - 20;
    if (seed % 4 == 1) o.start = (uint64_t{1} << 20) - 20;  // the low bits in the immediate
    const std::string fault = run(seed, o, n);
    if (!fault.empty() && ++wrong == 1) printf("%s: seed %llu: %s\n", name, static_cast<unsigned long long>(seed), fault.c_str());
  }
  return wrong;
}

}  // namespace

TEST(schedules_ordered) {
  CHECK(faults("ordered, 1 NIC", {}, {false, 1}, kSchedules) == 0);
  CHECK(faults("ordered, 3 NICs", {}, {false, 3}, kSchedules / 2) == 0);
}

TEST(schedules_unordered) {
  ModelOptions o;
  o.ordered = false;
  CHECK(faults("unordered, 1 NIC", o, {true, 1}, kSchedules) == 0);
  CHECK(faults("unordered, 2 NICs", o, {true, 2}, kSchedules) == 0);
  CHECK(faults("unordered over ordered NICs", o, {false, 2}, kSchedules / 4) == 0);
}

// More commands than the window has places, so that numbers, credits and notices come round.
TEST(schedules_unordered_long) {
  ModelOptions o;
  o.ordered = false;
  o.commands = 900;
  o.slots = 64;
  CHECK(faults("unordered, long", o, {true, 2}, kSchedules / 50) == 0);
}

// Through pinned memory on both sides, while the device takes its time with every copy.
TEST(schedules_bounced) {
  ModelOptions o;
  o.ordered = false;
  o.bounce = true;
  CHECK(faults("bounced, 1 NIC", o, {true, 1}, kSchedules / 2) == 0);
  CHECK(faults("bounced over ordered NICs", o, {false, 2}, kSchedules / 4) == 0);
}

// Between devices whose memory the NICs copy, as emulated nodes of GPUs: every device has its own order and takes its time.
TEST(schedules_between_devices) {
  ModelOptions o;
  o.device = true;
  CHECK(faults("between devices, ordered", o, {false, 1}, kSchedules / 2) == 0);
  CHECK(faults("between devices, ordered, 2 NICs", o, {false, 2}, kSchedules / 4) == 0);
  o.ordered = false;
  CHECK(faults("between devices, unordered", o, {true, 1}, kSchedules / 2) == 0);
  CHECK(faults("between devices, unordered, 2 NICs", o, {true, 2}, kSchedules / 2) == 0);
}

// The low bits that tell commands apart come round: those of 16, 20, 32 and 60 bits.
TEST(schedules_V61_V64_numbers_come_round) {
  for (const int bits : {16, 20, 32, 60}) {
    ModelOptions o;
    o.ordered = false;
    o.ranks = 3;
    o.commands = 300;
    o.start = (uint64_t{1} << bits) - 150;
    for (uint64_t seed = 1; seed <= kSchedules / 100 + 1; ++seed) CHECK(run(seed, o, {true, 2}) == "");
    o.ordered = true;
    CHECK(run(1, o, {false, 2}) == "");
  }
}

// The checks see what they are for: flags that follow data on a network without order come too early.
TEST(schedules_find_a_flag_that_overtakes) {
  const ModelOptions o;
  uint64_t wrong = 0;
  for (uint64_t seed = 1; seed <= 50; ++seed) wrong += run(seed, o, {true, 1}).empty() ? 0 : 1;
  CHECK(wrong > 5);
}
