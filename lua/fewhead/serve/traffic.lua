--- Traffic: what gates are worth on recorded traffic, by the times of an earlier sweep, as one object. Measures nothing.
--
--     print(assert(fh.traffic { traffic = "trace.jsonl", sweep = "results/nvidia-h200/gate_sweep.jsonl", min_sq = { 0, 512 } }))
--
-- What experiments/gate_traffic.lua prints. A trace is Mooncake JSONL or Azure CSV, told apart by content (fh.trace).
local axis = require "fewhead.decide.axis"
local case = require "fewhead.case.case"
local gate = require "fewhead.decide.gate"
local option = require "fewhead.base.option"
local score = require "fewhead.decide.score"
local store = require "fewhead.record.store"
local sweeps = require "fewhead.decide.sweep"
local tables = require "fewhead.base.table"
local trace = require "fewhead.serve.trace"

local M = {}

local Traffic = { __name = "traffic" }
Traffic.__index = Traffic
M.class = Traffic -- a later room gives it print

-- The options of fh.trace.chunks, which are handed on.
local CHUNKS = trace.chunk_rows.list

--- The options of fh.traffic (fewhead.base.option).
M.rows = option.rows("traffic", {
  { "--traffic", "FILE", "Mooncake JSONL or Azure CSV", repeated = true },
  { "--sweep", "RUN", "a run of gate_sweep.lua: its folder, or a file of records", default = "results/local" },
  { "--layout", "NAME", "use this layout's times only", choices = case.rows.by_key.layout.choices },
  { "--pattern", "NAME", "use this pattern's times only", choices = case.rows.by_key.pattern.choices },
  { "--min-sq", "AXIS", "thresholds to compare (default 0, 64, 128 .. 2048)", lo = 0 },
  { "--skip-bad", nil, "leave bad lines of the trace out and count them" },
  { "on_file", "FUNCTION", "told which trace comes next" }, unpack(CHUNKS),
})

--- Score gates on traffic. Options: traffic, a file or a list of them; sweep, a run's folder, a folder of runs or a file of
-- records ("results/local"); layout, pattern: use these cells' times alone; min_sq, thresholds to compare, as an axis of whole
-- numbers; skip_bad; on_file(name, i, n), called before each file; and those of fh.trace.chunks. Returns { source = where the
-- times are from, in words, gate = fitted to them, parts = one a file: { trace =, chunks =, rows =, note = } as fh.score.score
-- has them }, which prints as text; nil, err.
function M.run(options)
  local o = option.table("traffic", options, M.rows)
  if #o.traffic == 0 then error("traffic: traffic: got none, wanted at least one file", 2) end
  local min_sq = o.min_sq ~= nil and axis.integers("traffic: min_sq", o.min_sq, 0, nil, 2) or nil
  local path, sweep, err
  path, err = store.find(o.sweep, store.is_sweep)
  if path then sweep, err = sweeps.read(path) end
  if not sweep then return nil, err end
  local self = setmetatable({ source = store.describe(path), parts = {} }, Traffic)
  self.gate, err = gate.fit(sweep:filter { layout = o.layout, pattern = o.pattern })
  if not self.gate then return nil, err end
  local gates, how = score.candidates(self.gate, min_sq), {}
  for _, row in ipairs(CHUNKS) do how[row.key] = options[row.key] end
  for i, name in ipairs(o.traffic) do
    if o.on_file then o.on_file(name, i, #o.traffic) end
    local part = {}
    part.trace, err = trace.read(name, { skip_bad = o.skip_bad })
    if not part.trace then return nil, err end
    part.chunks = trace.chunks(part.trace, how)
    part.rows, part.note = score.score(part.chunks, gates, self.gate.cost)
    self.parts[i] = part
  end
  return self
end

function Traffic:__tostring()
  local lines = { "times from " .. self.source, tostring(self.gate) }
  for _, part in ipairs(self.parts) do
    lines[#lines + 1] = ""
    lines[#lines + 1] = tostring(part.trace)
    lines[#lines + 1] = tostring(part.chunks)
    lines[#lines + 1] = ("times of one layer, from the %s %s cells; %s"):format(self.gate.decides.pattern,
      self.gate.decides.layout, tostring(part.note))
    lines[#lines + 1] = (tables.text(part.rows, score.columns))
  end
  return table.concat(lines, "\n")
end

-- A tail call: errors blame the caller, as for M.run itself.
return setmetatable(M, { __call = function(_, ...) return M.run(...) end })
