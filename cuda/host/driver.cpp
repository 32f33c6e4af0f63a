#include "host/driver.h"

#include "host/error.h"

namespace mk {
namespace {

template <class Function>
void look_up(Function& f, const char* name, unsigned version, bool needed = true) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  check_cuda(cudaGetDriverEntryPointByVersion(name, &address, version, cudaEnableDefault, &found), name);
  if (!needed && (found != cudaDriverEntryPointSuccess || address == nullptr)) return;
  if (found != cudaDriverEntryPointSuccess || address == nullptr)
    fail(MK_ERROR_UNSUPPORTED, "the CUDA driver has no %s of version %u", name, version);
  f = reinterpret_cast<Function>(address);
}

}  // namespace

Driver Driver::load() {
  Driver d = {};
  look_up(d.error_string, "cuGetErrorString", 6000);
  look_up(d.granularity, "cuMemGetAllocationGranularity", 10020);
  look_up(d.create, "cuMemCreate", 10020);
  look_up(d.release, "cuMemRelease", 10020);
  look_up(d.reserve, "cuMemAddressReserve", 10020);
  look_up(d.free_address, "cuMemAddressFree", 10020);
  look_up(d.map, "cuMemMap", 10020);
  look_up(d.unmap, "cuMemUnmap", 10020);
  look_up(d.set_access, "cuMemSetAccess", 10020);
  look_up(d.export_handle, "cuMemExportToShareableHandle", 10020);
  look_up(d.import_handle, "cuMemImportFromShareableHandle", 10020);
  look_up(d.encode_tiled, "cuTensorMapEncodeTiled", 12000);
  look_up(d.device_attribute, "cuDeviceGetAttribute", 2000);
  look_up(d.address_range, "cuMemGetAddressRange", 3020);
  look_up(d.pointer_attribute, "cuPointerGetAttribute", 4000);
  look_up(d.range_handle, "cuMemGetHandleForAddressRange", 11070, false);
  return d;
}

void Driver::check(CUresult r, const char* what) const {
  if (r == CUDA_SUCCESS) return;
  const char* text = nullptr;
  error_string(r, &text);
  fail(r == CUDA_ERROR_OUT_OF_MEMORY ? MK_ERROR_MEMORY : MK_ERROR_DRIVER, "%s: %s", what, text ? text : "unknown error");
}

}  // namespace mk
