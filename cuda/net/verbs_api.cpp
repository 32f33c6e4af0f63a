#include "net/verbs_api.h"

#include <dlfcn.h>

#include <map>
#include <mutex>

#include "net/error.h"

namespace mk::net::verbs {

void* symbol(void* library, const char* file, const char* name, bool needed) {
  void* found = dlsym(library, name);
  if (found == nullptr && needed) fail(MKNET_ERROR_UNSUPPORTED, "%s has no %s: it is too old", file, name);
  return found;
}

Api resolve_verbs(void* l, const char* file) {
  Api a;
  find_symbol(l, file, "ibv_get_device_list", a.get_device_list);
  find_symbol(l, file, "ibv_free_device_list", a.free_device_list);
  find_symbol(l, file, "ibv_open_device", a.open_device);
  find_symbol(l, file, "ibv_close_device", a.close_device);
  find_symbol(l, file, "ibv_query_device", a.query_device);
  find_symbol(l, file, "ibv_query_port", a.query_port);
  find_symbol(l, file, "ibv_query_pkey", a.query_pkey);
  find_symbol(l, file, "_ibv_query_gid_table", a.query_gid_table);
  find_symbol(l, file, "ibv_alloc_pd", a.alloc_pd);
  find_symbol(l, file, "ibv_dealloc_pd", a.dealloc_pd);
  find_symbol(l, file, "ibv_reg_mr", a.reg_mr);
  find_symbol(l, file, "ibv_reg_mr_iova2", a.reg_mr_iova2, false);
  find_symbol(l, file, "ibv_reg_dmabuf_mr", a.reg_dmabuf_mr, false);
  find_symbol(l, file, "ibv_dereg_mr", a.dereg_mr);
  find_symbol(l, file, "ibv_create_cq", a.create_cq);
  find_symbol(l, file, "ibv_destroy_cq", a.destroy_cq);
  find_symbol(l, file, "ibv_create_qp", a.create_qp);
  find_symbol(l, file, "ibv_modify_qp", a.modify_qp);
  find_symbol(l, file, "ibv_query_qp", a.query_qp);
  find_symbol(l, file, "ibv_destroy_qp", a.destroy_qp);
  find_symbol(l, file, "ibv_get_async_event", a.get_async_event);
  find_symbol(l, file, "ibv_ack_async_event", a.ack_async_event);
  find_symbol(l, file, "ibv_wc_status_str", a.wc_status_str);
  find_symbol(l, file, "ibv_event_type_str", a.event_type_str);
  return a;
}

const Api& load(const char* file) {
  static std::mutex mutex;
  static auto& loaded = *new std::map<std::string, Api>;  // for ever: a thread that hung in a library may come back at exit
  const std::string name = file != nullptr ? file : "libibverbs.so.1";
  std::lock_guard<std::mutex> lock(mutex);
  const auto known = loaded.find(name);
  if (known != loaded.end()) return known->second;
  // Names only: the loader looks in its own folders and in LD_LIBRARY_PATH.
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) fail(MKNET_ERROR_UNSUPPORTED, "no RDMA library: %s", dlerror());
  return loaded.emplace(name, resolve_verbs(library, name.c_str())).first->second;
}

}  // namespace mk::net::verbs
