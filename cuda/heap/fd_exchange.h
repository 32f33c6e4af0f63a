// Every rank of one host gives one file descriptor to every other, over Unix sockets in the abstract name space.
#pragma once
#include <functional>
#include <vector>

#include "include/mkernel.h"

namespace mk {

// Collective. Returns the peers' descriptors by rank (own place: -1); the caller closes them. Throws Error.
std::vector<int> exchange_descriptors(int own, int rank, int world, mk_allgather allgather, void* user);

}  // namespace mk
