// Device memory for NICs, with a driver that answers as the test says.
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "heap/symmetric_heap.h"
#include "host/error.h"
#include "host/sources.h"
#include "tests/check.h"

using namespace mk;

namespace {

struct Answers {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  unsigned long long id = 1;
  int vmm_rdma = 1;
  bool dma_buf = true;
  CUdeviceptr asked_base = 0;
  size_t asked_bytes = 0;
} answers;

Driver driver() {
  Driver d = {};
  d.error_string = [](CUresult, const char** text) {
    *text = "refused";
    return CUDA_SUCCESS;
  };
  d.device_attribute = [](int* value, CUdevice_attribute a, CUdevice) {
    *value = a == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED ? answers.vmm_rdma : 0;
    return CUDA_SUCCESS;
  };
  d.address_range = [](CUdeviceptr* base, size_t* bytes, CUdeviceptr at) {
    if (at < answers.base || at >= answers.base + answers.bytes) return CUDA_ERROR_INVALID_VALUE;
    *base = answers.base, *bytes = answers.bytes;
    return CUDA_SUCCESS;
  };
  d.pointer_attribute = [](void* value, CUpointer_attribute, CUdeviceptr) {
    memcpy(value, &answers.id, sizeof answers.id);
    return CUDA_SUCCESS;
  };
  d.range_handle = [](void* handle, CUdeviceptr base, size_t bytes, CUmemRangeHandleType, unsigned long long) {
    answers.asked_base = base, answers.asked_bytes = bytes;
    if (!answers.dma_buf) return CUDA_ERROR_NOT_SUPPORTED;
    const int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    memcpy(handle, &fd, sizeof fd);
    return CUDA_SUCCESS;
  };
  return d;
}

const void* at(uint64_t address) { return reinterpret_cast<const void*>(address); }

}  // namespace

// The heap's memory is chosen by what the driver can, before it is allocated.
TEST(sources_V38_heap_memory_by_capability) {
  const Driver d = driver();
  answers = {};
  CHECK(heap_properties(d, 3, true).allocFlags.gpuDirectRDMACapable == 1 && heap_properties(d, 3, true).location.id == 3);
  CHECK(heap_properties(d, 3, false).allocFlags.gpuDirectRDMACapable == 0);
  answers.vmm_rdma = 0;
  CHECK(heap_properties(d, 3, true).allocFlags.gpuDirectRDMACapable == 0);
}

TEST(sources_V41_dma_buf_of_whole_pages) {
  const Driver d = driver();
  answers = {};
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE)), base = 7 * page + 512;
  mknet_range r = device_range(d, at(base), page);
  CHECK(r.fd >= 0 && r.fd_offset == 512 && r.base == at(base) && r.bytes == page && r.memory == MKNET_DEVICE);
  CHECK(answers.asked_base == 7 * page && answers.asked_bytes == 2 * page);
  close(r.fd);
  answers.dma_buf = false;
  CHECK(device_range(d, at(base), page).fd == -1);
  Driver old = driver();
  old.range_handle = nullptr;
  CHECK(device_range(old, at(base), page).fd == -1);
}

TEST(sources_are_registered_once) {
  const Driver d = driver();
  answers = {};
  std::vector<mknet_range> added;
  SourceRegions sources(d, at(0x1000000), 0x1000, [&](const mknet_range& r) {
    added.push_back(r);
    return r.replaces != 0 ? r.replaces - 1 : static_cast<uint32_t>(added.size());
  });
  const auto is = [](SourceRegions::Place p, uint32_t region, uint64_t offset) { return p.region == region && p.offset == offset; };
  CHECK(is(sources.find(at(0x1000800)), 0, 0x800));  // the heap
  CHECK(is(sources.find(nullptr), 0, 0));            // no rows
  CHECK(added.empty());
  answers.base = 0x5000000, answers.bytes = 0x200000;
  CHECK(is(sources.find(at(0x5000100)), 1, 0x100) && is(sources.find(at(0x5100000)), 1, 0x100000));
  CHECK(added.size() == 1 && added[0].base == at(0x5000000) && added[0].bytes == 0x200000);
  // Freed, and allocated again at the same address: the NIC has the old memory.
  answers.id = 2;
  CHECK(is(sources.find(at(0x5000100)), 1, 0x100));
  CHECK(added.size() == 2 && added[1].replaces == 2);
  // Another allocation beside it, then one over both.
  answers.base = 0x6000000, answers.id = 3;
  CHECK(is(sources.find(at(0x6000000)), 3, 0) && added[2].replaces == 0);
  answers.base = 0x5000000, answers.bytes = 0x2000000, answers.id = 4;
  CHECK(sources.find(at(0x6000000)).offset == 0x1000000 && added.back().replaces != 0);
  answers.base = 0;
  answers.bytes = 0;
  std::string text;
  try {
    sources.find(at(0x9000000));
  } catch (const Error& e) {
    text = e.what();
  }
  CHECK(text == "finding the allocation of an operand: refused");
}
