#include "heap/fd_exchange.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "host/error.h"

namespace mk {
namespace {

constexpr int kPatienceMs = 30000;
constexpr int kRetryMs = 5;

struct Address {
  char name[32];  // of the abstract socket
  uint64_t key;   // a message without the receiver's key is not from a rank
};
struct Message {
  uint64_t key;
  int32_t rank;
};

struct Socket {
  int fd;
  Socket() : fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    if (fd < 0) fail(MK_ERROR_BOOTSTRAP, "no Unix socket: %s", strerror(errno));
  }
  ~Socket() { close(fd); }
};

socklen_t fill(sockaddr_un& to, const Address& a) {
  memset(&to, 0, sizeof to);
  to.sun_family = AF_UNIX;
  const size_t length = strnlen(a.name, sizeof a.name);
  memcpy(to.sun_path + 1, a.name, length);  // a leading zero byte: abstract
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

union Control {
  cmsghdr header;
  char space[CMSG_SPACE(sizeof(int))];
};

// False if the receiver's queue is full: it holds ten messages, and a receiver that is sending does not empty it.
bool try_send_descriptor(int socket, int peer, const Address& to, int rank, int descriptor) {
  Message message = {to.key, rank};
  iovec part = {&message, sizeof message};
  sockaddr_un name;
  Control control = {};
  msghdr m = {};
  m.msg_namelen = fill(name, to);
  m.msg_name = &name;
  m.msg_iov = &part;
  m.msg_iovlen = 1;
  m.msg_control = control.space;
  m.msg_controllen = sizeof control.space;
  cmsghdr* h = CMSG_FIRSTHDR(&m);
  h->cmsg_level = SOL_SOCKET;
  h->cmsg_type = SCM_RIGHTS;
  h->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(h), &descriptor, sizeof descriptor);
  while (sendmsg(socket, &m, MSG_DONTWAIT) < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
    if (errno != EINTR)
      fail(MK_ERROR_BOOTSTRAP, "cannot pass a memory handle to rank %d: %s%s", peer, strerror(errno),
           errno == ECONNREFUSED ? "; it has ended, or is in another network namespace (container) than this rank" : "");
  }
  return true;
}

// One message; -1 if none came in time, or it came from a stranger.
int receive_descriptor(int socket, uint64_t key, int world, int milliseconds, int* rank) {
  pollfd p = {socket, POLLIN, 0};
  int n;
  while ((n = poll(&p, 1, milliseconds)) < 0 && errno == EINTR) {
  }
  if (n <= 0) return -1;
  Message message = {};
  iovec part = {&message, sizeof message};
  Control control = {};
  msghdr m = {};
  m.msg_iov = &part;
  m.msg_iovlen = 1;
  m.msg_control = control.space;
  m.msg_controllen = sizeof control.space;
  const ssize_t got = recvmsg(socket, &m, MSG_CMSG_CLOEXEC);
  int descriptor = -1;
  if (cmsghdr* h = CMSG_FIRSTHDR(&m); h != nullptr && h->cmsg_type == SCM_RIGHTS)
    memcpy(&descriptor, CMSG_DATA(h), sizeof descriptor);
  const bool valid = got == sizeof message && message.key == key && message.rank >= 0 && message.rank < world;
  if (!valid && descriptor >= 0) {
    close(descriptor);
    descriptor = -1;
  }
  *rank = message.rank;
  return descriptor;
}

// Names the ranks that did not answer.
[[noreturn]] void give_up(const std::vector<int>& peers, int sent, const std::vector<int>& received) {
  std::string missing, unreached;
  for (size_t i = 0; i < peers.size(); ++i) {
    const std::string rank = " " + std::to_string(peers[i]);
    if (received[peers[i]] < 0) missing += rank;
    if (static_cast<int>(i) >= sent) unreached += rank;
  }
  fail(MK_ERROR_BOOTSTRAP, "within %d s no memory handle came from ranks%s, and none could be passed to ranks%s: do they still run?", kPatienceMs / 1000,
       missing.empty() ? " (none)" : missing.c_str(), unreached.empty() ? " (none)" : unreached.c_str());
}

}  // namespace

std::vector<int> exchange_descriptors(int own, int rank, const std::vector<bool>& with, mk_allgather allgather, void* user) {
  const int world = static_cast<int>(with.size());
  std::vector<int> result(world, -1), peers;
  for (int i = 1; i < world; ++i)
    if (with[(rank + i) % world]) peers.push_back((rank + i) % world);
  Socket socket;
  Address mine = {};
  uint64_t random[2];
  if (getrandom(random, sizeof random, 0) != sizeof random) fail(MK_ERROR_BOOTSTRAP, "no random bytes");
  snprintf(mine.name, sizeof mine.name, "mkernel-%016llx", static_cast<unsigned long long>(random[0]));
  mine.key = random[1];
  sockaddr_un name;
  const socklen_t length = fill(name, mine);
  if (bind(socket.fd, reinterpret_cast<sockaddr*>(&name), length) < 0)
    fail(MK_ERROR_BOOTSTRAP, "cannot bind a Unix socket: %s", strerror(errno));

  std::vector<Address> all(world);
  if (allgather(user, &mine, all.data(), sizeof mine) != 0) fail(MK_ERROR_BOOTSTRAP, "the all-gather callback failed");
  try {
    const int count = static_cast<int>(peers.size());
    int sent = 0, waited = 0;
    for (int missing = count; missing > 0 || sent < count;) {
      while (sent < count && try_send_descriptor(socket.fd, peers[sent], all[peers[sent]], rank, own)) ++sent;
      if (missing == 0 && sent == count) break;
      int from = -1;
      const int descriptor = receive_descriptor(socket.fd, mine.key, world, kRetryMs, &from);
      if (descriptor < 0) {
        if ((waited += kRetryMs) > kPatienceMs) give_up(peers, sent, result);
        continue;
      }
      if (from == rank || !with[from] || result[from] >= 0) {
        close(descriptor);
        continue;
      }
      result[from] = descriptor;
      --missing;
    }
  } catch (...) {
    for (int descriptor : result)
      if (descriptor >= 0) close(descriptor);
    throw;
  }
  return result;
}

}  // namespace mk
