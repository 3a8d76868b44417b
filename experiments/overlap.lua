-- Would packing pay for your model? Reads captured index lists and counts what neighbouring rows share.
-- Then it says what that is worth on a GPU that was measured, which need not be here.
--
--   ./fewhead run experiments/overlap.lua --indices layer7.npy
--   ./fewhead run experiments/overlap.lua --indices layer7.npy --cu-seqlens-q 0,1024,8192 --shared 4
--   ./fewhead run experiments/overlap.lua --pattern local --keep 0.8 --ratio 1       drawn lists, to try it
--
-- Answer for drawn lists on an H200, 8 heads, 8192 rows: packed is 3.76 (csa) and 5.01 (local) times padded at ratio 4.
local fh = require "fewhead"

local opt = fh.options {
  name = "overlap",
  about = [[
Union factors of captured index lists, and what each path is expected to take on a GPU.

To capture: where the engine calls flash_mla_sparse_fwd(q, kv, indices, ..) for prefill, save what it passes, of one chunk and one
layer (vLLM: vllm/v1/attention/backends/mla/flashmla_sparse.py; SGLang: python/sglang/srt/layers/attention/nsa_backend.py):

    numpy.save("layer7.npy", indices.cpu().numpy().astype("int32"))              # [s_q, topk] or [s_q, 1, topk]
    numpy.save("length7.npy", topk_length.cpu().numpy().astype("int32"))         # [s_q], where the call has one

Raw int32 works too: FILE and FILE.json beside it with {"dtype": "int32", "shape": [s_q, topk]}.]],
  options = fh.overlap.rows.list,
}:read(arg)

if not opt.indices and not opt.pattern then
  fh.cli.exit(fh.cli.USAGE, "overlap: no lists, wanted --indices FILE or --pattern NAME (--help lists the options)")
end
local found, err = fh.overlap(opt)
if not found then fh.cli.exit(fh.cli.FAILED, "overlap: " .. err:gsub("^topk_length:", "--topk-length:")) end
print(found)
