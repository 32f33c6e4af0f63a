// The C interface: include/mknet.h.
#include <algorithm>
#include <memory>

#include "net/backends.h"
#include "net/join.h"
#include "net/network.h"

using mk::net::Blob;
using mk::net::check_struct;
using mk::net::fail;
using mk::net::guarded;
using mk::net::Network;

struct mknet : Network {
  using Network::Network;
};

namespace {

mknet* checked(mknet* net) {
  if (net == nullptr) fail(MKNET_ERROR_ARGUMENT, "the network is NULL");
  return net;
}

void copy_text(const std::string& text, char* out, uint64_t length) {
  if (out == nullptr || length == 0) fail(MKNET_ERROR_ARGUMENT, "no room for the text");
  const size_t n = std::min<size_t>(text.size(), length - 1);
  memcpy(out, text.data(), n);
  out[n] = '\0';
}

Blob blob_of(const void* data, uint64_t length) {
  const auto* p = static_cast<const unsigned char*>(data);
  return p == nullptr ? Blob() : Blob(p, p + length);
}

}  // namespace

extern "C" {

uint32_t mknet_version(void) { return MKNET_VERSION; }

int mknet_usable(const mknet_desc* desc, char* text, uint64_t length, mknet_error* error) {
  return guarded(error, [&] {
    check_struct(desc, "mknet_desc");
    if (desc->backend == nullptr) fail(MKNET_ERROR_ARGUMENT, "no backend is named");
    std::string all;
    for (const auto& nic : mk::net::open_nics(*desc, mk::net::Device(desc->device))) all += (all.empty() ? "" : "; ") + nic->describe();
    copy_text(all, text, length);
  });
}

int mknet_create(const mknet_desc* desc, mknet** out, mknet_error* error) {
  return guarded(error, [&] {
    check_struct(desc, "mknet_desc");
    if (out == nullptr) fail(MKNET_ERROR_ARGUMENT, "no place for the network");
    *out = new mknet(*desc);
  });
}

int mknet_join(const mknet_desc* desc, const mknet_range* heap, const mknet_group* group, mknet** out, mknet_error* error) {
  return guarded(error, [&] {
    check_struct(desc, "mknet_desc");
    check_struct(heap, "mknet_range");
    check_struct(group, "mknet_group");
    if (out == nullptr) fail(MKNET_ERROR_ARGUMENT, "no place for the network");
    auto joined = mk::net::join(*desc, *heap, *group, [](const mknet_desc& d) { return std::unique_ptr<Network>(new mknet(d)); });
    *out = static_cast<mknet*>(joined.release());
  });
}

int mknet_rejoin(mknet* net, const mknet_group* group, mknet_error* error) {
  return guarded(error, [&] {
    check_struct(group, "mknet_group");
    mk::net::rejoin(*checked(net), *group);
  });
}

int mknet_destroy(mknet* net, mknet_error* error) {
  return guarded(error, [&] { delete net; });
}

int mknet_register(mknet* net, const mknet_range* range, uint32_t* region, mknet_error* error) {
  return guarded(error, [&] {
    check_struct(range, "mknet_range");
    const uint32_t number = checked(net)->add(*range);
    if (region != nullptr) *region = number;
  });
}

int mknet_endpoint(mknet* net, int32_t peer, void* data, uint64_t* length, mknet_error* error) {
  return guarded(error, [&] {
    if (length == nullptr) fail(MKNET_ERROR_ARGUMENT, "no place for the endpoint's length");
    const Blob& blob = checked(net)->endpoint(peer);
    if (data != nullptr && *length >= blob.size()) memcpy(data, blob.data(), blob.size());
    *length = blob.size();
  });
}

int mknet_connect(mknet* net, int32_t peer, const void* common, uint64_t common_length, const void* own, uint64_t own_length,
                  void* mapped, mknet_error* error) {
  return guarded(error, [&] {
    if (peer < 0) fail(MKNET_ERROR_ARGUMENT, "rank %d cannot be connected", peer);
    checked(net)->connect(static_cast<uint32_t>(peer), blob_of(common, common_length), blob_of(own, own_length), mapped);
  });
}

int mknet_start(mknet* net, mknet_error* error) {
  return guarded(error, [&] { checked(net)->start(); });
}

int mknet_verify(mknet* net, uint64_t timeout_ns, mknet_error* error) {
  return guarded(error, [&] { checked(net)->verify(timeout_ns); });
}

mknet_fifo* mknet_queue(mknet* net) { return net == nullptr ? nullptr : net->ring().head(); }

int mknet_push(mknet* net, const mknet_command* command, uint64_t timeout_ns, uint64_t* position, mknet_error* error) {
  return guarded(error, [&] {
    if (command == nullptr) fail(MKNET_ERROR_ARGUMENT, "the command is NULL");
    const uint64_t p = checked(net)->push(*command, timeout_ns);
    if (position != nullptr) *position = p;
  });
}

int mknet_flush(mknet* net, int32_t peer, uint64_t position, uint64_t timeout_ns, mknet_error* error) {
  return guarded(error, [&] { checked(net)->flush(peer, position, timeout_ns); });
}

int mknet_drain(mknet* net, uint64_t timeout_ns, mknet_error* error) {
  return guarded(error, [&] { checked(net)->drain(timeout_ns); });
}

void mknet_abort(mknet* net, const char* reason) {
  if (net != nullptr) net->abort(reason);
}

int mknet_status(mknet* net, uint64_t timeout_ns, mknet_error* error) {
  return guarded(error, [&] {
    checked(net)->verdict().wait(timeout_ns);
    net->verdict().check();
  });
}

int mknet_reset(mknet* net, uint64_t job, mknet_error* error) {
  return guarded(error, [&] { checked(net)->reset(job); });
}

int mknet_describe(mknet* net, char* text, uint64_t length, mknet_error* error) {
  return guarded(error, [&] { copy_text(checked(net)->describe(), text, length); });
}

int mknet_statistics(mknet* net, mknet_stats* stats, mknet_error* error) {
  return guarded(error, [&] {
    check_struct(stats, "mknet_stats");
    checked(net)->statistics(stats);
  });
}

}  // extern "C"
