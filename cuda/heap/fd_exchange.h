// Ranks of one host give one file descriptor to each other, over Unix sockets in the abstract name space.
#pragma once
#include <functional>
#include <vector>

#include "include/mkernel.h"

namespace mk {

// Collective. Gives the own descriptor to the ranks of `with` (all of this host, which name each other) and returns theirs
// by rank, -1 for others; the caller closes them. Throws Error.
std::vector<int> exchange_descriptors(int own, int rank, const std::vector<bool>& with, mk_allgather allgather, void* user);

}  // namespace mk
