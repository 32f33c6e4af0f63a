// The driver functions that the runtime has no form of, looked up at run time: libcuda is not linked.
#pragma once
#include <cuda.h>

namespace mk {

struct Driver {
  decltype(&cuGetErrorString) error_string;
  decltype(&cuMemGetAllocationGranularity) granularity;
  decltype(&cuMemCreate) create;
  decltype(&cuMemRelease) release;
  decltype(&cuMemAddressReserve) reserve;
  decltype(&cuMemAddressFree) free_address;
  decltype(&cuMemMap) map;
  decltype(&cuMemUnmap) unmap;
  decltype(&cuMemSetAccess) set_access;
  decltype(&cuMemExportToShareableHandle) export_handle;
  decltype(&cuMemImportFromShareableHandle) import_handle;
  decltype(&cuTensorMapEncodeTiled) encode_tiled;
  decltype(&cuDeviceGetAttribute) device_attribute;
  decltype(&cuMemGetAddressRange) address_range;
  decltype(&cuPointerGetAttribute) pointer_attribute;
  decltype(&cuMemGetHandleForAddressRange) range_handle;  // may be missing

  static Driver load();                            // throws Error
  void check(CUresult r, const char* what) const;  // throws Error
};

}  // namespace mk
