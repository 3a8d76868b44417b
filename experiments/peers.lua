-- How fast are the library's paths beside what engines run and kernels of your own? Same cases and memory, parity before time.
-- FlashMLA and FlashAttention 3 are those of the active Python environment.
--
--   ./fewhead run experiments/peers.lua --preset "v4.1-flash tp8,glm-5.2 tp4"
--   ./fewhead run experiments/peers.lua --provider mine=./mine.so             and a plug-in (see fewhead_provider.h)
--   ./fewhead run experiments/peers.lua --indices layer7.npy                  on lists that an engine was called with
--   ./fewhead run experiments/peers.lua --device cuda:0 --out results/DEVICE
--
-- Answer on an H200, the best kernel of vLLM 0.33 over the best path, at 8192 rows: V4.1-Flash at TP8 2.49 (csa) and 5.64
-- (local), GLM-5.2 at TP8 3.72 and 5.50, where FlashAttention 3 is the best of vLLM's.
--
-- Where there is no FlashMLA, a line says what was looked for, and the built-in padded path stands in. Then native heads are
-- compared with padded ones as the published few-head kernel was, beside its figures. Exit status: 0, 1 when something was wrong
-- or failed, 130 after Ctrl-C, which keeps what was measured; a case that a provider refuses is neither.
local fh = require "fewhead"

local opt = fh.options {
  name = "peers",
  about = "FlashMLA and FlashAttention 3 where found, the library's paths and plug-ins on the same cases: parity, times.",
  options = {
    "provider", { "preset", "LIST" }, "heads",
    { "s_q", "AXIS", "rows of a chunk (default 16,64 on a CPU, 64:8192:*2 on a GPU)" },
    { "pattern", "LIST", default = "csa,local" }, "indices", "layout", "seed",
    { "--published", "AXIS", "rows of the published tests (default 64,2048 on a CPU, 64,2048,8192 on a GPU)", lo = 1 },
    { "--flashmla-padding", "NAME", "whether FlashMLA's padding of heads and lists is a part of its times",
      default = "untimed", choices = { "untimed", "timed" } },
    { "--samples", "INTEGER", "runs timed of each path and cell", default = 30, lo = 6 },
    { "--seconds", "NUMBER", "time to spend on timing a cell at most, once it has 6 samples", default = 5, lo = 0 },
    "device", "out", "name", "tags",
  },
}:read(arg)

local race = fh.race.open("peers", opt)

-- Captured lists are raced as a whole, unless --s-q says how many rows.
local sizes = opt.indices and not opt.s_q and { false }
  or fh.axis.integers("--s-q", opt.s_q or (race.on_cpu and "16,64" or "64:8192:*2"), 1)
-- No engine reads max_logits, and FlashAttention 3 returns none.
local cells = {}
for _, preset in ipairs(opt.preset) do
  for _, pattern in ipairs(opt.indices and { "file" } or opt.pattern) do
    for _, s_q in ipairs(sizes) do
      cells[#cells + 1] = {
        preset = preset, heads = opt.heads, s_q = s_q or nil, pattern = pattern, indices = opt.indices, layout = opt.layout,
        seed = opt.seed, max_logits = false,
      }
    end
  end
end
race:run(cells)
race:hold_published(fh.axis.integers("--published", opt.published or (race.on_cpu and "64,2048" or "64,2048,8192"), 1))
return race:finish "Peers"
