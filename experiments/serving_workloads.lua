-- What do paths and gates give end to end, workload by workload? Every workload and trace, through one engine.
--
--   ./fewhead run experiments/serving_workloads.lua --traffic conversation_trace.jsonl --out results/nvidia-h200
--
-- Answer on an H200 with V4.1-Flash at TP8 the published gate gives nearly all of the gain on 8k and 32k prompts; on short
-- chats, whose chunks are small, a third of the rows stay padded.
local fh = require "fewhead"

local opt = fh.options {
  name = "serving_workloads", usage = "fewhead run experiments/serving_workloads.lua [options]",
  about = "Throughput and TTFT of every workload by arm, beside the padded arm.",
  options = {
    { "--device-preset", "NAME", "the engine", default = "h200x8-tp8", choices = fh.engine_preset.names() },
    { "--traffic", "FILE", "a trace too, stretched to --load", repeated = true },
    { "--load", "NUMBER", "share of the engine's prefill speed that a trace asks for", default = 0.7, lo = 0.01, hi = 10 },
    { "--arms", "LIST", "arms", default = { "padded", "gate 2048", "native", "auto" } },
    { "--out", "FOLDER", "write serving.md and serving.jsonl there" },
  },
}:read(arg)

local function need(value, err)
  if not value then fh.cli.exit(fh.cli.FAILED, "serving_workloads: " .. tostring(err)) end
  return value
end

local engine = fh.engine_preset.get(opt.device_preset)
-- Prompt tokens a second of cold 32k prompts, padded: what a load of 1 would be.
local speed = 32768 / fh.calibrate.figure(engine, fh.workload.get "cold32k", "ttft_s")

local list = {}
for _, name in ipairs(fh.workload.names()) do list[#list + 1] = fh.workload.get(name) end
for _, file in ipairs(opt.traffic) do
  local trace = need(fh.trace.read(file))
  list[#list + 1] = fh.workload.trace(trace, { load = opt.load, tokens_per_s = speed, name = file:match("[^/]+$") })
end

local rows, records, failed = {}, {}, false
local run = fh.run.header(fh.device.default(), arg)
local line = fh.progress { total = #list, noun = "workloads" }
for _, workload in ipairs(list) do
  line:step(workload.name)
  local ab = fh.serve { workload = workload, engine = engine, arms = opt.arms }
  for _, row in ipairs(ab.rows) do
    local figures, change = row.figures or {}, row.change or {}
    failed = failed or row.error ~= nil
    if row.error then line:failed() end
    local routed, all = 0, 0
    for path, n in pairs(row.counters.rows) do
      all, routed = all + n, routed + (path == "padded" and 0 or n)
    end
    rows[#rows + 1] = { workload = workload.name, arm = row.name, total = figures.total_tok_s, ttft = figures.ttft_s,
      p99 = figures.ttft_p99_s, total_change = change.total_tok_s and change.total_tok_s.mean,
      ttft_change = change.ttft_s and change.ttft_s.mean, attention = row.counters.attention_s,
      native = routed / math.max(all, 1) }
    records[#records + 1] = { kind = "serving", workload = workload.name, engine = engine.name, arm = row.name,
      figures = row.figures, change = row.change, counters = row.counters, error = row.error, run = run }
  end
end

line:clear()

local function percent(digits, sign) return function(v) return ("%" .. sign .. "." .. digits .. "f %%"):format(100 * v) end end
local columns = {
  { key = "workload", align = "left" }, { key = "arm", align = "left" },
  { key = "total", title = "total tok/s", format = "%.0f" },
  { key = "total_change", title = "change", format = percent(1, "+") },
  { key = "ttft", title = "mean TTFT s", format = "%.3f" },
  { key = "ttft_change", title = "change", format = percent(1, "+") },
  { key = "p99", title = "p99 TTFT s", format = "%.3f" }, { key = "attention", title = "attention s", format = "%.2f" },
  { key = "native", title = "native rows", format = percent(1, "") },
}
print(engine)
print()
print((fh.table.text(rows, columns)))
if opt.out then
  local text = { "# Serving, by workload\n", "```", tostring(engine), "```\n", (fh.table.markdown(rows, columns)), "",
    ("A trace comes at %.0f %% of %.0f prompt tokens a second. Command: `%s`."):format(100 * opt.load, speed,
      fh.shell.line { "./fewhead", "run", "experiments/serving_workloads.lua", unpack(arg) }) }
  need(fh.file.write(opt.out .. "/serving.md", table.concat(text, "\n") .. "\n"))
  local lines = {}
  for i, record in ipairs(records) do lines[i] = fh.json.encode(record) .. "\n" end
  need(fh.file.write(opt.out .. "/serving.jsonl", table.concat(lines)))
end
return failed and 1 or 0
