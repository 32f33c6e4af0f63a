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

inline const std::string& library() {
  static const std::string path = [] {
    char exe[4096] = "";
    if (readlink("/proc/self/exe", exe, sizeof exe - 1) <= 0) return std::string();
    const std::string p = exe;
    const size_t at = p.rfind("tests-");
    return p.substr(0, at) + "fakeverbs-" + p.substr(at + 6) + ".so";
  }();
  return path;
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
  control().seen.live_pds = before.live_pds, control().seen.live_contexts = before.live_contexts, control().seen.live_ahs = before.live_ahs;
  control().settings.devices = std::move(devices);
  return control().settings;
}
inline fake::Settings& fresh() { return fresh({fake::roce("fake0", 1), fake::roce("fake1", 2)}); }
inline fake::Seen& seen() { return control().seen; }
// Held while the fake's control is touched or called and networks run.
inline std::unique_lock<std::mutex> quiet() { return std::unique_lock<std::mutex>(*control().mutex); }
inline bool nothing_left() {
  const fake::Seen& s = seen();
  return s.live_mrs == 0 && s.live_qps == 0 && s.live_cqs == 0 && s.live_pds == 0 && s.live_contexts == 0 && s.live_ahs == 0;
}

// Rank r uses device fake<r>.
inline void use_fake(mknet_desc& d) {
  static const char* const names[] = {"fake0", "fake1", "fake2"};
  d.backend = "ibverbs";
  d.rdma.library = library().c_str();
  d.rdma.devices = names[d.rank];
  d.rdma.timeout = 12;
  d.rdma.retries = 3;
}

inline bool has(const std::string& text, const char* part) {
  if (text.find(part) != std::string::npos) return true;
  printf("not there: \"%s\" in: %s\n", part, text.c_str());
  return false;
}

using Change = std::function<void(mknet_desc&)>;

// Two ranks, started and verified; the error text, or "".
inline std::string session_of(const Change& change, const std::function<void(Ranks&)>& then, uint64_t patience = kPatience) {
  Ranks ranks(2, 1 << 16, change);
  if (ranks[0].net == nullptr || ranks[1].net == nullptr) return "not created";
  std::string text = ranks.start();
  if (text.empty()) text = ranks.verify(patience);
  if (text.empty()) then(ranks);
  return text;
}

// Rank 0 sends until it fails; the error text. The fault is made while the fake stands still.
inline std::string provoke_in(const Change& change, const std::function<void(fake::Settings&)>& fault) {
  std::string text = "the session did not start";
  const std::string before = session_of(change, [&](Ranks& ranks) {
    {
      const auto lock = quiet();
      fault(control().settings);
    }
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

// The same with device fake<r> for rank r.
inline Change with_fake(const Change& change) {
  return [change](mknet_desc& d) {
    use_fake(d);
    change(d);
  };
}
inline std::string session(const Change& change, const std::function<void(Ranks&)>& then = [](Ranks&) {}, uint64_t patience = kPatience) {
  return session_of(with_fake(change), then, patience);
}
inline std::string provoke(const std::function<void(fake::Settings&)>& fault, const Change& change = [](mknet_desc&) {}) {
  return provoke_in(with_fake(change), fault);
}

// The error of creating a rank of a world of two, or ""; nothing stays.
inline std::string creation_of(const Change& change) {
  mknet_desc d;
  MKNET_INIT(&d);
  d.world = 2;
  change(d);
  mknet* net = nullptr;
  mknet_error e;
  if (mknet_create(&d, &net, &e) == MKNET_OK) mknet_destroy(net, nullptr);
  return e.text;
}

}  // namespace test
