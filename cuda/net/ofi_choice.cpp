#include "net/ofi_choice.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "net/control.h"
#include "net/error.h"

namespace mk::net::ofi {

namespace {

constexpr const char* kSoftware = "tcp";  // the only one in software that is taken unasked: it works between hosts
constexpr size_t kImmediateBytes = 4;

std::vector<std::string> split(const char* list) {
  std::vector<std::string> all;
  std::stringstream s(list != nullptr ? list : "");
  for (std::string item; std::getline(s, item, ',');)
    if (!item.empty()) all.push_back(item);
  return all;
}

std::string provider_of(const Info& i) { return i.fabric_attr->prov_name != nullptr ? i.fabric_attr->prov_name : "?"; }
std::string domain_of(const Info& i) { return i.domain_attr->name != nullptr ? i.domain_attr->name : "?"; }

// "tcp;ofi_rxm" is the provider tcp, with messages of connections made into reliable datagrams by ofi_rxm.
std::string core_of(const Info& i) {
  const std::string name = provider_of(i);
  return name.substr(0, name.find(';'));
}

// What providers offer of what is needed.
std::vector<InfoPtr> offers(const Api& api, const char* provider, int* error) {
  std::unique_ptr<Info, void (*)(Info*)> hints(api.dupinfo(nullptr), api.freeinfo);
  if (!hints) fail(MKNET_ERROR_MEMORY, "libfabric: out of memory");
  hints->caps = kRma | kWrite | kRemoteWrite;
  hints->mode = kContext | kContext2;
  hints->ep_attr->type = kEndpointRdm;
  hints->tx_attr->op_flags = kDeliveryComplete;
  DomainAttr& d = *hints->domain_attr;
  d.mr_mode = kMrLocal | kMrVirtAddr | kMrAllocated | kMrProvKey | kMrEndpoint;
  d.threading = kThreadSafe;
  d.resource_mgmt = kManaged;
  d.control_progress = d.data_progress = kProgressManual;
  if (provider != nullptr) hints->fabric_attr->prov_name = strdup(provider);
  Info* list = nullptr;
  *error = api.getinfo(kVersion, nullptr, nullptr, 0, hints.get(), &list);
  std::vector<InfoPtr> all;
  for (Info* i = *error == 0 ? list : nullptr; i != nullptr;) {
    Info* next = i->next;
    i->next = nullptr;
    all.emplace_back(i, [&api](Info* p) { api.freeinfo(p); });
    i = next;
  }
  return all;
}

// Why a domain cannot be used; "": it can.
std::string fault_of(const Info& i) {
  if (i.domain_attr->cq_data_size < kImmediateBytes) return format("%zu bytes of data with a write, and 4 are needed", i.domain_attr->cq_data_size);
  if (i.domain_attr->mr_key_size > 8) return format("its memory keys have %zu bytes, more than 8", i.domain_attr->mr_key_size);
  if (i.ep_attr->max_msg_size < sizeof(Credit)) return format("its messages have at most %zu bytes", i.ep_attr->max_msg_size);
  if (i.nic != nullptr && i.nic->link_attr != nullptr && i.nic->link_attr->state == kLinkDown) return "its link is down";
  return "";
}

class Passed {
 public:
  void add(const Info& i, const std::string& why) { add(name_of(i) + ": " + why); }
  void add(const std::string& text) {
    if (text_.find(text) != std::string::npos) return;
    if (text_.size() > kEnough) ++more_;
    else text_ += (text_.empty() ? "" : "; ") + text;
  }
  std::string text() const { return more_ == 0 ? text_ : format("%s; and %d more", text_.c_str(), more_); }

 private:
  static constexpr size_t kEnough = 400;
  std::string text_;
  int more_ = 0;
};

// A provider's domain is the interface; this host has all of 127.0.0.0/8 at lo, and ranks of emulated nodes have one each.
bool is_at(const Info& i, const char* wanted) {
  const std::string has = i.src_addr != nullptr ? address_text(i.addr_format, i.src_addr, i.src_addrlen) : "";
  const auto loops = [](const std::string& a) { return a.compare(0, 4, "127.") == 0; };
  return has == wanted || (loops(has) && loops(wanted));
}

void set_address(Info& i, const char* address) {
  if (i.addr_format == kSockaddrIn) inet_pton(AF_INET, address, &static_cast<sockaddr_in*>(i.src_addr)->sin_addr);
  if (i.addr_format == kSockaddrIn6) inet_pton(AF_INET6, address, &static_cast<sockaddr_in6*>(i.src_addr)->sin6_addr);
}

}  // namespace

bool is_hardware(const Info& i) { return i.nic != nullptr && i.nic->bus_attr != nullptr && i.nic->bus_attr->bus_type == kBusPci; }

bool is_shared_memory(const Info& i) { return core_of(i) == "shm"; }

bool kernel_has_nics(const std::string& classes) {
  for (const char* kind : {"/infiniband", "/cxi"}) {
    DIR* dir = opendir((classes + kind).c_str());
    bool any = false;
    for (const dirent* e = nullptr; dir != nullptr && (e = readdir(dir)) != nullptr;) any |= e->d_name[0] != '.';
    if (dir != nullptr) closedir(dir);
    if (any) return true;
  }
  return false;
}

bool is_ordered(const Info& i) {
  const auto keeps = [](uint64_t order) { return (order & (kOrderWaw | kOrderRmaWaw)) != 0; };
  return is_hardware(i) && keeps(i.tx_attr->msg_order) && keeps(i.rx_attr->msg_order) && (i.rx_attr->comp_order & kOrderData) != 0 &&
         i.ep_attr->max_order_waw_size > sizeof(Credit) && i.domain_attr->data_progress == kProgressAuto;
}

std::string address_text(uint32_t address_format, const void* address, size_t bytes) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address_format == kSockaddrIn && bytes >= sizeof(sockaddr_in)) {
    sockaddr_in a;
    memcpy(&a, address, sizeof a);
    inet_ntop(AF_INET, &a.sin_addr, text, sizeof text);
  } else if (address_format == kSockaddrIn6 && bytes >= sizeof(sockaddr_in6)) {
    sockaddr_in6 a;
    memcpy(&a, address, sizeof a);
    inet_ntop(AF_INET6, &a.sin6_addr, text, sizeof text);
  }
  return text;
}

std::string name_of(const Info& i) {
  std::string text = provider_of(i) + " " + domain_of(i);
  const std::string address = i.src_addr != nullptr ? address_text(i.addr_format, i.src_addr, i.src_addrlen) : "";
  return address.empty() ? text : text + " " + address;
}

void set_port(Info& i, uint16_t port) {
  if (i.src_addr != nullptr && i.addr_format == kSockaddrIn) static_cast<sockaddr_in*>(i.src_addr)->sin_port = htons(port);
  if (i.src_addr != nullptr && i.addr_format == kSockaddrIn6) static_cast<sockaddr_in6*>(i.src_addr)->sin6_port = htons(port);
}

std::vector<InfoPtr> choose(const Api& api, const mknet_ofi& s) {
  const std::vector<std::string> devices = split(s.devices);
  int error = 0;
  std::vector<InfoPtr> all = offers(api, s.provider, &error);
  if (error != 0)
    fail(MKNET_ERROR_UNSUPPORTED, "libfabric (%s): %s can write to memory of peers with data for their completion queues, and tell when a write is delivered: %s",
         api.file.c_str(), s.provider != nullptr ? format("the provider %s is not here, or not one that", s.provider).c_str() : "no provider", api.strerror(-error));
  Passed passed;
  std::vector<std::string> domains;
  std::vector<InfoPtr> usable;
  for (const InfoPtr& i : all) {
    if (std::find(domains.begin(), domains.end(), domain_of(*i)) == domains.end()) domains.push_back(domain_of(*i));
    if (!devices.empty() && std::find(devices.begin(), devices.end(), domain_of(*i)) == devices.end()) continue;
    std::string why = fault_of(*i);
    const bool named = s.provider != nullptr || !devices.empty();
    if (why.empty() && !is_hardware(*i)) {
      // The address of the job is an address of its control connections; NICs have their own.
      const std::string address = i->src_addr != nullptr ? address_text(i->addr_format, i->src_addr, i->src_addrlen) : "";
      if (s.hardware != 0)
        why = "it is no NIC, but software";
      else if (!named && core_of(*i) != kSoftware)
        why = "it is used when it is asked for by name";
      else if (s.address != nullptr && devices.empty() && !address.empty() && !is_at(*i, s.address))
        why = format("its address is not %s", s.address);
    }
    if (!why.empty())
      passed.add(*i, why);
    else
      usable.push_back(i);
  }
  // Of a NIC that is named, the address of the job comes first.
  const auto at_address = [&](const InfoPtr& i) { return s.address != nullptr && !is_hardware(*i) && is_at(*i, s.address); };
  const auto others = std::stable_partition(usable.begin(), usable.end(), at_address);
  for (auto i = usable.begin(); i != others; ++i) set_address(**i, s.address);
  // One provider; the first that has hardware, if any has. Of each domain its first offer.
  const auto hardware = std::find_if(usable.begin(), usable.end(), [](const InfoPtr& i) { return is_hardware(*i); });
  const InfoPtr first = hardware != usable.end() ? *hardware : usable.empty() ? nullptr : usable.front();
  std::vector<InfoPtr> chosen;
  for (const InfoPtr& i : usable) {
    if (provider_of(*i) != provider_of(*first) || chosen.size() == kMaxNics) continue;
    if (devices.empty() && !is_hardware(*first) && !chosen.empty()) break;
    if (std::none_of(chosen.begin(), chosen.end(), [&](const InfoPtr& c) { return domain_of(*c) == domain_of(*i); })) chosen.push_back(i);
  }
  const auto place = [&](const InfoPtr& i) { return std::find(devices.begin(), devices.end(), domain_of(*i)); };
  if (!devices.empty()) std::stable_sort(chosen.begin(), chosen.end(), [&](const InfoPtr& a, const InfoPtr& b) { return place(a) < place(b); });
  const auto is_here = [&](const std::string& d) { return std::find(domains.begin(), domains.end(), d) != domains.end(); };
  if (!std::all_of(devices.begin(), devices.end(), is_here)) passed.add(there_are(domains));
  if (chosen.empty() || (!devices.empty() && chosen.size() != devices.size()))
    fail(MKNET_ERROR_UNSUPPORTED, "libfabric (%s): %s can be used: %s", api.file.c_str(),
         devices.empty() ? "no provider" : format("of the NICs %s, %zu", s.devices, chosen.size()).c_str(), passed.text().c_str());
  return chosen;
}

}  // namespace mk::net::ofi
