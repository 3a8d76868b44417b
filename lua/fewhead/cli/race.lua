--- Race: FlashMLA and FlashAttention 3 where they are found, the library's paths and plug-ins on the same cases and memory:
-- parity before time.
--
--     local r = race.open("peers", opt)                                  -- says who takes part
--     r:run { { preset = "v4.1-flash tp8", s_q = 64, pattern = "csa" } }
--     r:hold_published { 64, 2048 }
--     return r:finish "Peers"                                            -- prints and writes; the exit status
local case_of = require "fewhead.case.case"
local compare = require "fewhead.measure.compare"
local entrants = require "fewhead.measure.entrants"
local experiment = require "fewhead.cli.experiment"
local grid = require "fewhead.measure.grid"
local preset = require "fewhead.case.preset"
local providers = require "fewhead.device.provider"
local race_report = require "fewhead.report.race_report"
local records = require "fewhead.record.record"

local M = {}

-- Samples of a path before the time of a cell is up.
local MIN_SAMPLES = 6
-- What the oracle computes of a published case, about half a second on two cores; beyond it rows are sampled.
local REFERENCE_FLOPS = 1e9

local Race = { __name = "race" }
Race.__index = Race

--- Open a race and print who takes part. opt: the script's options: those of fewhead.cli.experiment; preset, a list; heads;
-- provider, a list of plug-ins; flashmla_padding, "timed" or "untimed"; samples and seconds of a cell. Ends the script where one
-- is wrong.
function M.open(name, opt)
  local self = setmetatable({ experiment = experiment.open(name, opt), opt = opt, raced = {}, held = {}, notes = {} }, Race)
  self.padding = opt.flashmla_padding == "timed" and "timed" or nil
  local heads = opt.heads or 0
  for _, model in ipairs(opt.heads and {} or opt.preset) do heads = math.max(heads, preset.get(model).h_q) end
  self.field = entrants.of(self.experiment.device, {
    heads = heads, providers = opt.provider, padding = self.padding,
  })
  self.on_cpu = self.experiment.on_cpu
  print(table.concat(self.field.lines, "\n"))
  return self
end

-- Takes a record: the reason of what did not pass is noted once.
local function take(self, list, record)
  local parity = record.parity
  list[#list + 1] = record
  if parity.status == "pass" then return end
  local line = ("%s: %s"):format(record.path, parity.reason)
  if not self.notes[line] then self.notes[#self.notes + 1], self.notes[line] = line, true end
end

-- One cell; its records are dropped where Ctrl-C was pressed within it.
local function run_cell(self, options)
  local e, opt = self.experiment, self.opt
  local case = e:need(case_of(options))
  e:during(function(pressed)
    local comparison, err = compare(case, self.field.list, {
      device = e.device, run = e.run, interrupted = pressed, three_way = true,
      min_samples = MIN_SAMPLES, max_samples = opt.samples, max_seconds = opt.seconds, rel_ci = 0,
    })
    if pressed() then return end
    e:need(comparison, err)
    local base = comparison.records[1]
    for _, record in ipairs(comparison.records) do
      local three = record.three_way
      if three and three.verdict ~= "agree" and base.parity.status == "pass" then e.failed = e.failed + 1 end
      take(self, self.raced, record)
    end
    e:add(comparison.records)
  end)
  case:free()
end

--- Race on cells, a list of options of fh.case, until Ctrl-C.
function Race:run(cells)
  local e = self.experiment
  e.line.total = #cells
  for _, options in ipairs(cells) do
    e.line:step(("%s, %s, s_q %s"):format(options.preset, options.indices or options.pattern, options.s_q or "all"))
    run_cell(self, options)
    if e.interrupted then return end
  end
end

-- Paths against an answer; the check includes that nothing outside the real heads' results was written.
local function hold(self, case, against, list)
  local e, found = self.experiment, {}
  local published = against ~= "reference" and grid.published_errors or nil
  for i, result in ipairs(grid.check(case, list, { device = e.device, against = against, flops = REFERENCE_FLOPS })) do
    found[i] = records.new {
      path = list[i], case = case:describe(), parity = result, work = result.work, run = e.run, more = { published = published },
    }
    take(self, self.held, found[i])
  end
  e:add(found)
end

--- Compare native heads with padded ones as the published few-head kernel was, beside its figures: at each s_q of the list.
function Race:hold_published(sizes)
  local e, field = self.experiment, self.field
  for _, s_q in ipairs(sizes) do
    if e.interrupted then return end
    e.line:show(("published tests: s_q %d"):format(s_q))
    local case = grid.published(s_q)
    if field.flashmla then hold(self, case, field.flashmla, field.native) end
    hold(self, case, "padded", field.native)
    hold(self, case, "reference", field.checked)
  end
end

--- Print and write what was found. title: its first words; the device, preset and heads follow. Returns the exit status: 1 when
-- something was wrong or failed.
function Race:finish(title)
  local e, opt, notes = self.experiment, self.opt, self.notes
  if e.interrupted then notes[#notes + 1] = ("interrupted: %d records"):format(#e.records) end
  local report = race_report.make {
    title = ("%s on %s: %s%s"):format(title, e.run.device, table.concat(opt.preset, ", "),
      opt.heads and (", %d heads"):format(opt.heads) or ""),
    base = providers.name_of(self.field.base), records = self.raced, held = self.held, lines = self.field.lines, notes = notes,
    padding = self.padding ~= nil,
  }
  return e:finish { title = report.title, text = "\n" .. report:text(), markdown = report:markdown() }
end

return M
