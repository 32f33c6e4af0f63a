// Two ranks of one process with an emulated link between them that is as fast as the memory.
#pragma once
#include <cstdint>
#include <vector>

#include "include/mknet.h"

namespace mk::measure {

struct PairSide {
  void* heap;
  const mknet_device* device;  // null: the heap is host memory
};

class NetPair {
 public:
  // Rank i has sides[i], with heaps of `bytes` bytes. Throws Error.
  NetPair(const PairSide sides[2], uint64_t bytes, bool unordered, uint64_t timeout_ns);
  ~NetPair();
  NetPair(const NetPair&) = delete;
  mknet* net(int rank) const { return nets_[rank]; }

 private:
  void open(int rank, const PairSide& side, uint64_t bytes, bool unordered, uint64_t timeout_ns);
  std::vector<char> endpoint(int rank, int peer) const;
  void connect(int rank, const std::vector<char>& common, const std::vector<char>& own) const;
  void close();

  mknet* nets_[2] = {};
};

// Throws what a call of mknet said.
void check_mknet(int code, const mknet_error& e);

}  // namespace mk::measure
