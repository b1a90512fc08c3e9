// Blocks an SM by NVIDIA's own rules. Reads lines of: compute capability (major, minor), threads
// an SM, shared bytes an SM and a block, registers, static and dynamic shared bytes, threads.
#include <cstddef>
#include <cstdio>
#include <cstring>

#include "cuda_occupancy.h"

int main() {
  cudaOccDeviceProp gpu = {};
  cudaOccFuncAttributes kernel = {};
  int fixed, threads;
  long dynamic;
  gpu.maxThreadsPerBlock = kernel.maxThreadsPerBlock = 1024;
  gpu.regsPerBlock = gpu.regsPerMultiprocessor = 65536;
  gpu.warpSize = 32;
  gpu.sharedMemPerBlock = 48 * 1024;
  gpu.numSms = 1;
  kernel.partitionedGCConfig = PARTITIONED_GC_OFF;
  kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
  kernel.numBlockBarriers = 1;
  while (std::scanf("%d %d %d %zu %zu %d %d %ld %d", &gpu.computeMajor, &gpu.computeMinor,
                    &gpu.maxThreadsPerMultiprocessor, &gpu.sharedMemPerMultiprocessor,
                    &gpu.sharedMemPerBlockOptin, &kernel.numRegs, &fixed, &dynamic,
                    &threads) == 9) {
    gpu.reservedSharedMemPerBlock = gpu.computeMajor >= 8 ? 1024 : 0;
    kernel.sharedSizeBytes = fixed;
    kernel.maxDynamicSharedSizeBytes = gpu.sharedMemPerBlockOptin;
    cudaOccDeviceState state;
    state.cacheConfig = CACHE_PREFER_NONE;
    state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
    cudaOccResult result;
    const int error =
        cudaOccMaxActiveBlocksPerMultiprocessor(&result, &gpu, &kernel, &state, threads, dynamic);
    std::printf("%d\n", error ? -error : result.activeBlocksPerMultiprocessor);
  }
}
