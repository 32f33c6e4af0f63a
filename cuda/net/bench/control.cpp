#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "net/bench/pair.h"
#include "net/bench/socket.h"

namespace bench {

void die(const char* format, ...) {
  va_list args;
  va_start(args, format);
  fputs("net-bench: ", stderr);
  vfprintf(stderr, format, args);
  fputc('\n', stderr);
  va_end(args);
  exit(1);
}

void send_all(int fd, const void* data, uint64_t bytes) {
  for (auto p = static_cast<const char*>(data); bytes > 0;) {
    const ssize_t n = send(fd, p, bytes, MSG_NOSIGNAL);
    if (n <= 0) die("the connection to the other rank: %s", strerror(errno));
    p += n, bytes -= static_cast<uint64_t>(n);
  }
}

void receive_all(int fd, void* data, uint64_t bytes) {
  for (auto p = static_cast<char*>(data); bytes > 0;) {
    const ssize_t n = recv(fd, p, bytes, 0);
    if (n <= 0) die("the other rank is gone");
    p += n, bytes -= static_cast<uint64_t>(n);
  }
}

int join(int rank, const char* address, const char* port) {
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (const int e = getaddrinfo(address, port, &hints, &found)) die("%s: %s", address, gai_strerror(e));
  int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int one = 1;
  if (rank == 0) {
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, 1) != 0) die("%s port %s: %s", address, port, strerror(errno));
    const int joined = accept4(fd, nullptr, nullptr, SOCK_CLOEXEC);
    if (joined < 0) die("accept: %s", strerror(errno));
    close(fd);
    fd = joined;
  } else {
    const uint64_t end = mk::net::now_ns() + kPatience;
    while (connect(fd, found->ai_addr, found->ai_addrlen) != 0) {
      if (mk::net::now_ns() > end) die("%s port %s: %s", address, port, strerror(errno));
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  freeaddrinfo(found);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return fd;
}

Control::Control(int rank, const char* address, const char* port) : rank_(rank), fd_(join(rank, address, port)) {}
Control::~Control() { close(fd_); }

void Control::send(const void* data, uint64_t bytes) const { send_all(fd_, data, bytes); }
void Control::receive(void* data, uint64_t bytes) const { receive_all(fd_, data, bytes); }

void Control::send_blob(const std::vector<char>& blob) const {
  const uint64_t bytes = blob.size();
  send(&bytes, sizeof bytes);
  send(blob.data(), bytes);
}

std::vector<char> Control::receive_blob() const {
  uint64_t bytes = 0;
  receive(&bytes, sizeof bytes);
  std::vector<char> blob(bytes);
  receive(blob.data(), bytes);
  return blob;
}

void Control::barrier() const {
  char c = 0;
  send(&c, 1);
  receive(&c, 1);
}

}  // namespace bench
