local experiment = require "fewhead.cli.experiment"
local exit = require "fewhead.cli.exit"
local helper = require "spec.helper"
local json = require "fewhead.base.json"
local posix = require "fewhead.base.posix"

local folder, arg_before
before_each(function()
  folder, arg_before = helper.folder(), _G.arg
  _G.arg = { [0] = "x.lua", "--out", "here" }
end)
after_each(function()
  _G.arg = arg_before
  helper.shell("rm -rf " .. folder)
end)

local function record(status, provider, refused)
  return {
    path = provider or "padded", provider = provider or "fewhead", case = { s_q = 4 },
    parity = { status = status, refused = refused, reason = "r" },
  }
end

local REPORT = { title = "X on a box", markdown = "text" }

-- What a call prints, and what it returns.
local function printed(f)
  local lines, real = {}, print
  _G.print = function(...) lines[#lines + 1] = table.concat({ ... }, "\t") end
  local ok, value = pcall(f)
  _G.print = real
  assert(ok, value)
  return table.concat(lines, "\n"), value
end

-- The status and the message that a call ends the script with.
local function ended(f)
  local ok, err = pcall(f)
  assert.is_false(ok)
  return err.status, tostring(err)
end

describe("experiment", function()
  it("gives a run a folder of its own, its records at once, and a report with the command", function()
    local e = experiment.open("x", { device = "cpu", out = folder .. "runs", tags = { night = "2" } })
    assert.same({ "x", true, "2" }, { e.name, e.on_cpu, e.run.tags.night })
    e:add { record "pass", record "pass" }
    local _, lines = helper.read(folder .. "runs/latest/records.jsonl"):gsub("\n", "")
    assert.equal(2, lines)
    assert.equal("running", json.decode(helper.read(folder .. "runs/latest/run.json")).state)
    local text, status = printed(function() return e:finish { title = "X on a box", text = "table", markdown = "page\n\n" } end)
    assert.equal(0, status)
    assert.equal(("table\nwritten to %s: records.jsonl, report.md, run.json"):format(e.folder), text)
    assert.matches("^" .. folder:gsub("%p", "%%%0") .. "runs/%d+T%d+Z%-x$", e.folder)
    local head = json.decode(helper.read(folder .. "runs/latest/run.json"))
    assert.same({ "complete", 2, { "--out", "here" } }, { head.state, head.records, head.argv })
    assert.matches("^# X on a box\n\n%- command: `%./fewhead run x%.lua %-%-out here`\n%- commit %x+[^\n]*, %d+%-%d+%-%d+T[^\n]*"
      .. "\n\npage\n$", helper.read(folder .. "runs/latest/report.md"))
  end)

  it("never takes the place of an earlier run", function()
    for i = 1, 2 do
      local e = experiment.open("x", { device = "cpu", out = folder .. "runs" })
      for _ = 1, i do e:add { record "pass" } end
      printed(function() e:finish(REPORT) end)
    end
    assert.equal("1\n2", (helper.shell(("cd %sruns && for run in *-x*; do wc -l <$run/records.jsonl; done"):format(folder))))
  end)

  it("copies a whole run to the evidence of results/DEVICE, under the name that was given", function()
    local e = experiment.open("bench_x", { device = "cpu", out = folder .. "results/DEVICE" }, { evidence = "x" })
    e:add { record "pass" }
    local text = printed(function() e:finish(REPORT) end)
    local device = e.run.device:lower():gsub("[^%w]+", "-")
    assert.matches("/results/local/%d+T%d+Z%-bench_x$", e.folder)
    assert.equal(("written to %s: records.jsonl, report.md, run.json\ncopied to %sresults/%s: x.jsonl, x.md"):format(e.folder,
      folder, device), text)
    assert.equal(helper.read(e.folder .. "/records.jsonl"), helper.read(("%sresults/%s/x.jsonl"):format(folder, device)))
  end)

  it("takes another name for a run and its evidence", function()
    local e = experiment.open("bench_x", { device = "cpu", out = folder .. "results/box", name = "second" }, { evidence = "x" })
    e:add { record "pass" }
    printed(function() e:finish(REPORT) end)
    assert.matches("%-second$", e.folder)
    assert.equal("second.jsonl\nsecond.md", (helper.shell("ls " .. folder .. "results/box")))
    assert.equal("bench_x", json.decode(helper.read(e.folder .. "/run.json")).experiment)
  end)

  it("keeps what was measured on Ctrl-C and leaves the evidence as it was", function()
    local e = experiment.open("x", { device = "cpu", out = folder .. "results/box" })
    e:during(function(pressed)
      assert.is_false(pressed())
      e:add { record "pass" }
      posix.kill(posix.pid(), posix.SIGINT)
    end)
    assert.is_true(e.interrupted)
    local text, status = printed(function() return e:finish(REPORT) end)
    assert.equal(exit.INTERRUPTED, status)
    assert.matches("\nnot copied to [^\n]+/results/box: the run is not whole$", text)
    assert.equal("", (helper.shell("ls -A " .. folder .. "results/box")))
    assert.equal("interrupted", json.decode(helper.read(e.folder .. "/run.json")).state)
  end)

  it("says so where nothing was done before Ctrl-C", function()
    local e = experiment.open("x", { device = "cpu", out = folder .. "runs" }, { unit = "table" })
    e.interrupted = true
    assert.same({ exit.INTERRUPTED, "x: interrupted before the first table was done" },
      { ended(function() e:finish(REPORT) end) })
    assert.equal("", (helper.shell("ls " .. folder .. "runs"))) -- no run that has nothing
  end)

  it("counts what did not pass, but no call that a provider refused", function()
    local e = experiment.open("x", { device = "cpu" })
    e:add { record "pass", record "fail", record("invalid", nil, true), record("invalid", "mine", true) }
    assert.equal(2, e.failed)
    e:add { record("error", "mine"), record("invalid", "mine") }
    assert.equal(4, e.failed)
    e:add { { kind = "serving", error = "no row was routed" }, { kind = "serving" } }
    assert.equal(5, e.failed)
    local text, status = printed(function() return e:finish { title = "X", text = "table", markdown = "" } end)
    assert.same({ "table", exit.FAILED }, { text, status }) -- without --out nothing is written
  end)

  it("ends the script where the device or the folder is wrong", function()
    assert.same({ 1, 'x: --device: got "abacus", wanted cpu, cuda or cuda:N' },
      { ended(function() experiment.open("x", { device = "abacus" }) end) })
    helper.write(folder .. "file", "kept")
    local status, text = ended(function() experiment.open("x", { device = "cpu", out = folder .. "file" }) end)
    assert.same({ 1, ('x: --out: got "%sfile", wanted a folder to write to: Not a directory'):format(folder) }, { status, text })
    assert.equal("kept", helper.read(folder .. "file"))
  end)

  it("keeps records and says so where the disk is full", function()
    local e = experiment.open("x", { device = "cpu", out = folder .. "runs" })
    e:add { record "pass" }
    e.store.file:close()
    e.store.file = assert(io.open("/dev/full", "ab"))
    e.store.file:setvbuf "no"
    e:add { record "pass" }
    assert.equal(2, #e.records)
    local status, text
    printed(function() status, text = ended(function() e:finish(REPORT) end) end)
    assert.equal(1, status)
    assert.matches("records.jsonl: No space left on device; the file ends before it$", text)
    local _, lines = helper.read(e.folder .. "/records.jsonl"):gsub("\n", "")
    assert.equal(1, lines)
  end)
end)
