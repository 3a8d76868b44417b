-- What does FH_AUTO cost over the best path? Measures nothing: it reads records.
-- Asked of cells that were measured, by costs that have not seen them, and of recorded traffic.
--
--   ./fewhead run experiments/auto_regret.lua                                the records of an H200
--   ./fewhead run experiments/auto_regret.lua --records results/local --traffic trace.jsonl
--
-- Held-out choices need records of a bench, which say how large the plans were (experiments/bench_packed.lua); traffic needs a
-- gate sweep with path auto. Of a file that has neither, what is missing is left out.
--
-- Answer on an H200, 98 cells: 3.9 % on average and 41 % at worst, at 32 heads and 1024 rows, where auto never packs without a
-- given plan; with costs that have not seen the cell, 0.1 % and 5.0 %.
local fh = require "fewhead"

local opt = fh.options {
  name = "auto_regret", usage = "fewhead run experiments/auto_regret.lua [options]",
  about = "What FH_AUTO costs over the best path, in measured cells, in held-out cells and on traffic.",
  options = {
    { "--records", "RUN", "a run's folder or a file of records", default = "results/nvidia-h200/packed.jsonl" },
    { "--folds", "INTEGER", "parts that the cells are dealt into; costs of the others choose for each", default = 5, lo = 2 },
    { "--sweep", "RUN", "the gate sweep whose times traffic is scored with (default: --records)" },
    { "--traffic", "FILE", "Mooncake JSONL or Azure CSV", repeated = true },
    { "--skip-bad", nil, "leave bad lines of the trace out and count them", with = { traffic = true } },
  },
}:read(arg)

local function need(value, err)
  if not value then fh.cli.exit(fh.cli.FAILED, "auto_regret: " .. err) end
  return value
end

local path = need(fh.store.find(opt.records))
print(("records of %s"):format(fh.store.describe(path)))
print(need(fh.regret.of(need(fh.record.read(path)), opt.folds)))
if #opt.traffic == 0 then return 0 end

local swept = need(fh.store.find(opt.sweep or opt.records))
local gate = need(fh.gate.fit(need(fh.sweep.read(swept))))
local rows = {}
for _, candidate in ipairs(fh.score.candidates(gate)) do
  if candidate.us_at then rows[1] = candidate end
end
need(rows[1], swept .. ": no times of auto at two s_q, wanted a gate sweep with path auto")
print(("\ntimes of %s, %s %s"):format(fh.store.describe(swept), gate.decides.pattern, gate.decides.layout))
for _, file in ipairs(opt.traffic) do
  local chunks = fh.trace.chunks(need(fh.trace.read(file, { skip_bad = opt.skip_bad })))
  local scored, note = fh.score.score(chunks, rows, gate.cost)
  print(("%s\n%s\n%s"):format(tostring(chunks), fh.table.text(scored, fh.score.columns), tostring(note)))
end
return 0
