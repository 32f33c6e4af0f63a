// From commands to writes and flags, once for all backends. Two ways:
//
// ordered    A command goes over one lane: its pieces, then its flag as one aligned word on the same lane. The peer's CPU
//            has no part in it. Commands without a flag take lanes in turn; all commands for one flag take the same lane,
//            so a flag never goes down. Striping over NICs is by command.
// unordered  Nothing is assumed about the order of writes, not even of two on one lane. Every command to a peer has a
//            number; its pieces carry the number's low bits as an immediate, over all lanes in turn, and a notice says
//            how many pieces there are and which flag follows. The peer counts and raises the flag when all have come, in
//            whatever order. It returns credits: a number's low bits and its notice's place are used again only when the
//            command that had them is complete at the peer, so one that is a call ahead is never mistaken.
//
// Used by the proxy thread only.
#pragma once
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "net/bounce.h"
#include "net/clock.h"
#include "net/control.h"
#include "net/memory.h"
#include "net/nic.h"

namespace mk::net {

struct TransferSettings {
  uint32_t rank = 0, world = 1;
  uint64_t start = 0;       // first position and command number
  uint64_t timeout_ns = 0;  // of a command
  ClockRef clock;
  const Device* device = nullptr;
  Bounce* bounce = nullptr;  // NULL where all memory is on the host
  std::vector<Nic*> nics;
  const std::vector<Region>* regions = nullptr;  // by number; [kHeap], [kInbox], [kOutbox]
};

// What both sides of a pair agreed on.
struct PeerSettings {
  std::vector<uint32_t> nics;  // own NIC of each pair of NICs; both sides number the pairs alike
  uint32_t credits = 0;        // immediates under way per pair
  std::vector<std::string> crossed;  // of each pair: what people should know of NICs on different rails
};

struct TransferCounts {
  uint64_t commands = 0, writes = 0, doorbells = 0, bytes = 0, flags_raised = 0;
};

// One way to a peer: a lane of a NIC, with the writes that wait for room on it.
struct Way {
  uint32_t nic = 0, lane = 0;
  uint32_t pair = 0;  // of NICs
  std::string crossed;
  std::vector<Write> waiting;
};

// Where the cutting of a command into writes has got to.
struct Cursor {
  uint32_t row = 0;
  uint64_t done = 0;  // bytes of the row

  // The next piece of at most `piece` bytes; false when all have been cut.
  bool next(const mknet_command& c, uint64_t piece, Write* w) {
    if (row == c.rows || c.bytes == 0) return false;
    w->region = c.region;
    w->source = c.source + uint64_t{row} * c.source_stride + done;
    w->target = c.target + uint64_t{row} * c.target_stride + done;
    w->bytes = c.bytes - done < piece ? c.bytes - done : piece;
    if ((done += w->bytes) == c.bytes) ++row, done = 0;
    return true;
  }
};

class Transfer {
 public:
  explicit Transfer(const TransferSettings& settings);
  virtual ~Transfer() = default;

  virtual void add_peer(uint32_t peer, const PeerSettings& settings) = 0;
  // Pieces are what all NICs take, which may get less with each peer.
  void set_piece();

  bool room() const { return next_ - oldest_ < kTable; }
  // Takes a command from the FIFO; throws if it cannot be right. Positions come in order.
  void submit(const mknet_command& command, uint64_t position);
  // Has `value` stored in the peer's probe word of a lane, by the way flags go.
  void probe(uint32_t peer, uint32_t lane, uint64_t value);
  uint64_t probe_seen(uint32_t peer, uint32_t lane) const;
  virtual uint32_t lanes(uint32_t peer) const = 0;
  virtual std::string lane_text(uint32_t peer, uint32_t lane) const = 0;

  // Posts what can be posted and takes what has come. True if anything happened.
  bool progress();

  // The descriptors of NICs by which who sleeps is woken when there may be progress; none if some NIC has none, or
  // something else is waited for.
  const std::vector<int>& descriptors();

  uint64_t completed() const { return completed_; }  // all commands at positions below are complete
  // Tells of each peer for which more is complete than was told before: all commands to it at positions below are.
  template <class F>
  void completions(F&& tell) {
    for (const uint32_t peer : news_) peers_done_[peer].told = true, tell(peer, peers_done_[peer].completed);
    news_.clear();
  }
  bool idle() const { return oldest_ == next_ && quiet(); }
  const TransferCounts& counts() const { return counts_; }

 protected:
  struct UnderWay {
    mknet_command command;
    uint64_t position;  // kInternal: not of the FIFO
    uint64_t started_ns;
    uint64_t pending;   // writes not complete
    int32_t probe_lane; // negative: no probe
  };
  static constexpr uint64_t kInternal = UINT64_MAX;
  enum Kind : uint64_t { kCommand = 1, kCredit = 2 };  // and Bounce::kStaged
  static uint64_t id_of(uint64_t number, Kind kind) { return number << 2 | kind; }

  UnderWay& under_way(uint64_t number) { return table_[number & (kTable - 1)]; }
  char* outbox(uint64_t offset) const { return (*s_.regions)[kOutbox].base + offset; }
  char* inbox(uint64_t offset) const { return (*s_.regions)[kInbox].base + offset; }
  uint64_t pieces_of(const mknet_command& c) const { return c.bytes == 0 ? 0 : c.rows * ((c.bytes + piece_ - 1) / piece_); }
  bool post(Way& way);
  std::string text_of(uint32_t peer, const Way& way) const;
  // The ways to a peer, lane by lane with the NICs in turn.
  std::vector<Way> make_ways(const PeerSettings& settings) const;

  // Queues a command that was just entered; returns the number of its writes.
  virtual uint64_t begin(uint64_t number) = 0;
  virtual bool advance() = 0;
  virtual void arrived(uint32_t nic, uint32_t imm) = 0;
  virtual void credit_written(uint32_t peer) = 0;
  virtual bool knows(uint32_t peer) const = 0;
  virtual bool quiet() const { return true; }
  virtual void check_arrivals(uint64_t /*now*/, uint64_t /*before*/) const {}
  // What is waited for since `since` is late if it was late already `before`, at the last look for trouble: all that has come
  // since then was taken. A thread that did not run for long thus takes what came meanwhile before it complains.
  bool overdue(uint64_t since, uint64_t before) const { return before > since && before - since >= s_.timeout_ns; }

  TransferSettings s_;
  uint64_t piece_;  // bytes, what all NICs take
  TransferCounts counts_;

 private:
  void check(const mknet_command& command) const;
  void enter(const mknet_command& command, uint64_t position, int32_t probe_lane);
  void written(uint64_t number);
  void settle(uint32_t peer);
  void retire();
  void look_for_trouble();

  std::vector<UnderWay> table_;
  uint64_t next_, oldest_;  // command numbers
  uint64_t completed_;
  // Of the FIFO's commands to a peer: the numbers of those that are not complete, or behind one that is not.
  struct PeerDone {
    std::deque<uint64_t> numbers;
    uint64_t completed = 0;
    bool told = true;
  };
  std::vector<PeerDone> peers_done_;
  std::vector<uint32_t> news_;  // peers that are not told
  uint64_t checked_ns_ = 0;
  std::vector<int> descriptors_;
};

std::unique_ptr<Transfer> make_ordered(const TransferSettings& settings);
std::unique_ptr<Transfer> make_unordered(const TransferSettings& settings);

}  // namespace mk::net
