// The ways that are compared.
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "net/bench/pair.h"
#include "net/bench/socket.h"

namespace bench {

namespace {

// An emulated link as fast as a ConnectX-7, and two unordered ones as fast as a GPU's EFA NICs.
constexpr double kCx7Bandwidth = 50e9, kEfaBandwidth = 25e9;
constexpr uint64_t kCx7Latency = 2000, kEfaLatency = 8000, kEfaJitter = 4000;

void check(int code, const mknet_error& e) {
  if (code != MKNET_OK) die("%s", e.text);
}

// A description, with the texts that it points to.
struct Settings {
  explicit Settings(const std::string& spec) {
    const size_t colon = spec.find(':');
    const std::string kind = spec.substr(0, colon);
    backend = kind.substr(0, kind.find('-'));
    if (colon != std::string::npos) detail = spec.substr(colon + 1);
    MKNET_INIT(&desc);
    desc.backend = backend.c_str();
    desc.world = 2;
    mknet_emu& emu = desc.emu;
    if (kind == "emu-cx7") emu.bandwidth = kCx7Bandwidth, emu.latency_ns = kCx7Latency;
    if (kind == "emu-efa") emu.unordered = 1, emu.nics = 2, emu.bandwidth = kEfaBandwidth, emu.latency_ns = kEfaLatency, emu.jitter_ns = kEfaJitter;
    if (!detail.empty()) desc.rdma.devices = desc.ofi.provider = detail.c_str();
  }
  Settings(const Settings&) = delete;
  Settings& operator=(const Settings&) = delete;

  std::string backend, detail;
  mknet_desc desc;
};

class Mknet final : public Way {
 public:
  Mknet(const std::string& spec, const Control& control) : peer_(static_cast<uint16_t>(1 - control.rank())) {
    Settings settings(spec);
    mknet_desc& d = settings.desc;
    d.rank = control.rank();
    d.job = 1;
    d.timeout_ns = kPatience;
    mknet_error e;
    check(mknet_create(&d, &net_, &e), e);
    // Peers of emu map the heap, so it is in a memfd. What is sent lies in it too, behind what is written to.
    const int fd = memfd_create("heap", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, 2 * kHeapBytes) != 0) die("no memory file");
    heap_ = static_cast<char*>(mmap(nullptr, 2 * kHeapBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    if (heap_ == MAP_FAILED) die("no memory");
    memset(heap_, 1, kFlag), memset(heap_ + kHeapBytes, 2, kHeapBytes);
    mknet_range range;
    MKNET_INIT(&range);
    range.base = heap_;
    range.bytes = 2 * kHeapBytes;
    range.fd = fd;
    check(mknet_register(net_, &range, nullptr, &e), e);
    const std::vector<char> own = endpoint(peer_);
    control.send_blob(endpoint(-1));
    control.send_blob(own);
    const std::vector<char> their_common = control.receive_blob(), theirs = control.receive_blob();
    check(mknet_connect(net_, peer_, their_common.data(), their_common.size(), theirs.data(), theirs.size(), nullptr, &e), e);
    control.barrier();
    check(mknet_start(net_, &e), e);
    check(mknet_verify(net_, kPatience, &e), e);
    control.barrier();
    close(fd);
  }
  ~Mknet() override {
    mknet_error e;
    check(mknet_drain(net_, kPatience, &e), e);
    mknet_destroy(net_, nullptr);
    munmap(heap_, 2 * kHeapBytes);
  }

  void write(uint64_t bytes, uint64_t value) override {
    mknet_command c = {};
    c.op = MKNET_WRITE;
    c.peer = peer_;
    c.rows = 1;
    c.source = kHeapBytes;
    c.bytes = bytes;
    c.flag = kFlag;
    c.value = value;
    mknet_error e;
    check(mknet_push(net_, &c, kPatience, nullptr, &e), e);
  }

  void wait(uint64_t value) override {
    const auto flag = reinterpret_cast<const uint64_t*>(heap_ + kFlag);
    mknet_error e;
    for (uint64_t looks = 1; __atomic_load_n(flag, __ATOMIC_ACQUIRE) < value; ++looks) {
      sched_yield();  // there may be fewer processors than threads
      if (looks % 65536 == 0) check(mknet_status(net_, 0, &e), e);
    }
  }

  std::string describe() override {
    char text[1024];
    mknet_error e;
    check(mknet_describe(net_, text, sizeof text, &e), e);
    return text;
  }

 private:
  std::vector<char> endpoint(int peer) {
    uint64_t bytes = 0;
    mknet_error e;
    check(mknet_endpoint(net_, peer, nullptr, &bytes, &e), e);
    std::vector<char> blob(bytes);
    check(mknet_endpoint(net_, peer, blob.data(), &bytes, &e), e);
    return blob;
  }

  const uint16_t peer_;
  mknet* net_ = nullptr;
  char* heap_ = nullptr;
};

class Socket final : public Way {
 public:
  Socket(const Control& control, const char* address) : data_(kLargest, 1) {
    // Rank 0 says where it listens; the control connection's port is taken.
    char port[8] = "";
    if (control.rank() == 0) snprintf(port, sizeof port, "%d", 20000 + getpid() % 10000), control.send(port, sizeof port);
    else control.receive(port, sizeof port);
    fd_ = join(control.rank(), address, port);
  }
  ~Socket() override { close(fd_); }

  void write(uint64_t bytes, uint64_t value) override {
    const uint64_t head[2] = {bytes, value};
    send_all(fd_, head, sizeof head);
    send_all(fd_, data_.data(), bytes);
  }
  void wait(uint64_t value) override {
    while (flag_ < value) {
      uint64_t head[2];
      receive_all(fd_, head, sizeof head);
      receive_all(fd_, data_.data(), std::min(head[0], kLargest));
      flag_ = head[1];
    }
  }
  std::string describe() override { return "one TCP connection, nothing around it"; }

 private:
  int fd_ = -1;
  uint64_t flag_ = 0;
  std::vector<char> data_;
};

}  // namespace

std::string missing(const std::string& spec) {
  const Settings settings(spec);
  char text[1024];
  mknet_error e;
  return mknet_usable(&settings.desc, text, sizeof text, &e) == MKNET_OK ? "" : e.text;
}

std::unique_ptr<Way> open_mknet(const std::string& spec, const Control& control) { return std::make_unique<Mknet>(spec, control); }
std::unique_ptr<Way> open_socket(const Control& control, const char* address) { return std::make_unique<Socket>(control, address); }

}  // namespace bench
