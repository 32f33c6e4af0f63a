#include "net/transfer.h"

#include <algorithm>
#include <cinttypes>

namespace mk::net {

namespace {

constexpr uint64_t kCheckEvery = 10000000;  // ns

}  // namespace

Transfer::Transfer(const TransferSettings& settings)
    : s_(settings), table_(kTable), next_(settings.start), oldest_(settings.start), completed_(settings.start), peers_done_(settings.world) {
  set_piece();
}

void Transfer::set_piece() {
  piece_ = UINT64_MAX;
  for (const Nic* nic : s_.nics) piece_ = std::min(piece_, nic->properties().max_write);
  if (s_.bounce != nullptr) piece_ = std::min(piece_, Bounce::kSlot);
}

void Transfer::check(const mknet_command& c) const {
  if (c.op != MKNET_WRITE) fail(MKNET_ERROR_ARGUMENT, "unknown operation %u", c.op);
  if (c.peer >= s_.world || c.peer == s_.rank || !knows(c.peer))
    fail(MKNET_ERROR_ARGUMENT, "rank %u is not connected to rank %u", s_.rank, c.peer);
  const Region& heap = (*s_.regions)[kHeap];
  if (c.bytes > 0 && c.rows > 0) {
    const Region& from = (*s_.regions)[c.region];
    if (c.region >= kStage || from.base == nullptr) fail(MKNET_ERROR_ARGUMENT, "region %u is not registered", c.region);
    const auto inside = [&](uint64_t at, uint32_t stride, uint64_t size) {
      const uint64_t before = uint64_t{c.rows - 1} * stride;  // below 2^64
      return c.bytes <= size && before <= size - c.bytes && at <= size - c.bytes - before;
    };
    if (!inside(c.source, c.source_stride, from.bytes))
      fail(MKNET_ERROR_ARGUMENT, "%u rows of %" PRIu64 " bytes at %" PRIu64 " are not inside region %u of %" PRIu64 " bytes",
           c.rows, c.bytes, c.source, c.region, from.bytes);
    if (!inside(c.target, c.target_stride, heap.bytes))
      fail(MKNET_ERROR_ARGUMENT, "%u rows of %" PRIu64 " bytes at %" PRIu64 " are not inside rank %u's heap of %" PRIu64 " bytes",
           c.rows, c.bytes, c.target, c.peer, heap.bytes);
  }
  if (c.flag != MKNET_NO_FLAG && (c.flag % 8 != 0 || heap.bytes < 8 || c.flag > heap.bytes - 8))
    fail(MKNET_ERROR_ARGUMENT, "flag %" PRIu64 " is not an aligned word of rank %u's heap of %" PRIu64 " bytes", c.flag, c.peer,
         heap.bytes);
}

void Transfer::submit(const mknet_command& command, uint64_t position) {
  mknet_command c = command;
  if (c.rows == 0) c.bytes = 0;
  // Rows that touch are one.
  if (c.rows > 1 && c.source_stride == c.bytes && c.target_stride == c.bytes) c.bytes *= c.rows, c.rows = 1;
  try {
    check(c);
  } catch (const Error& e) {
    fail(e.code, "command %" PRIu64 " of rank %u: %s", position, s_.rank, e.what());
  }
  enter(c, position, -1);
  ++counts_.commands;
  counts_.bytes += c.bytes * c.rows;
}

void Transfer::probe(uint32_t peer, uint32_t lane, uint64_t value) {
  mknet_command c = {};
  c.op = MKNET_WRITE;
  c.peer = static_cast<uint16_t>(peer);
  c.flag = s_.rank * kInboxStride + kProbesAt + lane * 8;
  c.value = value;
  enter(c, kInternal, static_cast<int32_t>(lane));
}

uint64_t Transfer::probe_seen(uint32_t peer, uint32_t lane) const {
  return __atomic_load_n(reinterpret_cast<const uint64_t*>(inbox(peer * kInboxStride + kProbesAt + lane * 8)), __ATOMIC_ACQUIRE);
}

void Transfer::enter(const mknet_command& command, uint64_t position, int32_t probe_lane) {
  const uint64_t number = next_++;
  under_way(number) = {command, position, s_.clock(), 0, probe_lane};
  if (position != kInternal) peers_done_[command.peer].numbers.push_back(number);
  under_way(number).pending = begin(number);
  if (under_way(number).pending == 0) settle(command.peer);
  retire();
}

std::vector<Way> Transfer::make_ways(const PeerSettings& settings) const {
  std::vector<Way> ways;
  for (uint32_t lane = 0, found = 1; found > 0; ++lane) {
    found = 0;
    for (uint32_t pair = 0; pair < settings.nics.size(); ++pair)
      if (lane < s_.nics[settings.nics[pair]]->properties().lanes) {
        ++found;
        ways.emplace_back();
        ways.back().nic = settings.nics[pair];
        ways.back().lane = lane;
        ways.back().pair = pair;
        if (pair < settings.crossed.size()) ways.back().crossed = settings.crossed[pair];
      }
  }
  return ways;
}

bool Transfer::post(Way& way) {
  if (way.waiting.empty()) return false;
  bool begun = false;
  size_t ready = way.waiting.size();
  if (s_.bounce != nullptr) ready = s_.bounce->prepare(way.waiting, *s_.regions, &begun);
  if (ready == 0) return begun;
  const size_t taken = s_.nics[way.nic]->post(way.waiting.data(), ready);
  if (taken == 0) return begun;
  way.waiting.erase(way.waiting.begin(), way.waiting.begin() + static_cast<ptrdiff_t>(taken));
  counts_.writes += taken;
  ++counts_.doorbells;
  return true;
}

std::string Transfer::text_of(uint32_t peer, const Way& way) const {
  const Nic& nic = *s_.nics[way.nic];
  return nic.properties().name + " (" + nic.path(peer, way.lane) + (way.crossed.empty() ? "" : "; " + way.crossed) + ")";
}

void Transfer::written(uint64_t number) {
  if (number - oldest_ >= next_ - oldest_ || under_way(number).pending == 0)
    fail(MKNET_ERROR_SYSTEM, "a NIC completed write %" PRIu64 ", which is not under way", number);
  if (--under_way(number).pending == 0) settle(under_way(number).command.peer);
}

// A command to a peer is complete, and may end the waiting of those behind it.
void Transfer::settle(uint32_t peer) {
  PeerDone& p = peers_done_[peer];
  bool more = false;
  for (; !p.numbers.empty() && under_way(p.numbers.front()).pending == 0; p.numbers.pop_front(), more = true)
    p.completed = under_way(p.numbers.front()).position + 1;
  if (!more || !p.told) return;
  p.told = false;
  news_.push_back(peer);
}

void Transfer::retire() {
  while (oldest_ != next_ && under_way(oldest_).pending == 0) {
    if (under_way(oldest_).position != kInternal) completed_ = under_way(oldest_).position + 1;
    ++oldest_;
  }
}

bool Transfer::progress() {
  bool any = advance();
  for (uint32_t nic = 0; nic < s_.nics.size(); ++nic) {
    Completion found[64];
    const size_t n = s_.nics[nic]->poll(found, 64);
    any |= n > 0;
    for (size_t i = 0; i < n; ++i) {
      if (found[i].kind == Completion::kArrived)
        arrived(nic, found[i].imm);
      else if ((found[i].id & 3) == kCredit)
        credit_written(static_cast<uint32_t>(found[i].id >> 2));
      else if ((found[i].id & 3) == Bounce::kStaged && s_.bounce != nullptr)
        written(s_.bounce->release(found[i].id >> 2) >> 2);
      else
        written(found[i].id >> 2);
    }
  }
  if (any) retire();
  look_for_trouble();
  return any;
}

const std::vector<int>& Transfer::descriptors() {
  descriptors_.clear();
  if (s_.bounce != nullptr && !idle()) return descriptors_;  // a device that copies wakes nobody
  for (Nic* nic : s_.nics) {
    const int fd = nic->wait_fd();
    if (fd < 0 || !nic->may_sleep()) {
      descriptors_.clear();
      break;
    }
    descriptors_.push_back(fd);
  }
  return descriptors_;
}

void Transfer::look_for_trouble() {
  const uint64_t now = s_.clock(), before = checked_ns_;
  if (now - before < kCheckEvery) return;
  checked_ns_ = now;
  for (Nic* nic : s_.nics) nic->check();
  check_arrivals(now, before);
  if (oldest_ == next_) return;
  const UnderWay& u = under_way(oldest_);
  if (!overdue(u.started_ns, before)) return;
  const mknet_command& c = u.command;
  const size_t others = s_.nics.size() - 1;
  const std::string way = others > 0 ? format("and %zu other NIC%s", others, others > 1 ? "s" : "") : "(" + s_.nics[0]->path(c.peer, 0) + ")";
  std::string what = c.bytes == 0 ? "" : (c.rows == 1 ? "" : counted(c.rows, "row") + " of ") + counted(c.bytes, "byte");
  if (c.flag != MKNET_NO_FLAG) what += format("%sthe flag at %" PRIu64, what.empty() ? "" : " and ", c.flag);
  fail(MKNET_ERROR_TIMEOUT, "rank %u: %s to rank %u over %s %s is not complete after %.3g s: of its writes, for %s, %" PRIu64 " %s missing; %s under way",
       s_.rank, u.probe_lane >= 0 ? "the probe" : format("command %" PRIu64, u.position).c_str(), c.peer, s_.nics[0]->properties().name.c_str(), way.c_str(),
       static_cast<double>(now - u.started_ns) / 1e9, what.c_str(), u.pending, u.pending == 1 ? "is" : "are",
       (counted(next_ - oldest_, "command") + (next_ - oldest_ == 1 ? " is" : " are")).c_str());
}

}  // namespace mk::net
