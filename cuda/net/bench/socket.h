// The two ranks' TCP connections.
#pragma once
#include <cstdint>

namespace bench {

// Rank 0 listens at the address, rank 1 connects to it.
int join(int rank, const char* address, const char* port);
void send_all(int fd, const void* data, uint64_t bytes);
void receive_all(int fd, void* data, uint64_t bytes);

}  // namespace bench
