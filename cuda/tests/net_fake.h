// Ranks over the fake verbs library: loading it, what it shall do, sessions and faults.
#pragma once
#include <dlfcn.h>
#include <unistd.h>

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "tests/fake/verbs.h"
#include "tests/net_pair.h"

namespace test {

inline std::string library() {
  char exe[4096] = "";
  if (readlink("/proc/self/exe", exe, sizeof exe - 1) <= 0) return "";
  std::string path = exe;
  const size_t at = path.rfind("tests-");
  return path.substr(0, at) + "fakeverbs-" + path.substr(at + 6) + ".so";
}

inline fake::Control& control() {
  static fake::Control* c = [] {
    void* l = dlopen(library().c_str(), RTLD_NOW);
    if (l == nullptr) {
      printf("%s\n", dlerror());
      abort();
    }
    return reinterpret_cast<fake::Control* (*)()>(dlsym(l, "fake_control"))();
  }();
  return *c;
}

// A fresh fake with these devices.
inline fake::Settings& fresh(std::vector<fake::DeviceSettings> devices) {
  control().settings = {};
  const fake::Seen before = control().seen;
  control().seen = {};
  control().seen.live_mrs = before.live_mrs, control().seen.live_qps = before.live_qps, control().seen.live_cqs = before.live_cqs;
  control().seen.live_pds = before.live_pds, control().seen.live_contexts = before.live_contexts;
  control().settings.devices = std::move(devices);
  return control().settings;
}
inline fake::Settings& fresh() { return fresh({fake::roce("fake0", 1), fake::roce("fake1", 2)}); }
inline fake::Seen& seen() { return control().seen; }
// Held while settings or what was seen are touched and networks run.
inline std::unique_lock<std::mutex> quiet() { return std::unique_lock<std::mutex>(*control().mutex); }
inline bool nothing_left() {
  const fake::Seen& s = seen();
  return s.live_mrs == 0 && s.live_qps == 0 && s.live_cqs == 0 && s.live_pds == 0 && s.live_contexts == 0;
}

// Rank r uses device fake<r>.
inline void use_fake(mknet_desc& d) {
  static const std::string lib = library();
  static const char* const names[] = {"fake0", "fake1", "fake2"};
  d.backend = "ibverbs";
  d.rdma.library = lib.c_str();
  d.rdma.devices = names[d.rank];
  d.rdma.timeout = 12;
  d.rdma.retries = 3;
}

inline bool has(const std::string& text, const char* part) {
  if (text.find(part) != std::string::npos) return true;
  printf("not there: \"%s\" in: %s\n", part, text.c_str());
  return false;
}

// Two ranks, started and verified; the error text, or "".
inline std::string session(const std::function<void(mknet_desc&)>& change, const std::function<void(Ranks&)>& then = [](Ranks&) {},
                    uint64_t patience = kPatience) {
  Ranks ranks(2, 1 << 16, [&](mknet_desc& d) {
    use_fake(d);
    change(d);
  });
  if (ranks[0].net == nullptr || ranks[1].net == nullptr) return "not created";
  std::string text = ranks.start();
  if (text.empty()) text = ranks.verify(patience);
  if (text.empty()) then(ranks);
  return text;
}

// Rank 0 sends until it fails; the error text.
inline std::string provoke(const std::function<void(fake::Settings&)>& fault, const std::function<void(mknet_desc&)>& change = [](mknet_desc&) {}) {
  std::string text = "the session did not start";
  const std::string before = session(change, [&](Ranks& ranks) {
    fault(control().settings);
    mknet_error e;
    e.code = MKNET_OK;
    for (uint64_t i = 1; i < 50 && e.code == MKNET_OK; ++i) {
      const mknet_command c = command(1, 0, 0, 256, 1024, i);
      mknet_push(ranks[0].net, &c, kPatience, nullptr, &e);
    }
    mknet_status(ranks[0].net, kPatience, &e);
    text = e.text;
  });
  return before.empty() ? text : before;
}

}  // namespace test
