"""Captures: the lists of a running engine, in files that experiments/overlap.lua and gate_sweep.lua read."""
import json
import os

import torch

from ._stats import STATS


class Capture:
    """Writes what the chosen layers are called with, up to so many chunks a layer and bytes in all.

    A chunk of layer 7 is FOLDER/v32_rank0_layer7_chunk0.npy, int32 [s_q, topk], and beside it
      .length.npy    int32 [s_q]: keys of each row that count
      .offsets.npy   int32 [requests + 1]: first row of each request, and s_q
      .npy.json      s_kv, the file of the lengths and the offsets: fewhead's readers take them with the lists
      .sizes.json    s_q, topk, s_kv, h_q, d_qk, sm_scale, the offsets again, family, layer and rank
    """

    def __init__(self, settings):
        self.folder, self.layers, self.chunks = settings.capture, settings.capture_layers, settings.capture_chunks
        self.min_rows, self.left = settings.capture_rows, settings.capture_bytes
        self.seen = {}

    def take(self, family, call):
        """Write a call, if it is wanted. Waits for the device."""
        rows, topk = call.q.shape[0], call.indices.shape[-1]
        if rows < self.min_rows or self.layers is not None and call.layer not in self.layers:
            return
        chunk = self.seen.get((family, call.layer), 0)
        if chunk >= self.chunks:
            return
        bytes = 4 * rows * (topk + 1)
        if bytes > self.left:
            STATS.capture["full"] = True
            return
        self.seen[family, call.layer] = chunk + 1
        self.left -= bytes
        self._write(f"{family}_rank{_rank()}_layer{call.layer}_chunk{chunk}", family, call)
        STATS.capture["bytes"] += bytes

    def _write(self, name, family, call):
        os.makedirs(self.folder, exist_ok=True)
        rows = call.q.shape[0]
        lists = call.indices.reshape(rows, -1)
        lengths = call.lengths
        if lengths is None:
            lengths = torch.full((rows,), lists.shape[1], dtype=torch.int32)
        offsets = torch.tensor([0, rows], dtype=torch.int32) if call.offsets is None else (call.offsets - call.offsets[0]).clone()
        offsets[-1] = rows
        self._save(f"{name}.npy", lists)
        self._save(f"{name}.length.npy", lengths)
        self._save(f"{name}.offsets.npy", offsets)
        self._text(f"{name}.npy.json", {"s_kv": call.kv.shape[0], "topk_length": f"{name}.length.npy", "cu_seqlens_q": offsets.tolist()})
        sizes = {"family": family, "layer": call.layer, "rank": _rank(), "s_q": rows, "topk": lists.shape[1], "s_kv": call.kv.shape[0],
                 "h_q": call.heads, "d_qk": call.q.shape[2], "sm_scale": call.scale, "attn_sink": call.sink is not None,
                 "cu_seqlens_q": offsets.tolist()}
        self._text(f"{name}.sizes.json", sizes)
        STATS.capture["files"] += 5

    def _save(self, name, tensor):
        import numpy
        path = os.path.join(self.folder, name)
        with open(path + ".part", "wb") as f:
            numpy.save(f, tensor.cpu().numpy().astype("int32", order="C"))
        os.replace(path + ".part", path)

    def _text(self, name, value):
        path = os.path.join(self.folder, name)
        with open(path + ".part", "w", encoding="utf-8") as f:
            json.dump(value, f)
            f.write("\n")
        os.replace(path + ".part", path)


def _rank():
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return 0
