// Ranks over the fake's EFA devices.
#pragma once
#include <algorithm>

#include "tests/net_fake.h"

namespace test {

// Rank r has the devices r0 and r1.
inline std::vector<fake::DeviceSettings> all_devices() {
  std::vector<fake::DeviceSettings> all;
  for (const int rank : {0, 1, 2})
    for (const int n : {0, 1}) all.push_back(fake::efa("efa" + std::to_string(rank) + std::to_string(n), static_cast<uint8_t>(16 * rank + n + 1)));
  return all;
}
inline fake::Settings& fresh_efa() { return fresh(all_devices()); }

inline void use_efa(mknet_desc& d, bool both = false) {
  static const char* const one[] = {"efa00", "efa10", "efa20"};
  static const char* const two[] = {"efa00,efa01", "efa10,efa11", "efa20,efa21"};
  d.backend = "efa";
  d.rdma.library = library().c_str();
  d.rdma.devices = (both ? two : one)[d.rank];
}
inline Change with_efa(const Change& change) {
  return [change](mknet_desc& d) {
    use_efa(d);
    change(d);
  };
}
inline const Change kAsIs = [](mknet_desc&) {};
inline std::string efa_session(const Change& change = kAsIs, const std::function<void(Ranks&)>& then = [](Ranks&) {}, uint64_t patience = kPatience) {
  return session_of(with_efa(change), then, patience);
}
inline std::string efa_provoke(const std::function<void(fake::Settings&)>& fault, const Change& change = kAsIs) {
  return provoke_in(with_efa(change), fault);
}

inline std::string usable(const Change& change = kAsIs) {
  mknet_desc d;
  MKNET_INIT(&d);
  d.world = 2;
  use_efa(d);
  change(d);
  char line[1000];
  mknet_error e;
  return mknet_usable(&d, line, sizeof line, &e) == MKNET_OK ? line : e.text;
}

// Sends `bytes` in one command and looks at what came.
inline void send_and_compare(Ranks& ranks, uint64_t bytes) {
  for (size_t i = 0; i < bytes; ++i) ranks[0].sources[i] = static_cast<char>(i * 7);
  const mknet_command c = command(1, 0, 8, bytes, 32768, 1);
  NET_OK([&](mknet_error* e) { return mknet_push(ranks[0].net, &c, kPatience, nullptr, e); });
  CHECK(ranks[1].wait(32768, 1));
  CHECK(std::equal(ranks[0].sources.begin(), ranks[0].sources.begin() + static_cast<ptrdiff_t>(bytes), ranks[1].data() + 8));
  ranks.drain();
}

}  // namespace test
