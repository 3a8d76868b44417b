/* Memory of CUDA devices and pinned memory of the host. What moves it is done on return, on the device's own stream. */
#include <inttypes.h>

#include "cuda_back_end.h"

fh_status fh_cuda_alloc(fh_device *device, fh_memory memory, uint64_t bytes, void **base) {
  fh_status status = fh_cuda_enter(device);
  if (status) return status;
  const int on_host = memory == FH_MEMORY_HOST;
  status = on_host ? FH_CUDA(cudaHostAlloc, base, bytes, cudaHostAllocPortable) : FH_CUDA(cudaMalloc, base, bytes);
  if (status == FH_ERR_MEMORY)
    status = fh_fail(FH_ERR_MEMORY, "bytes: got %" PRIu64 ", more than the %s could allocate (%s)", bytes,
                     on_host ? "host" : "device", fh_error());
  return fh_cuda_leave(status);
}

void fh_cuda_release(fh_device *device, fh_memory memory, void *base) {
  if (fh_cuda_enter(device)) return; /* the process ends, and the memory with it */
  (void)(memory == FH_MEMORY_HOST ? cudaFreeHost(base) : cudaFree(base));
  (void)cudaGetLastError();
  (void)fh_cuda_leave(FH_OK);
}

fh_status fh_cuda_check_wrapped(fh_device *device, const void *base) {
  struct cudaPointerAttributes pointer;
  int any_host = 0; /* the device reads the host's memory wherever it lies */
  fh_status status = fh_cuda_enter(device);
  if (status) return status;
  status = FH_CUDA(cudaPointerGetAttributes, &pointer, base);
  if (!status)
    status = FH_CUDA(cudaDeviceGetAttribute, &any_host, cudaDevAttrPageableMemoryAccess, device->info.ordinal);
  if (!status && pointer.type == cudaMemoryTypeUnregistered && !any_host)
    status = fh_fail(FH_ERR_ARGUMENT, "base: got %p, memory of the host, wanted memory that cuda:%d reaches", base,
                     (int)device->info.ordinal);
  if (!status && pointer.type == cudaMemoryTypeDevice && pointer.device != device->info.ordinal)
    status = fh_fail(FH_ERR_ARGUMENT, "base: got %p, memory of cuda:%d, wanted memory of cuda:%d", base, pointer.device,
                     (int)device->info.ordinal);
  return fh_cuda_leave(status);
}

static fh_status copy(fh_device *device, void *to, const void *from, uint64_t bytes) {
  const cudaStream_t stream = fh_cuda_of(device)->stream;
  fh_status status = fh_cuda_enter(device);
  if (status) return status;
  status = FH_CUDA(cudaMemcpyAsync, to, from, bytes, cudaMemcpyDefault, stream);
  if (!status) status = FH_CUDA(cudaStreamSynchronize, stream);
  return fh_cuda_leave(status);
}

fh_status fh_cuda_write(fh_device *device, void *to, const void *host, uint64_t bytes) {
  return copy(device, to, host, bytes);
}

fh_status fh_cuda_read(fh_device *device, const void *from, void *host, uint64_t bytes) {
  return copy(device, host, from, bytes);
}

fh_status fh_cuda_fill(fh_buffer *buffer, int32_t value) {
  const cudaStream_t stream = fh_cuda_of(buffer->device)->stream;
  fh_status status = fh_cuda_enter(buffer->device);
  if (status) return status;
  status = FH_CUDA(cudaMemsetAsync, buffer->base, value, buffer->bytes, stream);
  if (!status) status = FH_CUDA(cudaStreamSynchronize, stream);
  return fh_cuda_leave(status);
}

/* Writes other memory, twice the size of the cache, to push the buffer out. */
fh_status fh_cuda_evict(fh_buffer *buffer) {
  fh_cuda *cuda = fh_cuda_of(buffer->device);
  fh_status status = fh_cuda_enter(buffer->device);
  if (status) return status;
  pthread_mutex_lock(&cuda->scratch_lock);
  status = FH_CUDA(cudaMemsetAsync, cuda->scratch, 0, cuda->scratch_bytes, cuda->stream);
  pthread_mutex_unlock(&cuda->scratch_lock);
  return fh_cuda_leave(status);
}
