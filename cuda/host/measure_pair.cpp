#include "host/measure_pair.h"

#include "host/error.h"

namespace mk::measure {

void check_mknet(int code, const mknet_error& e) {
  if (code != MKNET_OK) fail(MK_ERROR_BOOTSTRAP, "the emulated link: %.400s", e.text);
}

NetPair::NetPair(const PairSide sides[2], uint64_t bytes, bool unordered, uint64_t timeout_ns) {
  try {
    for (const int rank : {0, 1}) open(rank, sides[rank], bytes, unordered, timeout_ns);
    // Both sides' before either connects.
    std::vector<char> common[2], own[2];
    for (const int rank : {0, 1}) common[rank] = endpoint(rank, -1), own[rank] = endpoint(rank, 1 - rank);
    for (const int rank : {0, 1}) connect(rank, common[1 - rank], own[1 - rank]);
    for (mknet* net : nets_) {
      mknet_error e;
      check_mknet(mknet_start(net, &e), e);
    }
  } catch (...) {
    close();
    throw;
  }
}

NetPair::~NetPair() { close(); }

void NetPair::close() {
  for (mknet* net : nets_)
    if (net != nullptr) mknet_destroy(net, nullptr);
}

void NetPair::open(int rank, const PairSide& side, uint64_t bytes, bool unordered, uint64_t timeout_ns) {
  mknet_desc d;
  MKNET_INIT(&d);
  d.backend = "emu";
  d.rank = rank;
  d.world = 2;
  d.job = 1;
  d.device_producers = 1;
  d.timeout_ns = timeout_ns;
  d.device = side.device;
  d.emu.unordered = unordered;
  mknet_error e;
  check_mknet(mknet_create(&d, &nets_[rank], &e), e);
  mknet_range heap;
  MKNET_INIT(&heap);
  heap.base = side.heap;
  heap.bytes = bytes;
  heap.memory = side.device != nullptr ? MKNET_DEVICE : MKNET_HOST;
  heap.fd = -1;
  uint32_t region = 0;
  check_mknet(mknet_register(nets_[rank], &heap, &region, &e), e);
}

std::vector<char> NetPair::endpoint(int rank, int peer) const {
  uint64_t length = 0;
  mknet_error e;
  check_mknet(mknet_endpoint(nets_[rank], peer, nullptr, &length, &e), e);
  std::vector<char> data(length);
  check_mknet(mknet_endpoint(nets_[rank], peer, data.data(), &length, &e), e);
  return data;
}

void NetPair::connect(int rank, const std::vector<char>& common, const std::vector<char>& own) const {
  mknet_error e;
  check_mknet(mknet_connect(nets_[rank], 1 - rank, common.data(), common.size(), own.data(), own.size(), nullptr, &e), e);
}

}  // namespace mk::measure
