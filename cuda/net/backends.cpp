#include "net/backends.h"

#include "net/control.h"
#include "net/efa.h"
#include "net/emu.h"
#include "net/ofi.h"
#include "net/verbs.h"

namespace mk::net {

namespace {

std::vector<std::unique_ptr<Nic>> open_emu(const mknet_desc& desc, const Device& device) {
  const uint32_t nics = desc.emu.nics != 0 ? desc.emu.nics : 1;
  if (nics > kMaxNics) fail(MKNET_ERROR_ARGUMENT, "emu: %u NICs per rank; up to %u can be used", nics, kMaxNics);
  std::vector<std::unique_ptr<Nic>> all;
  for (uint32_t i = 0; i < nics; ++i)
    all.push_back(make_emu({desc.emu, i, static_cast<uint32_t>(desc.rank), static_cast<uint32_t>(desc.world), {}}, device));
  return all;
}

}  // namespace

std::vector<std::unique_ptr<Nic>> open_nics(const mknet_desc& desc, const Device& device) {
  const std::string name = desc.backend;
  if (name == "emu") return open_emu(desc, device);
  if (name == "ibverbs") return open_verbs(desc);
  if (name == "efa") return open_efa(desc);
  if (name == "ofi") return open_ofi(desc);
  fail(MKNET_ERROR_UNSUPPORTED, "unknown network backend \"%s\"; known: emu, ibverbs, efa, ofi", name.c_str());
}

}  // namespace mk::net
