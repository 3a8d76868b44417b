-- What would an engine gain a chunk? One chunk through all attention layers of a model, path against path.
-- Index lists are shared as the model shares them, and times include the plans.
--
--   ./fewhead run experiments/layers.lua --device cuda:0                      V4.1-Flash at TP8, an 8192-row prompt
--   ./fewhead run experiments/layers.lua --device cuda:0 --prior 122880       the last 8192 rows of a 128k prompt
--   ./fewhead run experiments/layers.lua --preset "glm-5.2 tp8" --s-q 4       on a CPU
--
-- Answer on an H200, 8192 rows, local lists: V4.1-Flash 39.5 ms padded and 9.3 ms auto; GLM-5.2 late in a 128k prompt 280 and 79.
-- Ctrl-C keeps the tables that are done. Exit status 1 when a path fails parity, 130 after Ctrl-C.
local fh = require "fewhead"

local of = fh.layers.rows.by_key -- the options of fh.layers that this script has too
local opt = fh.options {
  name = "layers", about = "One chunk through a model's attention layers: ms a chunk on each path, and what plans have of it.",
  options = {
    fh.option.like(of.preset, { [2] = "LIST" }), of.s_q, fh.option.like(of.prior, { [2] = "AXIS" }),
    fh.option.like(of.pattern, { [2] = "LIST" }), of.keep, of.layout, of.seed,
    { "seconds", default = 5 }, "device", "out", "name", "tags",
  },
}:read(arg)

local priors = opt.prior and fh.axis.integers("--prior", opt.prior, 0) or { false }
local e = fh.experiment.open("layers", opt, { unit = "table", total = #opt.preset * #priors * #opt.pattern })
local texts = {}

local function measure(preset, prior, pattern, pressed)
  e.line:step(("%s, %s lists%s"):format(preset, pattern, prior and ", prior " .. prior or ""))
  local result, err = fh.layers {
    preset = preset, s_q = opt.s_q, prior = prior or nil, pattern = pattern, keep = pattern == "local" and opt.keep or nil,
    layout = opt.layout, seed = opt.seed, device = e.device, run = e.run, max_seconds = opt.seconds, interrupted = pressed,
  }
  e.line:clear()
  if not result and pressed() then return end
  e:need(result, err)
  texts[#texts + 1] = tostring(result)
  print((#texts > 1 and "\n" or "") .. texts[#texts])
  e:add(result.records)
end

e:during(function(pressed)
  for _, preset in ipairs(opt.preset) do
    for _, prior in ipairs(priors) do
      for _, pattern in ipairs(opt.pattern) do
        if not pressed() then measure(preset, prior, pattern, pressed) end
      end
    end
  end
end)
if e.interrupted and #texts > 0 then
  texts[#texts + 1] = ("interrupted: %d tables"):format(#texts)
  print("\n" .. texts[#texts])
end
return e:finish {
  title = "One chunk through all attention layers on " .. e.run.device,
  markdown = "```\n" .. table.concat(texts, "\n\n") .. "\n```",
}
