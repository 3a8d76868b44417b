-- What would an engine gain a chunk? One chunk through all attention layers of a model, path against path.
-- Index lists are shared as the model shares them, and times include the plans.
--
--   ./fewhead run experiments/layers.lua --device cuda:0                      V4.1-Flash at TP8, an 8192-row prompt
--   ./fewhead run experiments/layers.lua --device cuda:0 --prior 122880       the last 8192 rows of a 128k prompt
--   ./fewhead run experiments/layers.lua --preset "glm-5.2 tp8" --s-q 4       on a CPU
--
-- Answer on an H200, 8192 rows, local lists: V4.1-Flash 40.0 ms padded and 9.5 ms auto; GLM-5.2 late in a 128k prompt 286 and 80.
-- Ctrl-C keeps the tables that are done. Exit status 1 when a path fails parity, 130 after Ctrl-C.
local fh = require "fewhead"

local of = fh.layers.rows.by_key -- the options of fh.layers that this script has too
local opt = fh.options {
  name = "layers", about = "One chunk through a model's attention layers: ms a chunk on each path, and what plans have of it.",
  options = {
    fh.option.like(of.preset, { [2] = "LIST" }), of.s_q, fh.option.like(of.prior, { [2] = "AXIS" }),
    fh.option.like(of.pattern, { [2] = "LIST" }), of.keep, of.layout, of.seed,
    { "seconds", default = 5 }, "device", "out", "tags",
  },
}:read(arg)

local function need(value, err)
  if not value then fh.cli.exit(fh.cli.FAILED, "layers: " .. err) end
  return value
end

local dev = need(fh.cli.device(opt.device))
local run, texts, records, failed = fh.tags.into(fh.run.header(dev), opt.tags), {}, {}, false
local folder = opt.out and need(fh.run.open_folder(opt.out, run))
local priors = opt.prior and fh.axis.integers("--prior", opt.prior, 0) or { false }
local line = fh.progress { total = #opt.preset * #priors * #opt.pattern, noun = "tables" }
-- All tables, or those before Ctrl-C was pressed: true.
local interrupted = fh.interrupt.during(function(pressed)
  for _, preset in ipairs(opt.preset) do
    for _, prior in ipairs(priors) do
      for _, pattern in ipairs(opt.pattern) do
        line:step(("%s, %s lists%s"):format(preset, pattern, prior and ", prior " .. prior or ""))
        local result, err = fh.layers {
          preset = preset, s_q = opt.s_q, prior = prior or nil, pattern = pattern,
          keep = pattern == "local" and opt.keep or nil,
          layout = opt.layout, seed = opt.seed, device = dev, run = run, max_seconds = opt.seconds, interrupted = pressed,
        }
        line:clear()
        if not result and pressed() then return true end
        need(result, err)
        texts[#texts + 1] = tostring(result)
        print((#texts > 1 and "\n" or "") .. texts[#texts])
        for _, record in ipairs(result.records) do
          records[#records + 1] = record
          if record.parity.status ~= "pass" then
            failed = true
            line:failed()
          end
        end
        if pressed() then return true end
      end
    end
  end
end)
if interrupted then
  if #texts == 0 then fh.cli.exit(fh.cli.INTERRUPTED, "layers: interrupted before the first table was done") end
  texts[#texts + 1] = ("interrupted: %d tables"):format(#texts)
  print("\n" .. texts[#texts])
end
if folder then
  fh.bench.write(folder, run, "layers", "One chunk through all attention layers", records,
    "```\n" .. table.concat(texts, "\n\n") .. "\n```")
end
if interrupted then return fh.cli.INTERRUPTED end
return failed and fh.cli.FAILED or 0
