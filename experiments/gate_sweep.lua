-- Where do native heads beat padded ones on this machine? Sweeps s_q, fits the gate, writes what it found.
--
--   ./fewhead run experiments/gate_sweep.lua                                 the few-head case of DeepSeek-V4.1-Flash at TP8
--   ./fewhead run experiments/gate_sweep.lua --preset "glm-5 tp8" --pattern local
--   ./fewhead run experiments/gate_sweep.lua --traffic trace.jsonl           and scores gates on recorded traffic
--
-- Ctrl-C keeps what was measured. Exit status: 0, 1 when a path failed parity or nothing could be measured, 130 after Ctrl-C.
local fh = require "fewhead"

local opt = fh.options {
  name = "gate_sweep", usage = "fewhead run experiments/gate_sweep.lua [options]",
  about = "Where native heads beat padded ones: a sweep of s_q, the gate that fits it, and what gates are worth on traffic.",
  options = {
    "preset", "heads",
    { "--s-q", "AXIS", "rows of a chunk (default 64:2048:*2 on a CPU, 64:16384:*2 on a GPU)", lo = 1 },
    { "--min-sq", "AXIS", "thresholds to compare (default 0, 64, 128 .. 2048)", lo = 0 },
    { "layout", "LIST", default = "vllm,contiguous" }, { "pattern", "LIST" }, "indices", "seed", "provider", "device",
    "seconds", "cold",
    { "--traffic", "FILE", "score gates on a Mooncake JSONL or Azure CSV trace" },
    { "--skip-bad", nil, "leave bad lines of the trace out and count them", with = { traffic = true } },
    { "out", default = "results/local" },
  },
}:read(arg)

-- What can be wrong with the command is found before anything is measured.
local function need(value, err)
  if not value then fh.cli.exit(fh.cli.FAILED, "gate_sweep: " .. err) end
  return value
end
local min_sq = opt.min_sq and fh.axis.integers("--min-sq", opt.min_sq, 0)
local environment = fh.gate.from_env { warn = true }
local traffic
if opt.traffic then
  local trace = need(fh.trace.read(opt.traffic, { skip_bad = opt.skip_bad }))
  traffic = { trace = trace, chunks = fh.trace.chunks(trace) }
end
local dev = need(fh.cli.device(opt.device))
local header = fh.run.header(dev)
local folder = need(fh.run.open_folder(opt.out, header))

local line = fh.progress()
local sweep, failure = fh.interrupt.during(function(pressed)
  return fh.sweep {
    preset = opt.preset, heads = opt.heads, s_q = opt.s_q or (dev.kind == "cpu" and "64:2048:*2" or "64:16384:*2"),
    paths = { "padded", "native", "auto", unpack(opt.provider) }, layout = opt.layout, seed = opt.seed,
    pattern = not opt.indices and opt.pattern or nil, indices = opt.indices,
    cold = opt.cold, max_seconds = opt.seconds, device = dev, run = header,
    out = folder .. "/gate_sweep.jsonl", interrupted = pressed,
    on_cell = function(i, n, cell)
      line:show(("%d of %d: s_q %d, %s, %s"):format(i, n, cell.s_q, cell.pattern, cell.layout))
    end,
  }
end)
line:clear()
need(sweep, failure)
if #sweep.records == 0 then fh.cli.exit(fh.cli.INTERRUPTED, "gate_sweep: interrupted before the first cell was done") end

local gate, gate_error = fh.gate.fit(sweep)
local report = fh.gate_report.make {
  title = "Gate sweep: " .. opt.preset, sweep = sweep, gate = gate, gate_error = gate_error, min_sq = min_sq,
  environment = environment, traffic = traffic,
}
print(report:text())
local whole, err = report:write(folder .. "/gate_sweep")
need(not sweep.write_error and whole, sweep.write_error or err)
print(("\nwritten: %s/gate_sweep.jsonl, .md%s"):format(folder, gate and ", .svg" or ""))
if sweep.interrupted then return fh.cli.INTERRUPTED end
return (gate and #sweep:failures().records == 0) and 0 or fh.cli.FAILED
