-- Does the memory layout matter? The same case in every layout, path by path.
-- Layouts: contiguous rows, the engine's 64-head buffer, odd strides, odd offsets.
--
--   ./fewhead run experiments/layouts.lua --s-q 512
--
-- Answer: none is recorded yet.
-- Ctrl-C keeps the cells that are done. Exit status 1 when a path fails parity, 130 after Ctrl-C.
local fh = require "fewhead"

local opt = fh.options {
  name = "layouts", about = "The same case in every memory layout, path by path.",
  options = {
    "provider", "preset", "device",
    { "s_q", default = "256" }, { "layout", "LIST", default = table.concat(fh.layout.names, ",") }, "pattern",
    { "seconds", default = 20 }, "cold", "out", "name", "tags",
  },
}:read(arg)

local e = fh.experiment.open("layouts", opt)
local sweep = e:during(function(pressed)
  return fh.sweep {
    device = e.device, run = e.run, paths = { "padded", "native", unpack(opt.provider) },
    preset = opt.preset, s_q = opt.s_q, layout = opt.layout, pattern = opt.pattern, max_seconds = opt.seconds,
    cold = opt.cold, interrupted = pressed,
    on_cell = function(i, n, cell) e.line:step(("%s, s_q %s"):format(cell.layout, tostring(cell.s_q)), i, n) end,
    on_record = function(record) e:add { record } end,
  }
end)
local text = ("%s, %s, %s caches\n%s"):format(opt.preset, e.run.device, opt.cold and "cold" or "hot", tostring(sweep))
if e.interrupted then text = ("%s\ninterrupted: %d of %d cells measured"):format(text, sweep.cells, sweep.planned) end
return e:finish { title = "Layouts on " .. e.run.device, text = text, markdown = "```\n" .. text .. "\n```" }
