#include "net/emu_wire.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "net/error.h"

namespace mk::net {

namespace {

constexpr uint64_t kMagic = 0x65756d6574656e6bull;

char* map(int fd, uint64_t bytes, uint64_t offset, const char* what) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (p == MAP_FAILED)
    fail(MKNET_ERROR_MEMORY, "mapping %llu bytes of %s: %s", static_cast<unsigned long long>(bytes), what, strerror(errno));
  return static_cast<char*>(p);
}

}  // namespace

int new_memfd(const char* name, uint64_t bytes) {
  const int fd = memfd_create(name, MFD_CLOEXEC);
  if (fd < 0) fail(MKNET_ERROR_SYSTEM, "memfd_create for %s: %s", name, strerror(errno));
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    const int e = errno;
    close(fd);
    fail(MKNET_ERROR_MEMORY, "%llu bytes for %s: %s", static_cast<unsigned long long>(bytes), name, strerror(e));
  }
  return fd;
}

void Shared::unmap() {
  if (mapped) munmap(base - map_shift, bytes + map_shift);
  *this = {};
}

void Shared::use(void* at) {
  if (mapped) munmap(base - map_shift, bytes + map_shift);
  mapped = false;
  base = static_cast<char*>(at);
}

void put_shared(BlobWriter& w, const char* base, uint64_t bytes, int fd, uint64_t fd_offset) {
  w.put(reinterpret_cast<uint64_t>(base));
  w.put(bytes);
  w.put(static_cast<int32_t>(fd));
  w.put(fd_offset);
}

Shared open_shared(BlobReader& r, int pid, bool direct, const char* what) {
  Shared s;
  s.base = reinterpret_cast<char*>(r.get<uint64_t>());
  s.bytes = r.get<uint64_t>();
  const int32_t fd = r.get<int32_t>();
  const uint64_t offset = r.get<uint64_t>();
  if (pid == getpid() && (direct || fd < 0)) return s;
  s.base = nullptr;
  if (fd < 0 || s.bytes == 0) return s;
  const std::string path = format("/proc/%d/fd/%d", pid, fd);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0)
    fail(MKNET_ERROR_PEER, "%s of process %d cannot be opened (%s): %s; emulated nodes are processes of one user on one host",
         what, pid, path.c_str(), strerror(errno));
  struct stat st;
  s.map_shift = offset % static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (fstat(file, &st) != 0 || offset + s.bytes < offset || static_cast<uint64_t>(st.st_size) < offset + s.bytes) {
    close(file);
    fail(MKNET_ERROR_PEER, "%s of process %d: its file has not the size that was said", what, pid);
  }
  try {
    s.base = map(file, s.bytes + s.map_shift, offset - s.map_shift, what) + s.map_shift;
  } catch (...) {
    close(file);
    throw;
  }
  close(file);
  s.mapped = true;
  return s;
}

struct Arrivals::Head {
  uint64_t magic;
  uint64_t nonce;
  uint32_t capacity;
  uint32_t closed;
  char pad0[104];
  uint64_t tail;
  char pad1[120];
  uint64_t consumed;
  char pad2[120];
};
struct Arrivals::Slot {
  uint64_t sequence;
  uint64_t imm;
};

Arrivals::Slot* Arrivals::slot(uint64_t position) const {
  return reinterpret_cast<Slot*>(head_ + 1) + (position & (head_->capacity - 1));
}

Arrivals::Arrivals(uint32_t capacity) {
  static_assert(sizeof(Head) == 384);
  bytes_ = sizeof(Head) + uint64_t{capacity} * sizeof(Slot);
  fd_ = new_memfd("mknet-arrivals", bytes_);
  try {
    head_ = reinterpret_cast<Head*>(map(fd_, bytes_, 0, "arrivals"));
  } catch (...) {
    close(fd_);
    throw;
  }
  head_->capacity = capacity;
  if (getrandom(&head_->nonce, sizeof head_->nonce, 0) != sizeof head_->nonce) head_->nonce = 0;
  __atomic_store_n(&head_->magic, kMagic, __ATOMIC_RELEASE);
}

Arrivals::Arrivals(const Shared& shared, uint64_t nonce) : shared_(shared) {
  head_ = reinterpret_cast<Head*>(shared.base);
  const uint64_t slots = shared.bytes < sizeof(Head) ? 0 : (shared.bytes - sizeof(Head)) / sizeof(Slot);
  if (head_ == nullptr || slots == 0 || __atomic_load_n(&head_->magic, __ATOMIC_ACQUIRE) != kMagic ||
      head_->nonce != nonce || head_->capacity != slots) {
    shared_.unmap();
    fail(MKNET_ERROR_PEER, "the peer's emulated NIC is not the one that its endpoint data names");
  }
}

Arrivals::~Arrivals() {
  if (fd_ >= 0) {
    munmap(head_, bytes_);
    close(fd_);
  }
  shared_.unmap();
}

bool Arrivals::push(uint32_t imm) {
  uint64_t position = __atomic_load_n(&head_->tail, __ATOMIC_RELAXED);
  do {
    if (position - __atomic_load_n(&head_->consumed, __ATOMIC_ACQUIRE) >= head_->capacity) return false;
  } while (!__atomic_compare_exchange_n(&head_->tail, &position, position + 1, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  __atomic_store_n(&slot(position)->imm, imm, __ATOMIC_RELAXED);
  __atomic_store_n(&slot(position)->sequence, position + 1, __ATOMIC_RELEASE);
  return true;
}

bool Arrivals::take(uint32_t* imm) {
  Slot* s = slot(next_);
  if (__atomic_load_n(&s->sequence, __ATOMIC_ACQUIRE) != next_ + 1) return false;
  *imm = static_cast<uint32_t>(__atomic_load_n(&s->imm, __ATOMIC_RELAXED));
  ++next_;
  __atomic_store_n(&head_->consumed, next_, __ATOMIC_RELEASE);
  return true;
}

void Arrivals::close_politely() { __atomic_store_n(&head_->closed, 1, __ATOMIC_RELEASE); }
bool Arrivals::closed() const { return __atomic_load_n(&head_->closed, __ATOMIC_ACQUIRE) != 0; }
uint64_t Arrivals::nonce() const { return head_->nonce; }

void Arrivals::put(BlobWriter& w) const {
  w.put(head_->nonce);
  put_shared(w, reinterpret_cast<const char*>(head_), bytes_, fd_, 0);
}

}  // namespace mk::net
