// How two ranks come together: the endpoint data of a rank, what both must agree on, and which of their NICs are connected.
#include <algorithm>
#include <cinttypes>

#include "net/network.h"

namespace mk::net {

namespace {

constexpr uint32_t kMagic = 0x6b6e6574u;

}  // namespace

// What both sides must agree on, then each NIC's own part.
void Network::build_common() {
  if (registered_ == 0) fail(MKNET_ERROR_ARGUMENT, "the heap is registered first");
  memset(regions_[kInbox].base, 0, regions_[kInbox].bytes);
  BlobWriter w;
  w.put(kMagic);
  w.put(MKNET_VERSION);
  w.put(job_);
  w.put(rank_);
  w.put(world_);
  w.put_text(backend_);
  w.put(nics_[0]->properties().ordered);
  w.put(regions_[kHeap].bytes);
  w.put(start_);
  w.put(kWindow);
  w.put(static_cast<uint32_t>(nics_.size()));
  for (size_t i = 0; i < nics_.size(); ++i) {
    w.put(rails_[i]);
    w.put(nics_[i]->properties().lanes);
    w.put(nics_[i]->properties().credits);
    const Blob blob = nics_[i]->common(job_);
    w.put_bytes(blob.data(), blob.size());
  }
  common_ = w.take();
}

const Blob& Network::endpoint(int32_t peer) {
  if (peer < -1 || peer >= static_cast<int32_t>(world_) || peer == static_cast<int32_t>(rank_))
    fail(MKNET_ERROR_ARGUMENT, "rank %u has no endpoint for rank %d", rank_, peer);
  if (common_.empty()) build_common();
  if (peer == -1) return common_;
  Blob& blob = endpoints_[static_cast<uint32_t>(peer)];
  if (blob.empty()) {
    if (proxy_) fail(MKNET_ERROR_ARGUMENT, "the network was started without rank %d; reset it first", peer);
    BlobWriter w;
    w.put(job_);
    for (const auto& nic : nics_) {
      const Blob part = nic->endpoint(static_cast<uint32_t>(peer));
      w.put_bytes(part.data(), part.size());
    }
    blob = w.take();
  }
  return blob;
}

void Network::refuse(uint32_t peer, const Error& e) const {
  fail(e.code, "rank %u cannot connect to rank %u by %s: %s", rank_, peer, backend_.c_str(), e.what());
}

std::vector<std::pair<uint32_t, uint32_t>> Network::pair_nics(const std::vector<uint32_t>& theirs) const {
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  for (uint32_t i = 0; i < rails_.size(); ++i)
    for (uint32_t j = 0; j < theirs.size(); ++j)
      if (rails_[i] == theirs[j]) pairs.emplace_back(i, j);
  // Both sides number the pairs alike.
  std::sort(pairs.begin(), pairs.end(), [&](const auto& a, const auto& b) { return rails_[a.first] < rails_[b.first]; });
  if (pairs.empty())
    for (uint32_t i = 0; i < std::min(rails_.size(), theirs.size()); ++i) pairs.emplace_back(i, i);
  return pairs;
}

void Network::connect(uint32_t peer, const Blob& common, const Blob& own, void* mapped) {
  if (peer >= world_ || peer == rank_) fail(MKNET_ERROR_ARGUMENT, "rank %u cannot connect to rank %u in a world of %u", rank_, peer, world_);
  if (common_.empty() || proxy_) fail(MKNET_ERROR_ARGUMENT, "peers are connected after the endpoint was made and before the start");
  if (std::find(peers_.begin(), peers_.end(), peer) != peers_.end()) fail(MKNET_ERROR_ARGUMENT, "rank %u is connected already", peer);
  try {
    BlobReader r(common.data(), common.size());
    if (r.get<uint32_t>() != kMagic) fail(MKNET_ERROR_PEER, "what came is no endpoint data");
    if (const uint32_t v = r.get<uint32_t>(); v != MKNET_VERSION) fail(MKNET_ERROR_PEER, "its library has version %u, this one %u", v, MKNET_VERSION);
    if (r.get<uint64_t>() != job_) fail(MKNET_ERROR_PEER, "its endpoint belongs to another job or generation");
    if (const uint32_t n = r.get<uint32_t>(); n != peer) fail(MKNET_ERROR_PEER, "the endpoint is rank %u's", n);
    if (const uint32_t n = r.get<uint32_t>(); n != world_) fail(MKNET_ERROR_PEER, "its world has %u ranks, this one %u", n, world_);
    if (const std::string b = r.get_text(); b != backend_) fail(MKNET_ERROR_PEER, "it uses %.40s", b.c_str());
    if (r.get<bool>() != nics_[0]->properties().ordered) fail(MKNET_ERROR_PEER, "one side keeps the order of writes, the other does not");
    if (const uint64_t n = r.get<uint64_t>(); n != regions_[kHeap].bytes)
      fail(MKNET_ERROR_PEER, "its heap has %" PRIu64 " bytes, this one %" PRIu64, n, regions_[kHeap].bytes);
    if (r.get<uint64_t>() != start_ || r.get<uint32_t>() != kWindow) fail(MKNET_ERROR_PEER, "it counts commands otherwise");
    const uint32_t theirs = r.get<uint32_t>();
    if (theirs == 0 || theirs > kMaxNics) fail(MKNET_ERROR_PEER, "it has %u NICs; 1 to %u can be used", theirs, kMaxNics);
    BlobReader p(own.data(), own.size());
    if (p.get<uint64_t>() != job_) fail(MKNET_ERROR_PEER, "its endpoint belongs to another job or generation");
    struct Theirs {
      uint32_t lanes, credits;
      Blob common, own;
    };
    std::vector<Theirs> nics;
    std::vector<uint32_t> rails;
    for (uint32_t i = 0; i < theirs; ++i) {
      const uint32_t rail = r.get<uint32_t>();
      if (std::find(rails.begin(), rails.end(), rail) != rails.end()) fail(MKNET_ERROR_PEER, "it has two NICs of rail %u", rail);
      rails.push_back(rail);
      const uint32_t lanes = r.get<uint32_t>(), credits = r.get<uint32_t>();
      nics.push_back({lanes, credits, r.get_bytes(), p.get_bytes()});
    }
    r.end();
    p.end();
    PeerSettings settings;
    settings.credits = UINT32_MAX;
    for (const auto& [mine, other] : pair_nics(rails)) {
      Nic& nic = *nics_[mine];
      const Theirs& t = nics[other];
      if (t.lanes != nic.properties().lanes) fail(MKNET_ERROR_PEER, "it has %u queue pairs per NIC, this rank %u", t.lanes, nic.properties().lanes);
      settings.credits = std::min({settings.credits, t.credits, nic.properties().credits});
      settings.nics.push_back(mine);
      settings.crossed.push_back(rails_[mine] == rails[other] ? "" : format("rail %u here, rail %u there", rails_[mine], rails[other]));
      try {
        nic.connect(peer, job_, t.common, t.own, mapped);
      } catch (const Error& e) {
        if (rails_[mine] == rails[other]) throw;
        fail(e.code, "%s; this is rail %u here and rail %u there, which may not be connected", e.what(), rails_[mine], rails[other]);
      }
    }
    if (!nics_[0]->properties().ordered && settings.credits == 0) fail(MKNET_ERROR_PEER, "one side cannot receive");
    set_up_transfer();
    transfer_->set_piece();
    transfer_->add_peer(peer, settings);
  } catch (const Error& e) {
    refuse(peer, e);
  }
  peers_.push_back(peer);
}

}  // namespace mk::net
