// The backend interface: one NIC of a rank, which writes into registered memory of peers.
//
// A NIC has one or more lanes to every peer (queue pairs). It takes writes, with or without a 32-bit immediate, and
// gives completions: of its own writes, and of immediates that arrived. What commands, flags and credits are it does not
// know (transfer.h). All calls but the constructor's come from one thread at a time; a failure is thrown as Error, names
// NIC, queue pair, peer and status, and leaves the NIC good for disconnect() and destruction only.
//
// Life: made (opened) -> add_region -> endpoint -> connect each peer -> post, poll (found) -> disconnect -> endpoint ... -> gone.
#pragma once
#include <cstdint>
#include <string>

#include "include/mknet.h"
#include "net/blob.h"

namespace mk::net {

constexpr size_t kBatch = 32;  // writes that go to a NIC at once, by one doorbell

struct Region {
  char* base = nullptr;
  uint64_t bytes = 0;
  int memory = MKNET_HOST;
  int fd = -1;            // see mknet_range
  uint64_t fd_offset = 0;
  bool writable = false;  // by peers
  bool bounced = false;   // device memory that no NIC knows (bounce.h)
};

// Regions by number. What the caller registered is 0 (the heap) to 252.
constexpr uint32_t kHeap = 0;
constexpr uint32_t kStage = 253;   // pinned memory through which device memory is sent that no NIC knows
constexpr uint32_t kOutbox = 254;  // the library's own: what it sends (flags, notices, credits)
constexpr uint32_t kInbox = 255;   // what peers' libraries write
constexpr uint32_t kRegions = 256;

struct NicProperties {
  std::string name;        // for people: "mlx5_0 port 1", "emu 0"
  bool ordered = false;    // writes of one lane arrive in the order of posting
  uint64_t max_write = 0;  // bytes
  uint32_t lanes = 1;      // per peer
  uint32_t credits = 0;    // immediates per peer that may be under way to this NIC at once
};

struct Write {
  uint64_t id = 0;           // not 0; comes back in the completion
  uint32_t peer = 0;
  uint32_t lane = 0;
  uint32_t region = kHeap;   // of the source
  uint64_t source = 0;       // offset in it
  uint32_t target_region = kHeap;  // kHeap or kInbox of the peer
  uint64_t target = 0;       // offset in it
  uint64_t bytes = 0;        // 0 only with an immediate
  bool immediate = false;
  uint32_t imm = 0;
};

struct Completion {
  enum Kind : uint8_t { kWritten, kArrived };
  Kind kind = kWritten;
  uint64_t id = 0;   // kWritten: of the write, which is in the peer's memory; its source may be reused
  uint32_t imm = 0;  // kArrived: what came; the bytes of that write are in this rank's memory
};

class Nic {
 public:
  virtual ~Nic() = default;

  virtual const NicProperties& properties() const = 0;

  // Registers memory under a number, in place of what had it before. The heap and the library's own regions come before
  // the first endpoint, what is only sent from at any time. Device memory that the NIC cannot reach, by whatever way, is
  // an Error UNSUPPORTED which tells why for each way: it is bounced then.
  virtual void add_region(uint32_t number, const Region& region) = 0;

  // Endpoint data for all ranks, and for one peer. `job` tells endpoints of other jobs and generations apart.
  virtual Blob common(uint64_t job) = 0;
  virtual Blob endpoint(uint32_t peer) = 0;
  // Connects to a peer by its endpoint data. `mapped`: the peer's heap in this process, or NULL.
  virtual void connect(uint32_t peer, uint64_t job, const Blob& common, const Blob& endpoint, void* mapped) = 0;

  // Posts writes in order, in one doorbell if the device can; returns how many of the first ones were taken. The rest
  // find no room now and are offered again.
  virtual size_t post(const Write* writes, size_t n) = 0;
  virtual size_t poll(Completion* completions, size_t n) = 0;

  // True if poll() must be called although nothing of our own is under way, since immediates may arrive.
  virtual bool listens() const = 0;

  // A descriptor that can be read as soon as poll() has something to give or to do, if may_sleep() said so before; -1: none,
  // so that poll() must be called again and again. Of a generation: it is asked for after connect().
  virtual int wait_fd() const { return -1; }
  // False: something has come since the last poll(), or is to be done that wakes nobody.
  virtual bool may_sleep() { return true; }

  // All peers have written to this rank: what they needed to find it is not needed any more.
  virtual void found() {}

  // Called now and then: looks for failures that no completion tells of.
  virtual void check() = 0;

  // Ends all connections; nothing is under way afterwards. Never throws.
  virtual void disconnect() = 0;

  // The two ends of a lane, for people who look for a fault: GIDs, queue pair numbers.
  virtual std::string path(uint32_t peer, uint32_t lane) const = 0;
  // How memory was registered, and what else people should know; one line.
  virtual std::string describe() const = 0;
  // What to look at when nothing passes although both ends are well.
  virtual const char* advice() const { return "no path between these addresses?"; }
};

}  // namespace mk::net
