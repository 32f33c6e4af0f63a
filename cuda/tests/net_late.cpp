// What is late: what was missing at two looks for trouble, between which all that had come was taken. A thread that did not
// run for a while, on a busy machine or in a debugger, finds that nothing was late. Here is one, with a NIC and a clock
// that the test moves.
#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "net/control.h"
#include "net/error.h"
#include "net/transfer.h"
#include "tests/check.h"

using namespace mk::net;

namespace {

constexpr uint64_t kSecond = 1000000000u;
constexpr uint64_t kLook = kSecond / 10;  // longer than from one look for trouble to the next

// Completes what the test lets it; the thread that polls may be stopped for a minute behind a poll.
class SlowNic final : public Nic {
 public:
  SlowNic(uint64_t* now, bool ordered) : now_(now) { p_.name = "slow", p_.ordered = ordered, p_.max_write = 64, p_.credits = 16; }

  std::deque<Completion> ready;      // for the next poll
  std::vector<uint64_t> posted;      // ids
  bool stop = false;                 // behind the next poll

  const NicProperties& properties() const override { return p_; }
  void add_region(uint32_t, const Region&) override {}
  Blob common(uint64_t) override { return {}; }
  Blob endpoint(uint32_t) override { return {}; }
  void connect(uint32_t, uint64_t, const Blob&, const Blob&, void*) override {}
  size_t post(const Write* writes, size_t n) override {
    for (size_t i = 0; i < n; ++i) posted.push_back(writes[i].id);
    return n;
  }
  size_t poll(Completion* out, size_t n) override {
    size_t found = 0;
    for (; found < n && !ready.empty(); ++found, ready.pop_front()) out[found] = ready.front();
    if (stop) *now_ += 60 * kSecond;
    stop = false;
    return found;
  }
  bool listens() const override { return false; }
  void check() override {}
  void disconnect() override {}
  std::string path(uint32_t, uint32_t) const override { return "nowhere"; }
  std::string describe() const override { return "slow"; }

 private:
  uint64_t* now_;
  NicProperties p_;
};

// Rank 0 of two, whose commands have a second.
struct Rank {
  uint64_t now = 100 * kSecond;
  SlowNic nic;
  std::vector<uint64_t> heap = std::vector<uint64_t>(64), inbox = std::vector<uint64_t>(inbox_bytes(2) / 8), outbox = std::vector<uint64_t>(outbox_bytes(2) / 8);
  std::vector<Region> regions = std::vector<Region>(kRegions);
  std::unique_ptr<Transfer> transfer;

  // `device`: the heap is its memory.
  explicit Rank(bool ordered, const Device* device = nullptr) : nic(&now, ordered) {
    const auto region = [&](uint32_t number, std::vector<uint64_t>& memory) {
      regions[number].base = reinterpret_cast<char*>(memory.data()), regions[number].bytes = memory.size() * 8;
    };
    region(kHeap, heap), region(kInbox, inbox), region(kOutbox, outbox);
    if (device != nullptr) regions[kHeap].memory = MKNET_DEVICE;
    TransferSettings s;
    s.device = device;
    s.world = 2, s.timeout_ns = kSecond;
    s.clock = {[](void* user) { return *static_cast<uint64_t*>(user); }, &now};
    s.nics = {&nic};
    s.regions = &regions;
    transfer = ordered ? make_ordered(s) : make_unordered(s);
    PeerSettings p;
    p.nics = {0}, p.credits = 16;
    transfer->add_peer(1, p);
    look();
  }
  // One round of work, with a look for trouble; what that says, or "".
  std::string look() {
    now += kLook;
    try {
      transfer->progress();
    } catch (const Error& e) {
      return std::to_string(e.code) + " " + e.what();
    }
    return "";
  }
};

}  // namespace

TEST(late_is_no_command_that_was_complete_while_the_thread_stood_still) {
  for (const bool lost : {false, true}) {
    Rank r(true);
    mknet_command c = {};
    c.op = MKNET_WRITE, c.peer = 1, c.rows = 1, c.bytes = 64, c.flag = MKNET_NO_FLAG;
    r.transfer->submit(c, 0);
    r.nic.stop = true;
    CHECK(r.look() == "");  // a minute later than it was submitted
    CHECK(r.nic.posted.size() == 1);
    if (!lost && !r.nic.posted.empty()) {
      Completion done;
      done.id = r.nic.posted[0];
      r.nic.ready.push_back(done);
    }
    const std::string text = r.look();
    CHECK(r.transfer->completed() == (lost ? 0u : 1u));
    CHECK(lost ? text.find("6 rank 0: command 0 to rank 1 over slow (nowhere) is not complete after 60") == 0 : text.empty());
  }
}

// Flags in device memory are stored by the device when it comes to it. Peers do not wait for that, so it is the proxy that does: what
// the device has to do stays bounded, and so does what it reads the flags' values from.
TEST(late_flags_of_a_slow_device_are_bounded) {
  struct Slow {
    uint64_t waiting = 0, most = 0, marks = 0, asked = 0;
  } slow;
  mknet_device f = {};
  f.user = &slow;
  f.store = [](void* user, void* to, uint64_t value) {
    Slow& s = *static_cast<Slow*>(user);
    s.most = std::max(s.most, ++s.waiting);
    memcpy(to, &value, sizeof value);
    return 0;
  };
  f.mark = [](void* user, uint64_t* ticket) {
    *ticket = ++static_cast<Slow*>(user)->marks;
    return 0;
  };
  f.done = [](void* user, uint64_t) {
    Slow& s = *static_cast<Slow*>(user);
    if (++s.asked % 3 != 0) return 0;
    s.waiting = 0;
    return 1;
  };
  const Device device(&f);
  Rank r(false, &device);
  for (uint64_t i = 0; i < 5000; ++i) {
    Notice n = {};
    n.sequence = i + 1, n.flag = 8, n.value = i + 1;
    memcpy(reinterpret_cast<char*>(r.inbox.data()) + kInboxStride + kNoticesAt + i % kWindow * sizeof n, &n, sizeof n);
    Completion notice;
    notice.kind = Completion::kArrived, notice.imm = pack(1, true, i);
    r.nic.ready.push_back(notice);
    CHECK(r.look() == "");
  }
  CHECK(r.heap[1] == 5000 && slow.most <= 2048);
}

// What is missing, in the words that fit.
TEST(late_says_what_is_missing) {
  const auto text_of = [](uint32_t rows, uint64_t bytes, uint64_t flag, int commands) {
    Rank r(true);
    mknet_command c = {};
    c.op = MKNET_WRITE, c.peer = 1, c.rows = rows, c.bytes = bytes, c.source_stride = 16, c.target_stride = 32, c.flag = flag;
    for (int i = 0; i < commands; ++i) r.transfer->submit(c, static_cast<uint64_t>(i));
    r.nic.stop = true;
    r.look();
    const std::string text = r.look();
    const size_t at = text.find(" s: ");
    return at == std::string::npos ? text : text.substr(at + 4);
  };
  CHECK(text_of(1, 64, MKNET_NO_FLAG, 1) == "of its writes, for 64 bytes, 1 is missing; 1 command is under way");
  CHECK(text_of(3, 8, 64, 2) == "of its writes, for 3 rows of 8 bytes and the flag at 64, 4 are missing; 2 commands are under way");
  CHECK(text_of(0, 0, 8, 1) == "of its writes, for the flag at 8, 1 is missing; 1 command is under way");
}

TEST(late_is_no_arrival_that_was_whole_while_the_thread_stood_still) {
  for (const bool lost : {false, true}) {
    Rank r(false);
    Notice n = {};
    n.sequence = 1, n.bytes = 64, n.rows = 1, n.pieces = 1, n.flag = 8, n.value = 5;
    memcpy(reinterpret_cast<char*>(r.inbox.data()) + kInboxStride + kNoticesAt, &n, sizeof n);
    Completion piece;
    piece.kind = Completion::kArrived, piece.imm = pack(1, false, 0);
    r.nic.ready.push_back(piece);
    CHECK(r.look() == "");
    r.nic.stop = true;
    CHECK(r.look() == "");
    piece.imm = pack(1, true, 0);
    if (!lost) r.nic.ready.push_back(piece);
    const std::string text = r.look();
    CHECK(r.heap[1] == (lost ? 0u : 5u));
    CHECK(lost ? text.find("6 rank 0: command 0 of rank 1 is not whole after") == 0 : text.empty());
  }
}
