// Ranks over the fake libfabric: loading it, and what it shall do.
#pragma once
#include <dlfcn.h>
#include <unistd.h>

#include <string>

#include "tests/fake/ofi/fabric.h"
#include "tests/net_pair.h"

namespace test::fabric {

inline std::string library() {
  char exe[4096] = "";
  if (readlink("/proc/self/exe", exe, sizeof exe - 1) <= 0) return "";
  const std::string path = exe;
  const size_t at = path.rfind("tests-");
  return path.substr(0, at) + "fakefabric-" + path.substr(at + 6) + ".so";
}

inline fakefabric::Control& control() {
  static fakefabric::Control* c = [] {
    void* l = dlopen(library().c_str(), RTLD_NOW);
    if (l == nullptr) {
      printf("%s\n", dlerror());
      abort();
    }
    return reinterpret_cast<fakefabric::Control* (*)()>(dlsym(l, "fake_fabric_control"))();
  }();
  return *c;
}

inline fakefabric::Settings& fresh() {
  control().settings = {};
  control().seen = {};
  return control().settings;
}
inline fakefabric::Seen& seen() { return control().seen; }
inline bool nothing_left() { return seen().live() == 0 && seen().wrong_order == 0; }

inline void use_fake(mknet_desc& d) {
  static const std::string lib = library();
  d.backend = "ofi";
  d.ofi.library = lib.c_str();
}

}  // namespace test::fabric
