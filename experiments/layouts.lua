-- Does the memory layout matter? The same case in every layout, path by path: contiguous rows, the engine's 64-head buffer, odd
-- strides, odd offsets.
--
--   ./fewhead run experiments/layouts.lua --s-q 512
local fh = require "fewhead"

local opt = fh.cli.options {
  name = "layouts", usage = "fewhead run experiments/layouts.lua [options]",
  about = "The same case in every memory layout, path by path.",
  options = {
    fh.provider.option,
    { "--preset", "NAME", "model and TP size", default = fh.preset.default, choices = fh.preset.names() },
    { "--s-q", "AXIS", "rows of a chunk", default = "256", lo = 1 },
    { "--layout", "LIST", "memory layouts", default = table.concat(fh.layout.names, ","), choices = fh.layout.names },
    { "--pattern", "NAME", "index pattern", default = "csa", choices = fh.pattern.drawn },
    { "--seconds", "NUMBER", "time to spend on timing", default = 20, lo = 0 },
    { "--cold", nil, "find caches cold in every run" },
  },
}:read(arg)

local sweep = fh.sweep {
  paths = { "padded", "native", unpack(opt.provider) },
  preset = opt.preset, s_q = opt.s_q, layout = opt.layout, pattern = opt.pattern, max_seconds = opt.seconds, cold = opt.cold,
}
print(("%s, %s, %s caches"):format(opt.preset, sweep.run.device, opt.cold and "cold" or "hot"))
print(sweep)
return #sweep:failures().records == 0 and 0 or fh.cli.FAILED
