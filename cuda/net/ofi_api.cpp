#include "net/ofi_api.h"

#include <dlfcn.h>

#include <map>
#include <mutex>

#include "net/error.h"
#include "net/kept_signals.h"

namespace mk::net::ofi {

namespace {

template <class F>
void find(void* library, const Api& api, const char* name, const char* version, F& f) {
  f = reinterpret_cast<F>(dlvsym(library, name, version));
  if (f == nullptr) fail(MKNET_ERROR_UNSUPPORTED, "%s has no %s of version %s: libfabric 1.9 or newer is needed", api.file.c_str(), name, version);
}

Api resolve(void* l, const std::string& file) {
  Api a = {};
  a.file = file;
  find(l, a, "fi_getinfo", "FABRIC_1.3", a.getinfo);
  find(l, a, "fi_freeinfo", "FABRIC_1.3", a.freeinfo);
  find(l, a, "fi_dupinfo", "FABRIC_1.3", a.dupinfo);
  find(l, a, "fi_fabric", "FABRIC_1.1", a.fabric);
  find(l, a, "fi_version", "FABRIC_1.0", a.version);
  find(l, a, "fi_strerror", "FABRIC_1.0", a.strerror);
  if (a.version() < kVersion)
    fail(MKNET_ERROR_UNSUPPORTED, "%s is libfabric %u.%u; 1.14 or newer is needed", file.c_str(), a.version() >> 16, a.version() & 0xffff);
  return a;
}

}  // namespace

std::vector<std::string> places(const char* efa_home) {
  constexpr const char* kFile = "libfabric.so.1";
  std::vector<std::string> all;
  const auto add = [&](const std::string& prefix) {
    for (const char* lib : {"/lib/", "/lib64/"}) all.push_back(prefix + lib + kFile);
  };
  if (efa_home != nullptr && *efa_home != '\0') add(efa_home);
  all.push_back(kFile);  // the loader's own folders, and LD_LIBRARY_PATH
  for (const char* prefix : {"/opt/amazon/efa", "/usr/local", "/usr", "/opt/libfabric"}) add(prefix);
  return all;
}

const Api& load(const char* file, const char* efa_home) {
  static std::mutex mutex;
  static auto& loaded = *new std::map<std::string, Api>;  // for ever: its threads and handlers at exit may still run, and one that hung come back
  const std::vector<std::string> files = file != nullptr ? std::vector<std::string>{file} : places(efa_home);
  std::lock_guard<std::mutex> lock(mutex);
  std::string why;
  for (const std::string& name : files) {
    const auto known = loaded.find(name);
    if (known != loaded.end()) return known->second;
    void* l;
    {
      KeptSignals kept;
      l = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    }
    if (l != nullptr) return loaded.emplace(name, resolve(l, name)).first->second;
    if (why.empty() || name.find('/') == std::string::npos) why = dlerror();
  }
  fail(MKNET_ERROR_UNSUPPORTED, "no libfabric: %s%s", why.c_str(), files.size() > 1 ? ", nor in the usual places" : "");
}

}  // namespace mk::net::ofi
