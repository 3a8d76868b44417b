/*
 * Errors, the driver, and a device's context as the thread's current one: what every other file of this folder builds
 * on.
 *
 * The runtime is linked in, the driver is looked up when it is needed: a library with CUDA loads and works where there
 * is none.
 */
#include "cuda_back_end.h"

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

/* Errors of which CUDA's manual says that the process must be relaunched. Numbers where older headers lack the name. */
static int is_sticky(int code) {
  switch (code) {
    case 226: /* cudaErrorContained */
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case 721: /* cudaErrorTensorMemoryLeak */
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice: return 1;
    default: return 0;
  }
}

fh_status fh_cuda_status(int code, const char *function) {
  if (code == cudaSuccess) return FH_OK;
  (void)cudaGetLastError(); /* reported here; the next function starts without it */
  return fh_fail(code == cudaErrorMemoryAllocation ? FH_ERR_MEMORY : FH_ERR_DEVICE, "%s: %s (%s)%s", function,
                 cudaGetErrorName((cudaError_t)code), cudaGetErrorString((cudaError_t)code),
                 is_sticky(code) ? "; the device's context is lost until the process ends" : "");
}

/* ---- The driver -------------------------------------------------------------------------------------------------- */

/* cudaSetDevice would change the thread's device, and setting the old one back would make a context on a device that
 * nobody asked for; the driver's stack of contexts does neither. */
static struct {
  CUresult (*retain)(CUcontext *context, CUdevice device);
  CUresult (*push)(CUcontext context);
  CUresult (*pop)(CUcontext *context);
} driver;

static fh_status look_up(const char *name, void **function) {
  enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const int code = cudaGetDriverEntryPointByVersion(name, function, 12000, cudaEnableDefault, &found);
#else
  const int code = cudaGetDriverEntryPoint(name, function, cudaEnableDefault, &found);
#endif
  if (code == cudaSuccess && found != cudaDriverEntryPointSuccess)
    return fh_fail(FH_ERR_DEVICE, "%s: not in this CUDA driver", name);
  return fh_cuda_status(code, name);
}

fh_status fh_cuda_load_driver(void) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  fh_status status = FH_OK;
  pthread_mutex_lock(&lock);
  if (!driver.pop && !(status = look_up("cuDevicePrimaryCtxRetain", (void **)(void *)&driver.retain)) &&
      !(status = look_up("cuCtxPushCurrent", (void **)(void *)&driver.push)))
    status = look_up("cuCtxPopCurrent", (void **)(void *)&driver.pop);
  pthread_mutex_unlock(&lock);
  return status;
}

fh_status fh_cuda_enter(const fh_device *device) {
  return fh_cuda_status((int)driver.push(fh_cuda_of(device)->context), "cuCtxPushCurrent");
}

fh_status fh_cuda_leave(fh_status status) {
  CUcontext ours;
  const CUresult popped = driver.pop(&ours);
  return status ? status : fh_cuda_status((int)popped, "cuCtxPopCurrent");
}

fh_status fh_cuda_retain(CUcontext *context, int64_t ordinal) {
  return fh_cuda_status((int)driver.retain(context, (CUdevice)ordinal), "cuDevicePrimaryCtxRetain");
}
