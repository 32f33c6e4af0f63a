#include "heap/symmetric_heap.h"

#include <unistd.h>

#include "heap/fd_exchange.h"
#include "host/error.h"

namespace mk {

uint64_t OffsetAllocator::allocate(uint64_t bytes, const char* what) {
  const uint64_t start = used_;
  const uint64_t padded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (padded < bytes || padded > capacity_ - start)
    fail(MK_ERROR_MEMORY, "%s needs %llu bytes of the symmetric heap, %llu of %llu are left: make the context with more heap_bytes", what,
         static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(capacity_ - start),
         static_cast<unsigned long long>(capacity_));
  used_ = start + padded;
  return start;
}

CUmemAllocationProp heap_properties(const Driver& driver, int device, bool nics) {
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device;
  int can = 0;
  if (nics && driver.device_attribute(&can, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device) == CUDA_SUCCESS && can != 0)
    prop.allocFlags.gpuDirectRDMACapable = 1;
  return prop;
}

SymmetricHeap::SymmetricHeap(const Driver& driver, uint64_t bytes, int device, int rank, const std::vector<bool>& mapped, bool nics,
                             mk_allgather allgather, void* user)
    : driver_(driver), blocks_(mapped.size()), offsets_(bytes) {
  const int world = static_cast<int>(mapped.size());
  const CUmemAllocationProp prop = heap_properties(driver, device, nics);
  size_t granularity = 0;
  driver.check(driver.granularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED), "heap granularity");
  bytes_ = (bytes + granularity - 1) / granularity * granularity;
  try {
    const CUresult created = driver.create(&blocks_[rank].handle, bytes_, &prop, 0);
    if (created == CUDA_ERROR_OUT_OF_MEMORY) check_allocation(cudaErrorMemoryAllocation, bytes_, "the symmetric heap");
    driver.check(created, "allocating the symmetric heap");
    map(blocks_[rank], device);
    check_cuda(cudaMemset(base(rank), 0, bytes_), "zeroing the symmetric heap");
    check_cuda(cudaDeviceSynchronize(), "zeroing the symmetric heap");
    if (world > 1) {
      int own = -1;
      driver.check(driver.export_handle(&own, blocks_[rank].handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                   "exporting the symmetric heap");
      std::vector<int> descriptors;
      try {
        descriptors = exchange_descriptors(own, rank, mapped, allgather, user);
      } catch (...) {
        close(own);
        throw;
      }
      close(own);
      CUresult imported = CUDA_SUCCESS;
      for (int r = 0; r < world; ++r) {
        if (descriptors[r] < 0) continue;
        if (imported == CUDA_SUCCESS)
          imported = driver.import_handle(&blocks_[r].handle, reinterpret_cast<void*>(static_cast<intptr_t>(descriptors[r])),
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        close(descriptors[r]);
      }
      driver.check(imported, "importing a peer's symmetric heap");
      for (int r = 0; r < world; ++r)
        if (r != rank && mapped[r]) map(blocks_[r], device);
      probe(rank, mapped, allgather, user);
    }
  } catch (...) {
    unmap_all();
    throw;
  }
}

void SymmetricHeap::map(Block& block, int device) {
  driver_.check(driver_.reserve(&block.address, bytes_, 0, 0, 0), "reserving addresses for the symmetric heap");
  driver_.check(driver_.map(block.address, bytes_, 0, block.handle, 0), "mapping the symmetric heap");
  block.mapped = true;
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  driver_.check(driver_.set_access(block.address, bytes_, &access, 1),
                "this GPU cannot reach a peer's memory (no peer access between the GPUs?)");
}

// Some platforms advertise peer access and then drop the writes: every rank writes a word into every peer's block and
// looks for the peers' words in its own.
void SymmetricHeap::probe(int rank, const std::vector<bool>& mapped, mk_allgather allgather, void* user) {
  const int world = static_cast<int>(mapped.size());
  const auto word = [](int from, int to) { return uint64_t{0x6d6b0000} + static_cast<uint64_t>(from * 1024 + to); };
  std::vector<char> ignored(world);
  const auto meet = [&] {
    const char mine = 1;
    if (allgather(user, &mine, ignored.data(), 1) != 0) fail(MK_ERROR_BOOTSTRAP, "the all-gather callback failed");
  };
  meet();
  for (int r = 0; r < world; ++r) {
    if (!mapped[r]) continue;
    const uint64_t value = word(rank, r);
    check_cuda(cudaMemcpy(base(r) + rank * 8, &value, 8, cudaMemcpyDefault), "writing to a peer's memory");
  }
  check_cuda(cudaDeviceSynchronize(), "writing to a peer's memory");
  meet();
  std::vector<uint64_t> seen(world);
  check_cuda(cudaMemcpy(seen.data(), base(rank), world * 8, cudaMemcpyDefault), "reading the own heap");
  check_cuda(cudaMemset(base(rank), 0, world * 8), "zeroing the symmetric heap");
  check_cuda(cudaDeviceSynchronize(), "zeroing the symmetric heap");
  meet();
  for (int r = 0; r < world; ++r)
    if (mapped[r] && seen[r] != word(r, rank))
      fail(MK_ERROR_UNSUPPORTED, "writes of rank %d do not arrive in the memory of rank %d, though peer access is advertised",
           r, rank);
}

void SymmetricHeap::unmap_all() {
  for (Block& b : blocks_) {
    if (b.mapped) driver_.unmap(b.address, bytes_);
    if (b.address != 0) driver_.free_address(b.address, bytes_);
    if (b.handle != 0) driver_.release(b.handle);
    b = Block{};
  }
}

SymmetricHeap::~SymmetricHeap() { unmap_all(); }

}  // namespace mk
