/* Streams of CUDA devices, graphs recorded from them, and events as points in time. */
#include "cuda_back_end.h"

fh_status fh_cuda_stream_create(fh_device *device, void **stream) {
  cudaStream_t made = NULL;
  fh_status status = fh_cuda_enter(device);
  if (status) return status;
  status = FH_CUDA(cudaStreamCreateWithFlags, &made, cudaStreamNonBlocking);
  if (!status) *stream = made;
  return fh_cuda_leave(status);
}

void fh_cuda_stream_destroy(fh_device *device, void *stream) {
  if (fh_cuda_enter(device)) return;
  (void)cudaStreamDestroy(stream);
  (void)cudaGetLastError();
  (void)fh_cuda_leave(FH_OK);
}

fh_status fh_cuda_graph_begin(fh_device *device, void *stream) {
  const fh_status status = fh_cuda_enter(device);
  if (status) return status;
  /* Relaxed: a finalizer that frees memory meanwhile does not spoil the recording. */
  return fh_cuda_leave(FH_CUDA(cudaStreamBeginCapture, fh_cuda_stream(device, stream), cudaStreamCaptureModeRelaxed));
}

fh_status fh_cuda_graph_end(fh_device *device, void *stream, void **graph) {
  cudaGraph_t recorded = NULL;
  cudaGraphExec_t made = NULL;
  fh_status status = fh_cuda_enter(device);
  if (status) return status;
  status = FH_CUDA(cudaStreamEndCapture, fh_cuda_stream(device, stream), &recorded);
  if (!status) status = FH_CUDA(cudaGraphInstantiate, &made, recorded, 0);
  if (recorded) (void)cudaGraphDestroy(recorded);
  if (!status) *graph = made;
  return fh_cuda_leave(status);
}

fh_status fh_cuda_graph_launch(fh_device *device, void *graph, void *stream) {
  const fh_status status = fh_cuda_enter(device);
  return status ? status : fh_cuda_leave(FH_CUDA(cudaGraphLaunch, graph, fh_cuda_stream(device, stream)));
}

void fh_cuda_graph_free(fh_device *device, void *graph) {
  if (fh_cuda_enter(device)) return;
  (void)cudaGraphExecDestroy(graph);
  (void)cudaGetLastError();
  (void)fh_cuda_leave(FH_OK);
}

fh_status fh_cuda_moment_create(fh_device *device, fh_moment *moment) {
  cudaEvent_t made = NULL;
  fh_status status = fh_cuda_enter(device);
  if (status) return status;
  status = FH_CUDA(cudaEventCreate, &made);
  moment->event = made;
  return fh_cuda_leave(status);
}

void fh_cuda_moment_destroy(fh_device *device, fh_moment *moment) {
  if (fh_cuda_enter(device)) return;
  (void)cudaEventDestroy(moment->event);
  (void)cudaGetLastError();
  (void)fh_cuda_leave(FH_OK);
}

fh_status fh_cuda_moment_mark(fh_device *device, fh_moment *moment, void *stream) {
  const fh_status status = fh_cuda_enter(device);
  return status ? status : fh_cuda_leave(FH_CUDA(cudaEventRecord, moment->event, fh_cuda_stream(device, stream)));
}

fh_status fh_cuda_moment_between(fh_device *device, const fh_moment *start, const fh_moment *stop, double *us) {
  float ms = 0;
  fh_status status = fh_cuda_enter(device);
  if (status) return status;
  status = FH_CUDA(cudaEventSynchronize, stop->event);
  if (!status) status = FH_CUDA(cudaEventElapsedTime, &ms, start->event, stop->event);
  if (!status) *us = (double)ms * 1e3;
  return fh_cuda_leave(status);
}
