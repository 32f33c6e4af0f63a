#include "net/efa_api.h"

#include <dlfcn.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "net/error.h"

namespace mk::net::verbs {

namespace {

constexpr const char* kLibrary = "libefa.so.1";
constexpr const char* kInstaller = "/opt/amazon/efa";

struct Loaded {
  Api verbs;
  EfaApi efa;
};

std::unique_ptr<Loaded> resolve(void* library, const std::string& file) {
  auto l = std::make_unique<Loaded>();
  // libefa works only with devices that its own libibverbs has opened, which the look-up through libefa finds.
  l->verbs = resolve_verbs(library, file.c_str());
  EfaApi& a = l->efa;
  a.verbs = &l->verbs;
  a.file = file;
  find_symbol(library, file.c_str(), "efadv_query_device", a.query_device);
  find_symbol(library, file.c_str(), "efadv_create_qp_ex", a.create_qp);
  find_symbol(library, file.c_str(), "efadv_create_cq", a.create_cq);
  find_symbol(library, file.c_str(), "ibv_qp_to_qp_ex", a.extended);
  find_symbol(library, file.c_str(), "ibv_create_ah", a.create_ah);
  find_symbol(library, file.c_str(), "ibv_destroy_ah", a.destroy_ah);
  find_symbol(library, file.c_str(), "ibv_query_gid", a.query_gid);
  return l;
}

// Files to try: with a folder only those that exist.
std::vector<std::string> places(const char* file, const char* home) {
  if (file != nullptr) return {file};
  std::vector<std::string> all;
  for (const char* prefix : {home, kInstaller})
    for (const char* folder : {"lib64", "lib"}) {
      if (prefix == nullptr) continue;
      const std::string path = format("%s/%s/%s", prefix, folder, kLibrary);
      if (access(path.c_str(), R_OK) == 0) all.push_back(path);
    }
  all.push_back(kLibrary);  // where the loader looks
  return all;
}

}  // namespace

const EfaApi& load_efa(const char* file, const char* home) {
  static std::mutex mutex;
  static auto& loaded = *new std::map<std::string, std::unique_ptr<Loaded>>;  // for ever: a thread that hung in a library may come back at exit
  std::lock_guard<std::mutex> lock(mutex);
  std::string reasons;
  for (const std::string& path : places(file, home)) {
    if (const auto known = loaded.find(path); known != loaded.end()) return known->second->efa;
    try {
      void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (library == nullptr) fail(MKNET_ERROR_UNSUPPORTED, "%s", dlerror());
      return loaded.emplace(path, resolve(library, path)).first->second->efa;
    } catch (const Error& e) {
      reasons += (reasons.empty() ? "" : "; ") + std::string(e.what());
    }
  }
  const std::string where = home != nullptr ? format("%s, %s", home, kInstaller) : kInstaller;
  fail(MKNET_ERROR_UNSUPPORTED, "no EFA library: %s (also looked for in %s)", reasons.c_str(), where.c_str());
}

}  // namespace mk::net::verbs
