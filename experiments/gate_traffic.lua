-- What are gates worth on recorded traffic? Scores them with the times of an earlier gate sweep; measures nothing.
--
--   ./fewhead run experiments/gate_traffic.lua --traffic trace.jsonl
--   ./fewhead run experiments/gate_traffic.lua --sweep results/local/20260102T030405Z-gate_sweep --traffic trace.csv --load 0.3
--
-- A trace is Mooncake JSONL or Azure CSV, told apart by content. The chunks it makes follow from the options below.
local fh = require "fewhead"

local opt = fh.options {
  name = "gate_traffic", usage = "fewhead run experiments/gate_traffic.lua --traffic FILE [options]",
  about = "What gates are worth on recorded traffic, by the times of an earlier gate sweep.",
  options = {
    { "--traffic", "FILE", "Mooncake JSONL or Azure CSV", repeated = true },
    { "--sweep", "RUN", "a run of gate_sweep.lua: its folder, or a file of records", default = "results/local" },
    { "--layout", "NAME", "use this layout's times only", choices = fh.layout.names },
    { "--pattern", "NAME", "use this pattern's times only", choices = fh.pattern.names },
    { "--min-sq", "AXIS", "thresholds to compare (default 0, 64, 128 .. 2048)", lo = 0 },
    { "--max-tokens", "INTEGER", "rows of a chunk at most", default = fh.trace.max_tokens, lo = 1 },
    { "--decode-rows", "INTEGER", "of these, rows that running decodes take", default = 0, lo = 0 },
    { "--load", "NUMBER", "share of the engine's speed the trace is stretched to", default = fh.trace.load, lo = 0.001,
      without = { "alone" } },
    { "--tokens-per-s", "NUMBER", "prompt tokens the engine computes a second", default = fh.trace.tokens_per_s, lo = 1,
      without = { "alone" } },
    { "--alone", nil, "every request alone, not packed with others" },
    { "--no-prefix-cache", nil, "compute whole prompts" },
    { "--skip-bad", nil, "leave bad lines of the trace out and count them" },
  },
}:read(arg)
if #opt.traffic == 0 then fh.cli.exit(fh.cli.USAGE, "gate_traffic: no trace, wanted --traffic FILE") end

local function need(value, err)
  if not value then fh.cli.exit(fh.cli.FAILED, err) end
  return value
end

local path = need(fh.store.find(opt.sweep))
local sweep = need(fh.sweep.read(path))
local gate = need(fh.gate.fit(sweep:filter { layout = opt.layout, pattern = opt.pattern }))
local gates = fh.score.candidates(gate, opt.min_sq and fh.axis.integers("--min-sq", opt.min_sq, 0))
print("times from " .. fh.store.describe(path))
print(gate)
for _, file in ipairs(opt.traffic) do
  local trace = need(fh.trace.read(file, { skip_bad = opt.skip_bad }))
  local chunks = fh.trace.chunks(trace, {
    max_tokens = opt.max_tokens, decode_rows = opt.decode_rows,
    load = not opt.alone and opt.load or nil, tokens_per_s = not opt.alone and opt.tokens_per_s or nil,
    pack = not opt.alone, prefix_cache = not opt.no_prefix_cache,
  })
  local rows, note = fh.score.score(chunks, gates, gate.cost)
  print()
  print(trace)
  print(chunks)
  print(("times of one layer, from the %s %s cells; %s"):format(gate.decides.pattern, gate.decides.layout, tostring(note)))
  print(fh.table.text(rows, fh.score.columns))
end
