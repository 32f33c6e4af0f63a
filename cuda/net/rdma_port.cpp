#include "net/rdma_port.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>

namespace mk::net::verbs {

namespace {

std::string pci_of(const Device* d) {
  char target[512];
  const std::string link = std::string(d->ibdev_path) + "/device";
  const ssize_t n = readlink(link.c_str(), target, sizeof target - 1);
  if (n <= 0) return "";
  target[n] = '\0';
  const char* slash = strrchr(target, '/');
  return slash != nullptr ? slash + 1 : target;
}

// mlx5_10 after mlx5_9.
bool natural_less(const std::string& a, const std::string& b) {
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (isdigit(static_cast<unsigned char>(a[i])) && isdigit(static_cast<unsigned char>(b[j]))) {
      size_t ni, nj;
      const unsigned long x = std::stoul(a.substr(i, 9), &ni), y = std::stoul(b.substr(j, 9), &nj);
      if (x != y) return x < y;
      i += ni, j += nj;
    } else {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i, ++j;
    }
  }
  return a.size() < b.size();
}

bool named(const std::string& list, const std::string& name) { return ("," + list + ",").find("," + name + ",") != std::string::npos; }

// It, or one of its ports.
bool device_named(const std::string& list, const std::string& name) { return named(list, name) || ("," + list).find("," + name + ":") != std::string::npos; }

// Position in the list of names; rails are numbered by it.
size_t place(const std::string& list, const std::string& name) { return ("," + list + ",").find("," + name + ","); }

}  // namespace

std::string text_of(const Gid& gid) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (is_ipv4(gid))
    inet_ntop(AF_INET, gid.raw + 12, text, sizeof text);
  else
    inet_ntop(AF_INET6, gid.raw, text, sizeof text);
  return text;
}

std::string unseen_devices(const char* folder) {
  std::vector<std::string> names;
  if (DIR* d = opendir(folder)) {
    while (const dirent* e = readdir(d))
      if (e->d_name[0] != '.') names.emplace_back(e->d_name);
    closedir(d);
  }
  if (names.empty()) return "";
  std::sort(names.begin(), names.end(), natural_less);
  std::string text;
  for (const std::string& n : names) text += (text.empty() ? "" : ", ") + n;
  return "; the kernel has " + text +
         ", so this libibverbs is older than the kernel's driver, or has none for it (what it warned of is on stderr): install the rdma-core of this "
         "system, with ibverbs-providers";
}

std::vector<Port> find_ports(const Api& api, const char* names, const std::function<void(Port&)>& check) {
  const std::string wanted = names != nullptr ? names : "";
  int count = 0;
  errno = 0;
  Device** list = api.get_device_list(&count);
  if (list == nullptr)
    fail(MKNET_ERROR_UNSUPPORTED, "no RDMA devices: %s", errno == ENOSYS ? "the kernel has no ib_uverbs module loaded" : strerror(errno));
  std::vector<Device*> devices(list, list + count);
  std::vector<std::pair<std::string, Device*>> sorted;
  for (Device* d : devices) sorted.emplace_back(pci_of(d) + "/" + d->name, d);
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return natural_less(a.first, b.first); });
  std::vector<Port> ports;
  std::vector<std::string> all;
  size_t found = 0;    // ports that were named
  std::string passed;  // and why
  const auto pass = [&](const std::string& name, const std::string& why) { passed += (passed.empty() ? "" : "; ") + name + ": " + why; };
  for (const auto& [_, d] : sorted) {
    all.emplace_back(d->name);
    if (!wanted.empty() && !device_named(wanted, d->name)) continue;
    errno = 0;
    Context* opened = api.open_device(d);
    if (opened == nullptr) {
      pass(d->name, format("it cannot be opened (%s); is its /dev/infiniband file here and allowed?", strerror(errno)));
      continue;
    }
    std::shared_ptr<Context> context(opened, [&api](Context* c) { api.close_device(c); });
    Port p;
    p.api = &api;
    p.context = context;
    p.transport = d->transport_type;
    if (api.query_device(opened, &p.device) != 0) {
      pass(d->name, "it cannot be queried");
      continue;
    }
    for (uint32_t n = 1; n <= p.device.phys_port_cnt; ++n) {
      Port port = p;
      port.number = static_cast<uint8_t>(n);
      port.name = n == 1 ? d->name : format("%s:%u", d->name, n);
      if (!wanted.empty() && !named(wanted, port.name) && !named(wanted, format("%s:%u", d->name, n))) continue;
      ++found;
      try {
        if (api.query_port(opened, port.number, &port.attr) != 0) fail(MKNET_ERROR_SYSTEM, "its port %u cannot be queried", port.number);
        check(port);
        ports.push_back(port);
      } catch (const Error& e) {
        pass(port.name, e.what());
      }
    }
  }
  api.free_device_list(list);
  if (!wanted.empty()) {
    std::stable_sort(ports.begin(), ports.end(), [&](const Port& a, const Port& b) { return place(wanted, a.name) < place(wanted, b.name); });
    const size_t names = 1 + static_cast<size_t>(std::count(wanted.begin(), wanted.end(), ','));
    if (found < names) passed += (passed.empty() ? "" : "; ") + there_are(all);
    if (ports.size() != names) fail(MKNET_ERROR_UNSUPPORTED, "of the NICs %s, %zu can be used: %s", wanted.c_str(), ports.size(), passed.c_str());
  }
  if (ports.empty()) fail(MKNET_ERROR_UNSUPPORTED, "no RDMA device can be used%s%s", passed.empty() ? ": there is none" : ": ", (passed.empty() ? unseen_devices() : passed).c_str());
  return ports;
}

}  // namespace mk::net::verbs
