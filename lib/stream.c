/* Streams of devices that have them, and graphs recorded from them. */
#include <stdlib.h>

#include "internal.h"

struct fh_graph {
  fh_device *device;
  void *state; /* the back end's own */
};

static fh_status check_streams(const fh_device *device, const char *what) {
  if (!device) return fh_fail_null("device");
  if (device->back_end->has_streams) return FH_OK;
  return fh_fail(FH_ERR_UNSUPPORTED, "%s: %s has none; wanted a CUDA device", what, device->back_end->called);
}

fh_status fh_stream_create(fh_device *device, void **stream) {
  const fh_status status = check_streams(device, "stream");
  if (status) return status;
  return stream ? device->back_end->stream_create(device, stream) : fh_fail_null("stream");
}

void fh_stream_destroy(fh_device *device, void **stream) {
  if (!device || !device->back_end->has_streams || !stream || !*stream) return;
  device->back_end->stream_destroy(device, *stream);
  *stream = NULL;
}

fh_status fh_graph_begin(fh_device *device, void *stream) {
  const fh_status status = check_streams(device, "graph");
  return status ? status : device->back_end->graph_begin(device, stream);
}

fh_status fh_graph_end(fh_device *device, void *stream, fh_graph **graph) {
  void *state = NULL;
  fh_status status = check_streams(device, "graph");
  if (status) return status;
  if (!graph) return fh_fail_null("graph");
  fh_graph *made = malloc(sizeof *made);
  if (!made) return fh_fail(FH_ERR_MEMORY, "graph: the system refused %zu bytes for the handle", sizeof *made);
  if ((status = device->back_end->graph_end(device, stream, &state))) {
    free(made);
    return status;
  }
  made->device = fh_device_retain(device);
  made->state = state;
  *graph = made;
  return FH_OK;
}

fh_status fh_graph_launch(fh_graph *graph, void *stream) {
  return graph ? graph->device->back_end->graph_launch(graph->device, graph->state, stream) : fh_fail_null("graph");
}

void fh_graph_free(fh_graph **graph) {
  if (!graph || !*graph) return;
  fh_graph *g = *graph;
  *graph = NULL;
  g->device->back_end->graph_free(g->device, g->state);
  fh_device_release(g->device);
  free(g);
}
