-- Does the memory layout matter? The same case in every layout, path by path.
-- Layouts: contiguous rows, the engine's 64-head buffer, odd strides, odd offsets.
--
--   ./fewhead run experiments/layouts.lua --s-q 512
--
-- Answer: none is recorded yet.
-- Ctrl-C keeps the cells that are done. Exit status 1 when a path fails parity, 130 after Ctrl-C.
local fh = require "fewhead"

local opt = fh.options {
  name = "layouts", usage = "fewhead run experiments/layouts.lua [options]",
  about = "The same case in every memory layout, path by path.",
  options = {
    "provider", "preset", "device",
    { "s_q", default = "256" }, { "layout", "LIST", default = table.concat(fh.layout.names, ",") }, "pattern",
    { "seconds", default = 20 }, "cold",
  },
}:read(arg)

local dev, err = fh.cli.device(opt.device)
if not dev then fh.cli.exit(fh.cli.FAILED, "layouts: " .. err) end
local line = fh.progress()
local sweep = fh.interrupt.during(function(pressed)
  return fh.sweep {
    device = dev, paths = { "padded", "native", unpack(opt.provider) },
    preset = opt.preset, s_q = opt.s_q, layout = opt.layout, pattern = opt.pattern, max_seconds = opt.seconds,
    cold = opt.cold, interrupted = pressed,
    on_cell = function(i, n, cell) line:step(("%s, s_q %s"):format(cell.layout, tostring(cell.s_q)), i, n) end,
    on_record = function(record)
      if record.parity.status ~= "pass" then line:failed() end
    end,
  }
end)
line:clear()
if #sweep.records == 0 then fh.cli.exit(fh.cli.INTERRUPTED, "layouts: interrupted before the first cell was done") end
print(("%s, %s, %s caches"):format(opt.preset, sweep.run.device, opt.cold and "cold" or "hot"))
print(sweep)
if sweep.interrupted then
  print(("interrupted: %d of %d cells measured"):format(sweep.cells, sweep.planned))
  return fh.cli.INTERRUPTED
end
return #sweep:failures().records == 0 and 0 or fh.cli.FAILED
