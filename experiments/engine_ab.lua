-- What does a real engine gain? Starts vLLM with and without fewhead's plug-in, arm by arm, and says what changed.
--
--   make wheel wheel-vllm           and install both beside vLLM 0.26, on a machine with an H100 or H200
--   ./fewhead run experiments/engine_ab.lua --seconds 480 --out results/DEVICE
--   ./fewhead run experiments/engine_ab.lua --seconds 480 --out results/DEVICE --resume
--   ./fewhead run experiments/engine_ab.lua --read results/nvidia-h200/engine.jsonl
--
-- The model is one tensor-parallel rank with 8 heads and random weights: no all-reduce, a dense MLP in place of the experts. In a
-- whole server the same milliseconds are a smaller share.
--
-- Answer on an H200, vLLM 0.26, a GLM-5.2 rank: the median TTFT of an 8192-token prompt falls from 500 ms (padded FlashMLA) to
-- 281 ms.
local fh = require "fewhead"

local options, start = { "out", "name" }, {}
for _, row in ipairs(fh.engine_ab.rows.list) do options[#options + 1], start[#start + 1] = row, row.key end
table.insert(options, 1, { "--read", "FILE", "records of an earlier run; nothing is started", without = start })
local opt = fh.options {
  name = "engine_ab", options = options,
  about = "TTFT, TPOT, throughput and attention time of vLLM by arm, each beside the better of the engine's own kernels.",
}:read(arg)

-- The records, and what is printed of them; whether they are a result.
local function look(path)
  local ok, records = pcall(fh.engine_ab.read, path)
  fh.experiment.need("engine_ab", ok, records)
  local rows, columns, notes = fh.engine_ab.table(fh.engine_ab.cells(records))
  local lines, wrong = { (fh.table.text(rows, columns)), unpack(notes) }, fh.engine_ab.errors(records)
  for _, line in ipairs(wrong) do lines[#lines + 1] = "ERROR " .. line end
  return records, table.concat(lines, "\n"), #wrong == 0
end

if opt.read then
  local _, text, good = look(opt.read)
  print(text)
  return good and 0 or fh.cli.FAILED
end

-- The bench works in a folder within the run's; it goes on there, or with the evidence where there is no run.
local e = fh.experiment.open("engine_ab", opt, { evidence = "engine", resume = opt.resume })
local work = e:make_folder() .. "/engine"
local before = opt.resume and not fh.file.read(work .. "/engine.jsonl") and e.evidence
before = before and fh.file.read(before .. "/engine.jsonl")
if before then e:need(fh.file.write(work .. "/engine.jsonl", before)) end
local whole = fh.engine_ab.start(work, opt)
local records, text, good = look(work .. "/engine.jsonl")
e:rewrite(records)
e.failed = whole and good and 0 or 1
return e:finish { text = text, page = fh.file.read(work .. "/engine.md") or text .. "\n", partial = not (whole and good) }
