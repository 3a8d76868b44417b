--- Experiment: what every script that measures has: a device, a run with a folder of its own (fewhead.record.store), a progress
-- line, Ctrl-C as a question, a report and an exit status.
--
--     local e = experiment.open("peers", opt)                   -- opt.device, opt.out, opt.tags; ends the script if one is wrong
--     e:during(function(pressed) ... e:add(records) ... end)    -- records are on the disk at once
--     return e:finish { title = "Peers on an H200", text = text, markdown = text }
local cli = require "fewhead.cli.exit"
local device = require "fewhead.device.device"
local file = require "fewhead.record.file"
local interrupt = require "fewhead.cli.interrupt"
local options = require "fewhead.cli.options"
local posix = require "fewhead.base.posix"
local progress = require "fewhead.cli.progress"
local records = require "fewhead.record.record"
local run = require "fewhead.record.run"
local shell = require "fewhead.base.shell"
local store = require "fewhead.record.store"
local tags = require "fewhead.record.tags"

local M = {}

local Experiment = { __name = "experiment" }
Experiment.__index = Experiment

--- value, or the end of the script: one line "NAME: err" and status 1.
function M.need(name, value, err)
  if not value then cli.with(cli.FAILED, ("%s: %s"):format(name, err)) end
  return value
end

--- Open what a script needs, or end it with the reason. opt: the script's options: device (default: the default device); out, a
-- folder of runs or results/DEVICE (nil: nothing is written); name, what the run is called there (default: `name`); tags. o:
-- evidence, what the run's files are called in results/DEVICE (default: name); unit, what is measured one after the other
-- ("cell"); total, how many; resume, true to go on with the newest run of the experiment. Returns { name, opt, device, on_cpu,
-- run = header of fh.run, line = the progress line, records = those added, failed = how many things went wrong, which the script
-- may raise, interrupted, folder = the run's, made with the first record }.
function M.open(name, opt, o)
  o = o or {}
  local dev = M.need(name, options.open_device(opt.device or device.default_name()))
  local self = setmetatable({
    name = name, opt = opt, device = dev, on_cpu = dev.kind == "cpu", run = tags.into(run.header(dev), opt.tags), records = {},
    failed = 0, interrupted = false, unit = o.unit or "cell", called = opt.name or o.evidence or name, resume = o.resume,
    line = progress.new { total = o.total, noun = o.unit and o.unit .. "s" },
  }, Experiment)
  if opt.out then
    local out = run.folder(opt.out, self.run)
    self:need(store.writable(out))
    self.runs, self.evidence = store.place(out)
  end
  return self
end

--- value, or the end of the script with the reason.
function Experiment:need(value, err) return M.need(self.name, value, err) end

--- Call f(pressed) as fh.interrupt does and return what it returns; .interrupted is true afterwards if Ctrl-C was pressed.
function Experiment:during(f)
  return interrupt.during(function(pressed)
    local function asked()
      self.interrupted = self.interrupted or pressed()
      return self.interrupted
    end
    local function finish(...)
      asked()
      return ...
    end
    return finish(f(asked))
  end)
end

-- Make the run's folder, once, or go on with the newest of this experiment. true | nil, err.
local function start(self)
  if self.store then return true end
  local header = self.run
  local head = { experiment = self.name, argv = header.argv, date = header.date, commit = header.commit }
  local before = self.resume and store.folder(self.runs, store.is_of(self.name))
  local made, err
  if before then made, err = store.reopen(before) else made, err = store.create(self.runs, self.opt.name or self.name, head) end
  if not made then return nil, err end
  self.store, self.folder = made, made.folder
  return true
end

-- Whether what a record says is a failure; a provider need not take every call.
local function is_wrong(record)
  local parity = record.parity
  if record.error then return true end
  return parity and parity.status ~= "pass" and not (parity.status == "invalid" and parity.refused and not records.is_own(record))
end

--- The run's folder, made now: for a script whose records another program writes. Ends the script where it cannot be made.
function Experiment:make_folder()
  self:need(start(self))
  return self.folder
end

--- Put these records in the place of all that the run has.
function Experiment:rewrite(list)
  self.records = list
  if not self.runs then return end
  local ok, err = start(self)
  if ok then ok, err = self.store:rewrite(list) end
  if not ok then self.write_error = err end
end

--- Take records: they are appended to the run's file at once, and those without a pass, or with an error, are counted, unless a
-- provider refused the call. After an error of the disk records are kept here alone, and finish() says so.
function Experiment:add(list)
  for _, record in ipairs(list) do
    self.records[#self.records + 1] = record
    if is_wrong(record) then
      self.failed = self.failed + 1
      self.line:failed()
    end
  end
  if not self.runs or self.write_error then return end
  local ok, err = start(self)
  if ok then ok, err = self.store:append(list) end
  if not ok then self.write_error = err end
end

--- Lines that say what made a report: the command, the commit, the device's driver and the date. header: that of the run.
function M.made_by(header)
  return {
    ("command: `%s`"):format(shell.line { "./fewhead", "run", arg[0], unpack(arg) }),
    ("commit %s%s%s, %s"):format(header.commit, header.dirty and " with changes" or "",
      header.driver ~= "" and ", driver " .. header.driver or "", header.date),
  }
end

-- A list as markdown.
local function list_of(lines) return #lines > 0 and "- " .. table.concat(lines, "\n- ") .. "\n\n" or "" end

--- Copy a run's files to the folder of evidence, where there is one, and say where what lies. whole: false for a run that was
-- interrupted, which is not copied. true | nil, err.
function M.publish(folder, evidence, name, whole)
  local own = posix.glob(folder, "/*")
  for i, path in ipairs(own) do own[i] = path:match("[^/]+$") end
  local lines = { ("written to %s: %s"):format(folder, table.concat(own, ", ")) }
  if evidence and whole then
    local names, err = store.publish(folder, evidence, name)
    if not names then return nil, err end
    lines[2] = ("copied to %s: %s"):format(evidence, table.concat(names, ", "))
  elseif evidence then
    lines[2] = ("not copied to %s: the run is not whole"):format(evidence)
  end
  print(table.concat(lines, "\n"))
  return true
end

-- Write report.md, end the run and copy its files. true | nil, err.
local function keep(self, report)
  local started, why = start(self)
  if not started then return nil, self.write_error or why end
  local text = report.page or ("# %s\n\n%s%s\n"):format(report.title, list_of(M.made_by(self.run)),
    (report.markdown:gsub("\n+$", "")))
  local ok, err = file.write(self.folder .. "/report.md", text)
  local state = self.interrupted and "interrupted" or report.partial and "partial" or "complete"
  local ended, reason = self.store:finish { state = state, records = #self.records }
  if not (ok and ended) or self.write_error then return nil, self.write_error or err or reason end
  ok, err = M.publish(self.folder, self.evidence, self.called, state == "complete")
  return ok, err
end

--- End the experiment: print the text, write the report, say where both lie. report: title; text, for the terminal, or nil where
-- all is printed; markdown, for report.md below the title and what made it, or page, all of report.md; partial, true where the
-- run is not whole. Returns the exit status: 0, 1 where something failed, 130 after Ctrl-C.
function Experiment:finish(report)
  self.line:clear()
  if self.interrupted and #self.records == 0 then
    cli.with(cli.INTERRUPTED, ("%s: interrupted before the first %s was done"):format(self.name, self.unit))
  end
  if report.text then print(report.text) end -- first: the disk may be full
  if self.runs then self:need(keep(self, report)) end
  if self.interrupted then return cli.INTERRUPTED end
  return self.failed == 0 and 0 or cli.FAILED
end

return M
