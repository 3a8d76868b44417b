-- What are gates worth on recorded traffic? Scores them with the times of an earlier gate sweep; measures nothing.
--
--   ./fewhead run experiments/gate_traffic.lua --traffic trace.jsonl
--   ./fewhead run experiments/gate_traffic.lua --sweep results/local/20260102T030405Z-gate_sweep --traffic trace.csv --load 0.3
--
-- A trace is Mooncake JSONL or Azure CSV, told apart by content. The chunks it makes follow from the options below.
-- Answer: it depends on the trace; serving_workloads.lua has four traces on an H200.
local fh = require "fewhead"

local of = fh.traffic.rows.by_key -- the options of fh.traffic that this script has too
local opt = fh.options {
  name = "gate_traffic", usage = "fewhead run experiments/gate_traffic.lua --traffic FILE [options]",
  about = "What gates are worth on recorded traffic, by the times of an earlier gate sweep.",
  options = {
    of.traffic, of.sweep, of.layout, of.pattern, of.min_sq, of.max_tokens, of.decode_rows,
    fh.option.like(of.load, { [2] = "NUMBER", lo = 0.001, without = { "alone" } }),
    fh.option.like(of.tokens_per_s, { without = { "alone" } }),
    { "--alone", nil, "every request alone, not packed with others" },
    { "--no-prefix-cache", nil, "compute whole prompts" },
    of.skip_bad,
  },
}:read(arg)
if #opt.traffic == 0 then fh.cli.exit(fh.cli.USAGE, "gate_traffic: no trace, wanted --traffic FILE") end

local line = fh.progress { noun = "traces" }
local found, err = fh.traffic {
  on_file = function(name, i, n) line:step(name, i, n) end,
  traffic = opt.traffic, sweep = opt.sweep, layout = opt.layout, pattern = opt.pattern, min_sq = opt.min_sq,
  max_tokens = opt.max_tokens, decode_rows = opt.decode_rows, load = not opt.alone and opt.load or nil,
  tokens_per_s = not opt.alone and opt.tokens_per_s or nil, pack = not opt.alone, prefix_cache = not opt.no_prefix_cache,
  skip_bad = opt.skip_bad,
}
line:clear()
if not found then fh.cli.exit(fh.cli.FAILED, err) end
print(found)
