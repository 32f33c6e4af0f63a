#include <algorithm>

#include "net/transfer.h"

namespace mk::net {

namespace {

class Ordered final : public Transfer {
 public:
  explicit Ordered(const TransferSettings& settings) : Transfer(settings), peers_(settings.world) {}

  void add_peer(uint32_t peer, const PeerSettings& settings) override {
    for (Way& w : make_ways(settings)) {
      peers_[peer].lanes.emplace_back();
      peers_[peer].lanes.back().way = std::move(w);
    }
  }
  uint32_t lanes(uint32_t peer) const override { return static_cast<uint32_t>(peers_[peer].lanes.size()); }
  std::string lane_text(uint32_t peer, uint32_t lane) const override { return text_of(peer, peers_[peer].lanes[lane].way); }

 protected:
  bool knows(uint32_t peer) const override { return !peers_[peer].lanes.empty(); }

  uint64_t begin(uint64_t number) override {
    const UnderWay& u = under_way(number);
    const mknet_command& c = u.command;
    const uint64_t writes = pieces_of(c) + (c.flag != MKNET_NO_FLAG ? 1 : 0);
    if (writes == 0) return 0;
    Lane& lane = peers_[c.peer].lanes[choose(u)];
    lane.queue.push_back(number);
    if (!lane.active) active_.push_back({c.peer, static_cast<uint32_t>(&lane - peers_[c.peer].lanes.data())});
    lane.active = true;
    return writes;
  }

  bool advance() override {
    bool any = false;
    for (size_t i = 0; i < active_.size();) {
      Lane& lane = peers_[active_[i].first].lanes[active_[i].second];
      fill(lane);
      any |= post(lane.way);
      if (lane.queue.empty() && lane.way.waiting.empty()) {
        lane.active = false;
        active_[i] = active_.back();
        active_.pop_back();
      } else {
        ++i;
      }
    }
    return any;
  }

  void arrived(uint32_t nic, uint32_t imm) override {
    fail(MKNET_ERROR_PEER, "%s: an immediate (%#x) came, and none is used", s_.nics[nic]->properties().name.c_str(), imm);
  }
  void credit_written(uint32_t) override {}

 private:
  struct Lane {
    Way way;
    std::deque<uint64_t> queue;  // commands not yet wholly cut
    Cursor cursor;               // of the first
    bool active = false;
  };
  struct Peer {
    std::vector<Lane> lanes;
    std::unordered_map<uint64_t, uint32_t> lane_of_flag;
    uint32_t turn = 0;
  };

  uint32_t choose(const UnderWay& u) {
    Peer& p = peers_[u.command.peer];
    if (u.probe_lane >= 0) return static_cast<uint32_t>(u.probe_lane);
    const uint32_t turn = p.turn % static_cast<uint32_t>(p.lanes.size());
    if (u.command.flag == MKNET_NO_FLAG || p.lanes.size() == 1) return p.turn++, turn;
    const auto known = p.lane_of_flag.try_emplace(u.command.flag, turn);
    if (known.second) p.turn++;
    return known.first->second;
  }

  // Makes writes of the lane's commands, as many as one doorbell takes.
  void fill(Lane& lane) {
    while (!lane.queue.empty() && lane.way.waiting.size() < kBatch) {
      const uint64_t number = lane.queue.front();
      const UnderWay& u = under_way(number);
      Write w;
      w.id = id_of(number, kCommand);
      w.peer = u.command.peer;
      w.lane = lane.way.lane;
      if (lane.cursor.next(u.command, piece_, &w)) {
        lane.way.waiting.push_back(w);
        continue;
      }
      if (u.command.flag != MKNET_NO_FLAG) {
        memcpy(outbox(slot_at(number)), &u.command.value, 8);
        w.region = kOutbox;
        w.source = slot_at(number);
        w.target_region = u.probe_lane >= 0 ? kInbox : kHeap;
        w.target = u.command.flag;
        w.bytes = 8;
        lane.way.waiting.push_back(w);
      }
      lane.queue.pop_front();
      lane.cursor = {};
    }
  }

  std::vector<Peer> peers_;
  std::vector<std::pair<uint32_t, uint32_t>> active_;  // peer, lane
};

}  // namespace

std::unique_ptr<Transfer> make_ordered(const TransferSettings& settings) { return std::make_unique<Ordered>(settings); }

}  // namespace mk::net
