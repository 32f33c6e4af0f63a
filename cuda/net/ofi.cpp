#include "net/ofi.h"

#include <sys/mman.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>

#include "net/clock.h"
#include "net/control.h"
#include "net/kept_signals.h"
#include "net/ofi_choice.h"
#include "net/ofi_cq.h"

namespace mk::net {

namespace {

using namespace ofi;

constexpr uint32_t kMagic = 0x6f666930u;
constexpr size_t kDepth = 256;           // writes under way
constexpr uint32_t kCredits = 128;       // immediates per peer under way
constexpr size_t kCqSpare = 16;
constexpr uint64_t kLargest = 1 << 30;   // bytes of a write
constexpr int kKeyTries = 16;

// Closes an object, if there is one.
template <class Object>
void shut(Object*& o) {
  if (o != nullptr) o->fid.ops->close(&o->fid);
  o = nullptr;
}

struct RemoteMemory { uint64_t base, bytes, key; };

struct Peer {
  bool connected = false;
  uint64_t address = kAddressNone;
  RemoteMemory heap = {}, inbox = {};
  std::string text;          // where it is
  uint64_t written = 0, under_way = 0;
  uint64_t success_ns = 0;   // when the last completion came
};

// A write under way. Providers use the memory at a write's context until it is complete.
struct Op {
  void* scratch[8];
  uint64_t id;  // 0: free
  uint32_t peer;
};

class Ofi final : public Nic {
 public:
  Ofi(const Api& api, const InfoPtr& info, const mknet_desc& d)
      : api_(api), info_(info), world_(static_cast<uint32_t>(d.world)), first_port_(d.ofi.first_port), last_port_(d.ofi.last_port), regions_(kRegions),
        mrs_(kRegions), peers_(world_) {
    if (first_port_ > last_port_ || last_port_ > UINT16_MAX) fail(MKNET_ERROR_ARGUMENT, "%u to %u is no range of ports", first_port_, last_port_);
    p_.name = name_of(*info);
    p_.ordered = is_ordered(*info);
    p_.max_write = std::min<uint64_t>(info->ep_attr->max_msg_size, kLargest);
    if (p_.ordered && info->ep_attr->max_order_waw_size <= p_.max_write) p_.max_write = info->ep_attr->max_order_waw_size - 1;
    p_.credits = p_.ordered ? 0 : kCredits;
    ops_.resize(std::max<size_t>(1, std::min(info->tx_attr->size, kDepth)));
    try {
      must(api_.fabric(info->fabric_attr, &fabric_, nullptr), "opening the fabric");
      must(fabric_->ops->domain(fabric_, info.get(), &domain_, nullptr), "opening the domain");
    } catch (...) {
      shut(fabric_);
      throw;
    }
  }
  ~Ofi() override {
    disconnect();
    shut(domain_);
    shut(fabric_);
  }

  const NicProperties& properties() const override { return p_; }

  void add_region(uint32_t number, const Region& r) override {
    if (r.memory != MKNET_HOST) fail(MKNET_ERROR_UNSUPPORTED, "%s: libfabric is given host memory only", name());
    shut(mrs_[number]);
    regions_[number] = r;
    if (ep_ != nullptr) register_region(number);
  }

  Blob common(uint64_t job) override {
    if (ep_ == nullptr) open_endpoint();
    BlobWriter w;
    w.put(kMagic);
    w.put(job);
    w.put_text(p_.name);
    w.put(info_->ep_attr->protocol);
    w.put(info_->addr_format);
    w.put(p_.max_write);
    w.put_bytes(address_.data(), address_.size());
    return w.take();
  }

  // Keys, for one peer only.
  Blob endpoint(uint32_t) override {
    BlobWriter w;
    for (const uint32_t r : {kHeap, kInbox}) {
      const bool virtual_address = (info_->domain_attr->mr_mode & kMrVirtAddr) != 0;
      w.put(RemoteMemory{virtual_address ? reinterpret_cast<uint64_t>(regions_[r].base) : 0, regions_[r].bytes, mrs_[r]->key});
    }
    return w.take();
  }

  void connect(uint32_t peer, uint64_t job, const Blob& common, const Blob& own, void*) override {
    BlobReader r(common.data(), common.size()), o(own.data(), own.size());
    if (r.get<uint32_t>() != kMagic) fail(MKNET_ERROR_PEER, "this is no endpoint of libfabric");
    if (r.get<uint64_t>() != job) fail(MKNET_ERROR_PEER, "its endpoint belongs to another job or generation");
    const std::string theirs = r.get_text();
    if (r.get<uint32_t>() != info_->ep_attr->protocol)
      fail(MKNET_ERROR_UNSUPPORTED, "%s here and %s there speak different protocols", name(), theirs.c_str());
    if (r.get<uint32_t>() != info_->addr_format)
      fail(MKNET_ERROR_UNSUPPORTED, "%s here and %s there have different kinds of addresses", name(), theirs.c_str());
    const uint64_t largest = r.get<uint64_t>();
    if (largest < sizeof(Credit)) fail(MKNET_ERROR_PEER, "its largest write of %" PRIu64 " bytes is none", largest);
    Blob address = r.get_bytes();
    r.end();
    if (info_->addr_format == kAddrStr) {  // as long as its numbers
      if (address.empty() || address.back() != 0) fail(MKNET_ERROR_PEER, "its address is a text without an end");
    } else if (address.size() != address_.size()) {
      fail(MKNET_ERROR_PEER, "its address has %zu bytes, and %zu here", address.size(), address_.size());
    }
    Peer p;
    p.heap = o.get<RemoteMemory>();
    p.inbox = o.get<RemoteMemory>();
    o.end();
    const int n = av_->ops->insert(av_, address.data(), 1, &p.address, 0, nullptr);
    p.text = text_of(address);
    if (n != 1 || p.address == kAddressNone)
      fail(MKNET_ERROR_PEER, "%s: the address %s of rank %u is refused: %s", name(), p.text.c_str(), peer, n < 0 ? api_.strerror(-n) : "it is none");
    p.connected = true;
    p.success_ns = now_ns();
    peers_[peer] = p;
    p_.max_write = std::min(p_.max_write, largest);
  }

  size_t post(const Write* writes, size_t n) override {
    size_t taken = 0;
    while (taken < n && under_way_ < ops_.size() && write(writes[taken])) ++taken;
    return taken;
  }

  size_t poll(Completion* out, size_t n) override {
    CqEntry entries[64];
    if (cq_.get() == nullptr) return 0;
    const ssize_t got = cq_.read(entries, std::min<size_t>(n, 64));
    if (got == -EAGAIN || got == 0) return 0;
    if (got == -kErrorAvailable) explain();
    if (got < 0) fail(MKNET_ERROR_SYSTEM, "%s: reading completions: %s", name(), text_of_return(got).c_str());
    for (ssize_t i = 0; i < got; ++i) complete(entries[i], out[i]);
    return static_cast<size_t>(got);
  }

  // Without completions read, a provider with manual progress does not even take what peers write.
  bool listens() const override { return !p_.ordered || info_->domain_attr->data_progress != kProgressAuto; }

  int wait_fd() const override { return cq_.wait_fd(); }
  bool may_sleep() override { return cq_.may_sleep(); }

  // The provider shm keeps an endpoint in a file of /dev/shm, which nobody would remove when the process is killed. Peers have it
  // mapped now; the provider's own removal, at the end, then finds none.
  void found() override {
    if (is_shared_memory(*info_)) shm_unlink(text_of(address_).c_str());
  }

  void check() override {}

  void disconnect() override {
    const bool bound = (info_->domain_attr->mr_mode & kMrEndpoint) != 0;
    if (!bound) shut(ep_);
    for (Mr*& mr : mrs_) shut(mr);
    shut(ep_);
    shut(av_);
    cq_.close();
    peers_.assign(world_, {});
    for (Op& op : ops_) op.id = 0;
    under_way_ = next_ = 0;
  }

  std::string path(uint32_t peer, uint32_t) const override {
    return peers_[peer].connected ? text_of(address_) + " to " + peers_[peer].text : "not connected";
  }

  std::string describe() const override {
    return format("%s: libfabric %u.%u, %s, flags %s", name(), api_.version() >> 16, api_.version() & 0xffff, is_hardware(*info_) ? "a NIC" : "in software",
                  p_.ordered ? "behind their data" : "raised by the receiver");
  }

 private:
  const char* name() const { return p_.name.c_str(); }

  // Functions return minus an error's number; some providers return -1 and set errno.
  std::string text_of_return(ssize_t r) const {
    const int error = r == -1 && errno != 0 ? errno : static_cast<int>(r < 0 ? -r : r);
    return format("%s (%d)", api_.strerror(error), error);
  }
  void must(int r, const char* doing) const {
    if (r != 0) fail(MKNET_ERROR_SYSTEM, "%s: %s: %s", name(), doing, text_of_return(r).c_str());
  }

  std::string text_of(const Blob& address) const {
    if (av_ != nullptr) {
      char text[256] = "";
      size_t length = sizeof text;
      av_->ops->straddr(av_, address.data(), text, &length);
      text[sizeof text - 1] = '\0';
      if (const char* scheme = strstr(text, "://"); scheme != nullptr) return scheme + 3;
      if (text[0] != '\0') return text;
    }
    return "?";
  }

  void open_endpoint() {
    errno = 0;
    AvAttr a = {};
    a.type = info_->domain_attr->av_type;
    a.count = world_;
    must(domain_->ops->av_open(domain_, &a, &av_, nullptr), "an address vector");
    enable_endpoint();
    address_.resize(512);
    size_t bytes = address_.size();
    must(ep_->cm->getname(&ep_->fid, address_.data(), &bytes), "the endpoint's address");
    address_.resize(std::min(bytes, address_.size()));
    for (uint32_t r = 0; r < kRegions; ++r)
      if (regions_[r].base != nullptr) register_region(r);
  }

  // Room for a completion of every write under way and every immediate that peers may have under way.
  void open_queue() {
    cq_.close();
    const size_t entries = ops_.size() + (p_.ordered ? 0 : size_t{kCredits} * world_) + kCqSpare;
    must(cq_.open(fabric_, domain_, entries, listens()), format("a completion queue of %zu entries", entries).c_str());
  }

  // At a port of the range, if there is one, from a random one on. Each endpoint that is tried has a completion queue of its own:
  // that of libfabric's ofi_rxm (1.17) still looks at an endpoint that is closed when it is asked whether one may wait for it.
  void enable_endpoint() {
    const uint32_t ports = first_port_ != 0 && !is_hardware(*info_) ? last_port_ - first_port_ + 1 : 0;
    const uint64_t begin = ports != 0 ? draw(8) % ports : 0;
    for (uint32_t i = 0;; ++i) {
      if (ports != 0) set_port(*info_, static_cast<uint16_t>(first_port_ + (begin + i) % ports));
      open_queue();
      int rc = new_endpoint();
      if (rc != 0) ep_ = nullptr;
      if (rc == 0) {
        must(ep_->fid.ops->bind(&ep_->fid, &av_->fid, 0), "giving the endpoint its address vector");
        must(ep_->fid.ops->bind(&ep_->fid, &cq_.get()->fid, kTransmit | kReceive), "giving the endpoint its completion queue");
        rc = ep_->fid.ops->control(&ep_->fid, kEnable, nullptr);
      }
      if (rc == 0) return;
      // Some providers take the port when the endpoint is made, others when it is enabled.
      if (rc != -EADDRINUSE || i + 1 >= ports) must(rc, ports != 0 ? format("an endpoint at a port of %u to %u", first_port_, last_port_).c_str() : "an endpoint");
      shut(ep_);
    }
  }

  int new_endpoint() {
    KeptSignals kept;
    return domain_->ops->endpoint(domain_, info_.get(), &ep_, nullptr);
  }

  // Peers get write access to what they write and none to what is sent from; the latter is registered only for providers
  // that want it. Keys are drawn anew for every endpoint, so that those of an earlier job are useless.
  void register_region(uint32_t number) {
    const Region& r = regions_[number];
    const int mode = info_->domain_attr->mr_mode;
    if (!r.writable && (mode & kMrLocal) == 0) return;
    const uint64_t access = r.writable ? kWrite | kRemoteWrite : kWrite;
    int rc = -kErrorNoKey;
    for (int i = 0; i < kKeyTries && rc == -kErrorNoKey; ++i)
      rc = domain_->mr->reg(&domain_->fid, r.base, r.bytes, access, 0, (mode & kMrProvKey) != 0 ? 0 : draw(info_->domain_attr->mr_key_size), 0, &mrs_[number], nullptr);
    if (rc != 0) mrs_[number] = nullptr;
    must(rc, format("registering %" PRIu64 " bytes", r.bytes).c_str());
    if ((mode & kMrEndpoint) == 0) return;
    must(mrs_[number]->fid.ops->bind(&mrs_[number]->fid, &ep_->fid, 0), "giving memory to the endpoint");
    must(mrs_[number]->fid.ops->control(&mrs_[number]->fid, kEnable, nullptr), "enabling memory");
  }

  // A random number of so many bytes.
  uint64_t draw(size_t bytes) const {
    uint64_t number = 0;
    if (getrandom(&number, sizeof number, 0) != sizeof number) fail(MKNET_ERROR_SYSTEM, "%s: no random number: %s", name(), strerror(errno));
    return bytes == 0 || bytes >= 8 ? number : number & ((uint64_t{1} << bytes * 8) - 1);
  }

  // False if there is no room now, or no connection yet.
  bool write(const Write& w) {
    Peer& p = peers_[w.peer];
    if (!p.connected) fail(MKNET_ERROR_PEER, "%s: there is no connection to rank %u", name(), w.peer);
    const RemoteMemory& there = w.target_region == kInbox ? p.inbox : p.heap;
    if (w.target > there.bytes || w.bytes > there.bytes - w.target)
      fail(MKNET_ERROR_PEER, "%s: a write of %" PRIu64 " bytes at %" PRIu64 " of %" PRIu64 " is out of bounds", path_text(w.peer).c_str(), w.bytes,
           w.target, there.bytes);
    while (ops_[next_].id != 0) next_ = (next_ + 1) % ops_.size();
    Op& op = ops_[next_];
    const iovec from = {regions_[w.region].base + w.source, w.bytes};
    const RmaIov to = {there.base + w.target, w.bytes, there.key};
    void* desc = mrs_[w.region] != nullptr ? mrs_[w.region]->mem_desc : nullptr;
    MsgRma m = {};
    m.msg_iov = &from;
    m.desc = &desc;
    m.iov_count = 1;
    m.addr = p.address;
    m.rma_iov = &to;
    m.rma_iov_count = 1;
    m.context = &op;
    m.data = w.imm;
    errno = 0;
    const ssize_t rc = ep_->rma->writemsg(ep_, &m, kCompletion | kDeliveryComplete | (w.immediate ? kRemoteCqData : 0));
    if (rc == -EAGAIN) return false;
    if (rc != 0) fail(MKNET_ERROR_SYSTEM, "%s: posting a write of %" PRIu64 " bytes: %s", path_text(w.peer).c_str(), w.bytes, text_of_return(rc).c_str());
    op.id = w.id;
    op.peer = w.peer;
    ++p.under_way;
    ++under_way_;
    return true;
  }

  // The write that a completion is about; NULL: none of ours.
  Op* op_of(const void* context) {
    const auto at = reinterpret_cast<uintptr_t>(context), first = reinterpret_cast<uintptr_t>(ops_.data());
    const bool inside = at >= first && at < first + ops_.size() * sizeof(Op) && (at - first) % sizeof(Op) == 0;
    Op* op = inside ? &ops_[(at - first) / sizeof(Op)] : nullptr;
    return op != nullptr && op->id != 0 ? op : nullptr;
  }

  void complete(const CqEntry& e, Completion& out) {
    if ((e.flags & kRemoteCqData) != 0 && (e.flags & kRemoteWrite) != 0) {
      out.kind = Completion::kArrived;
      out.imm = static_cast<uint32_t>(e.data);
      return;
    }
    Op* op = op_of(e.op_context);
    if (op == nullptr) fail(MKNET_ERROR_SYSTEM, "%s: a completion (flags %#" PRIx64 ") of no write that is under way", name(), e.flags);
    out.kind = Completion::kWritten;
    out.id = op->id;
    Peer& p = peers_[op->peer];
    p.success_ns = now_ns();
    ++p.written;
    --p.under_way;
    op->id = 0;
    --under_way_;
  }

  std::string path_text(uint32_t peer) const { return format("%s to rank %u (%s)", name(), peer, path(peer, 0).c_str()); }

  // The completion queue has an error.
  [[noreturn]] void explain() {
    CqError cause = {};
    std::string detail;
    if (!cq_.take_cause(&cause, &detail)) fail(MKNET_ERROR_SYSTEM, "%s: the completion queue says that it has an error, and has none", name());
    const int error = cause.err < 0 ? -cause.err : cause.err;
    const std::string status = format("%s (status %d, provider's %d%s%s)", api_.strerror(error), error, cause.prov_errno, detail.empty() ? "" : ": ", detail.c_str());
    // A provider that ends a connection cancels what is under way on it, and says why in its own number.
    const char* hint = hint_of(error == ECANCELED ? cause.prov_errno : error);
    const Op* op = op_of(cause.op_context);
    if (op == nullptr) fail(MKNET_ERROR_PEER, "%s: %s, %s under way%s", name(), status.c_str(), counted(under_way_, "write").c_str(), hint);
    const Peer& p = peers_[op->peer];
    fail(MKNET_ERROR_PEER, "%s: %s %.3g s after the last success, %s done, %" PRIu64 " under way%s", path_text(op->peer).c_str(),
         status.c_str(), static_cast<double>(now_ns() - p.success_ns) / 1e9, counted(p.written, "write").c_str(), p.under_way, hint);
  }

  const Api& api_;
  const InfoPtr info_;
  const uint32_t world_, first_port_, last_port_;
  NicProperties p_;
  Fabric* fabric_ = nullptr;
  Domain* domain_ = nullptr;
  // Of a generation.
  CompletionQueue cq_;
  Av* av_ = nullptr;
  Ep* ep_ = nullptr;
  Blob address_;
  std::vector<Region> regions_;
  std::vector<Mr*> mrs_;
  std::vector<Peer> peers_;
  std::vector<Op> ops_;
  size_t under_way_ = 0, next_ = 0;
};

}  // namespace

std::vector<std::unique_ptr<Nic>> open_ofi(const mknet_desc& d) {
  if (d.ofi.hardware != 0 && d.ofi.library == nullptr && !kernel_has_nics())
    fail(MKNET_ERROR_UNSUPPORTED, "there is no NIC for libfabric here, and its providers in software are not chosen unasked");
  const Api& api = load(d.ofi.library, d.rdma.efa_home);
  std::vector<std::unique_ptr<Nic>> nics;
  for (const InfoPtr& info : choose(api, d.ofi)) nics.push_back(std::make_unique<Ofi>(api, info, d));
  return nics;
}

}  // namespace mk::net
