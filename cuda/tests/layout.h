// Compares our declarations of libibverbs and its kin with theirs.
#pragma once
#include <cstddef>

namespace mk::net::verbs {}
namespace v = mk::net::verbs;

#define SAME_SIZE(ours, theirs) static_assert(sizeof(v::ours) == sizeof(theirs))
#define SAME(ours, ours_field, theirs, theirs_field) \
  static_assert(offsetof(v::ours, ours_field) == offsetof(theirs, theirs_field) && \
                sizeof(v::ours::ours_field) == sizeof(theirs::theirs_field))
