// Which of libfabric's providers and domains are used.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "include/mknet.h"
#include "net/ofi_api.h"

namespace mk::net::ofi {

// A domain (a NIC) of a provider, with what the provider says about it.
using InfoPtr = std::shared_ptr<Info>;

bool is_hardware(const Info& info);

// True of the provider for processes of one host that keeps its endpoints in /dev/shm.
bool is_shared_memory(const Info& info);

// True if the kernel knows NICs of a kind that libfabric has providers for. To ask libfabric itself takes half a second.
bool kernel_has_nics(const std::string& classes = "/sys/class");

// True if a flag may be written behind its data: the provider keeps the order of writes, in memory too, and a NIC places
// them. A provider in software places a flag byte by byte, whatever it says about order.
bool is_ordered(const Info& info);

// "tcp;ofi_rxm eth0 10.0.0.1"
std::string name_of(const Info& info);
// An IP address of a provider over IP as text, else "".
std::string address_text(uint32_t format, const void* address, size_t bytes);

// Has an endpoint that is made of it listen at a port; of a provider over IP.
void set_port(Info& info, uint16_t port);

// The domains to use, in rail order: those that the settings name; else all NICs of the first provider that has hardware;
// else the provider tcp at the address of the settings. Throws UNSUPPORTED, with what was found and why it was passed
// over, if there is none.
std::vector<InfoPtr> choose(const Api& api, const mknet_ofi& settings);

}  // namespace mk::net::ofi
