-- The worker process of a sweep, and what becomes of a cell that ends it.
local axis = require "fewhead.decide.axis"
local fh = require "fewhead"
local helper = require "spec.helper"
local plugin = require "spec.plugin"
local posix = require "fewhead.base.posix"
local worker = require "fewhead.measure.worker"

local folder = helper.folder()
plugin.example(folder) -- which toy is made of
local toy = plugin.toy(folder, "toy")
teardown(function() helper.shell("rm -rf " .. folder) end)

local count = 0
-- A sweep in a worker, on a CPU, of cases that take no time.
local function small(changes)
  count = count + 1
  local options = {
    s_q = "2,4", s_kv = 64, topk = 16, pattern = "uniform", paths = { "padded", "gather" }, seconds = 0, min_samples = 4,
    device = "cpu", worker = true, store = { out = folder .. count, name = "x" },
  }
  for key, value in pairs(changes or {}) do options[key] = value end
  return fh.sweep(options)
end

-- The workers that this process has, in words of their numbers.
local function workers() return (helper.shell(("pgrep -x luajit -P %d"):format(posix.pid()))) .. "\n" end

local others = workers() -- which specs before this one have not given back yet

-- The process number of the worker that this process started.
local function worker_pid()
  for pid in workers():gmatch("%d+") do
    if not ("\n" .. others):find("\n" .. pid .. "\n", 1, true) then return tonumber(pid) end
  end
end

describe("a sweep in a worker process", function()
  it("gives the records that one in this process gives, but for times", function()
    local there, here = assert(small()), assert(small { worker = false, device = helper.device() })
    assert.same({ "worker", "script" }, { there.run.process, here.run.process })
    assert.equal(4, #there.records)
    for i, record in ipairs(there.records) do
      assert.same(here.records[i].case, record.case)
      assert.same(here.records[i].parity, record.parity)
      assert.equal("worker", record.run.process)
    end
    assert.same({ 2, 2, 0, 0 }, { there.cells, there.measured, there.reused, #there.failed })
    assert.is_nil(worker_pid())
  end)

  it("opens no device here", function()
    local code = ([[
      local fh = require "fewhead"
      local opened = 0
      fh.device.open = function() opened = opened + 1 return nil, "no" end
      local s = assert(fh.sweep { s_q = 2, s_kv = 64, topk = 16, pattern = "uniform", paths = { "gather" }, seconds = 0,
        min_samples = 1, device = "cpu", worker = true, store = { out = %q, name = "x" } })
      print(#s.records, s.records[1].parity.status, opened)]]):format(folder .. "closed")
    assert.equal("1\tpass\t0", (helper.luajit(code)))
  end)

  it("records a cell that kills it, and goes on in a new one", function()
    local killed = false
    local sweep = assert(small { s_q = "2,128,8", heads = 64, s_kv = 4096, topk = 640, min_samples = 10, on_cell = function(i)
      if i == 2 then -- the worker has begun it, or will
        killed = true
        posix.kill(worker_pid(), 11)
      end
    end })
    assert.is_true(killed)
    local status = {}
    for i, record in ipairs(sweep.records) do status[i] = record.parity.status end
    assert.same({ "pass", "pass", "error", "error", "pass", "pass" }, status)
    local failed = sweep.records[3]
    assert.matches("^the worker process ended in [%l%- ]+: signal 11 %(Segmentation fault%)$", failed.parity.reason)
    assert.same({ 11, "signal 11 (Segmentation fault)" }, { failed.failure.code, failed.failure.text })
    assert.same({ "s_q 128, uniform" }, sweep.failed)
    assert.equal(3, sweep.cells)
    local again = assert(fh.sweep.read(sweep.folder))
    assert.equal(6, #again.records)
  end)

  it("begins the next cell while the records of the one before are taken", function()
    local class = worker.class
    local call, aheads, opened = class.call, {}, 0
    local open = worker.open
    function class:call(module, name, arguments, limits)
      if name == "race" then aheads[#aheads + 1] = limits.ahead and limits.ahead.arguments.case.s_q or 0 end
      return call(self, module, name, arguments, limits)
    end
    worker.open = function(...)
      opened = opened + 1
      return open(...)
    end
    local ok, err = pcall(function()
      local sweep = assert(small { s_q = "2,-1,4,400,800", max_bytes = 1000000 })
      local wanted = {}
      for _, record in ipairs(sweep.records) do
        wanted[#wanted + 1] = ("%d %s"):format(record.case.s_q, record.parity.status)
      end
      assert.same({ "2 pass", "2 pass", "-1 invalid", "-1 invalid", "4 pass", "4 pass", "400 invalid", "400 invalid",
        "800 invalid", "800 invalid" }, wanted)
    end)
    class.call, worker.open = call, open
    assert(ok, err)
    assert.same({ 4, 0 }, aheads) -- no cell that is not to be measured
    assert.equal(1, opened)
  end)

  it("says why a device or a path is refused", function()
    assert.same({ nil, 'name: got "abacus", wanted cpu, cuda or cuda:N' }, { small { device = "abacus" } })
    local _, err = small { paths = { "gahter" } }
    assert.matches('^sweep: paths%[1%]: got "gahter", wanted one of ', err)
  end)

  it("keeps what was measured when it is interrupted, and ends the worker", function()
    local asked, told = 0, 0
    local sweep = assert(small { s_q = "2,4,4096", heads = 64, s_kv = 4096, topk = 640, min_samples = 500, max_samples = 500,
      on_cell = function(i) asked = i end, on_interrupt = function() told = told + 1 end,
      interrupted = function() return asked == 3 end })
    assert.is_true(sweep.interrupted)
    assert.same({ 2, 2, 4 }, { sweep.cells, sweep.measured, #sweep.records })
    assert.equal("interrupted", fh.store.head(sweep.folder).state)
    assert.is_nil(worker_pid())
    assert.is_true(told <= 1)
  end)

  it("ends with its parent", function()
    local crew = assert(worker.open { device = "cpu", })
    local pid = worker_pid()
    assert.is_number(pid)
    crew:close()
    assert.is_nil(worker_pid())
    local file = helper.write(folder .. "orphan.lua", ([[
      local crew = assert(require("fewhead.measure.worker").open { device = "cpu", })
      io.open(%q, "w"):write(crew.process:get_pid()):close()
      require("ffi").C.kill(require("fewhead.base.posix").pid(), 9)]]):format(folder .. "pid"))
    helper.shell(("cd %s. && ./fewhead run %s"):format(helper.root, file))
    local orphan = helper.read(folder .. "pid")
    local wait = "(for i in 1 2 3 4 5 6 7 8 9 10; do grep -qs 'State:.[^Z]' /proc/%s/status || exit 0; sleep 0.2; done; exit 1)"
    local _, status = helper.shell(wait:format(orphan))
    assert.equal(0, status)
  end)

  it("says what to install where there is no luv", function()
    local out, status = helper.luajit([[
      package.preload.luv = function() error("none") end
      print(select(2, pcall(require("fewhead.measure.worker").open, { device = "cpu" })))]])
    assert.same({ 0, "fewhead: no Lua module luv, which runs the worker process: apt-get install lua-luv, or run make setup" },
      { status, out })
  end)
end)

describe("a sweep that is resumed", function()
  local function resumed(folder_of_run, changes)
    changes = changes or {}
    changes.store = { out = folder .. "r", name = "x", resume = folder_of_run }
    return assert(small(changes))
  end

  it("measures what is not there yet, in the same folder", function()
    local first = resumed(nil)
    local second = resumed(first.folder, { s_q = "4.0,2,8" })
    assert.same({ first.folder, 3, 1, 2 }, { second.folder, second.cells, second.measured, second.reused })
    assert.equal(6, #second.records)
    assert.equal(6, #assert(fh.sweep.read(second.folder)).records)
    assert.matches("^measured 1, reused 2\n", second:summary())
  end)

  it("of another setting, device or build is a new run", function()
    local first = resumed(nil)
    local reason
    local function told(plan) reason = plan.changed end
    local second = resumed(first.folder, { cold = true, on_plan = told })
    assert.not_equal(first.folder, second.folder)
    assert.same({ 2, 0 }, { second.measured, second.reused })
    assert.equal(first.folder .. " has settings: min_samples=4, here cold=true min_samples=4", reason)
    -- Another build: the library's bytes are others.
    local head = fh.store.head(first.folder)
    head.fingerprint.library = "0000000000000000"
    helper.write(first.folder .. "/run.json", fh.json.encode(head))
    second = resumed(first.folder, { on_plan = told })
    assert.same({ 2, 0 }, { second.measured, second.reused })
    assert.matches(" has library: 0000000000000000, here %x+$", reason)
  end)

  it("of other threads in the environment is a new run", function()
    local code = ([[
      local fh = require "fewhead"
      local s = assert(fh.sweep { s_q = 2, s_kv = 64, topk = 16, pattern = "uniform", paths = { "gather" }, seconds = 0,
        device = "cpu", worker = true, store = { out = %q, name = "x", resume = true } })
      print(s.measured, s.reused)]]):format(folder .. "threads")
    assert.equal("1\t0", (helper.luajit(code, { env = "FEWHEAD_THREADS=1" })))
    assert.equal("0\t1", (helper.luajit(code, { env = "FEWHEAD_THREADS=1" })))
    assert.equal("1\t0", (helper.luajit(code, { env = "FEWHEAD_THREADS=2" })))
    assert.equal("1\t0", (helper.luajit(code, { env = "FEWHEAD_THREADS=2 FEWHEAD_ISA=generic" })))
  end)

  it("names failed cells and measures them again only when asked to", function()
    local function run(folder_before, changes)
      for key, value in pairs { s_q = "2,128,-1", heads = 64, s_kv = 4096, topk = 640, min_samples = 10 } do
        changes[key] = changes[key] or value
      end
      return resumed(folder_before, changes)
    end
    local first = run(nil, { on_cell = function(i) if i == 2 then posix.kill(worker_pid(), 9) end end })
    assert.same({ "s_q 128, uniform" }, first.failed)
    local second = run(first.folder, {})
    assert.same({ 0, 3 }, { second.measured, second.reused })
    assert.same({ "s_q 128, uniform" }, second.failed)
    assert.matches("\n1 cells failed: s_q 128, uniform", second:summary(), 1, true)
    local third = run(first.folder, { retry_failed = true })
    assert.same({ 1, 2, 0 }, { third.measured, third.reused, #third.failed })
    assert.equal(6, #assert(fh.sweep.read(first.folder)).records)
  end)
end)

describe("a sweep with a bound", function()
  it("says before it starts what does not fit, and keeps to the bound", function()
    local clock = fh.ffi.C.fh_time_ns
    local start, unfit = clock(), nil
    local sweep = assert(small { s_q = "2,65536", s_kv = 8192, topk = 640, heads = 64, seconds = 20,
      on_plan = function(plan) unfit = plan.unfit end })
    assert.same({ "s_q 65536, uniform" }, unfit)
    assert.same({ "s_q 65536, uniform" }, sweep.unfit)
    assert.same({ 1, 2 }, { sweep.cells, #sweep.records })
    assert.is_true(tonumber(clock() - start) / 1e9 < 20)
    assert.matches("\n1 cells not measured, out of time: s_q 65536, uniform", sweep:summary(), 1, true)
    assert.equal("out of time", fh.store.head(sweep.folder).state)
  end)

  it("tells the worker ahead what each cell will have, so that one process runs them all", function()
    local class = worker.class
    local call, pids, told = class.call, {}, {}
    function class:call(module, name, arguments, limits)
      local answer = call(self, module, name, arguments, limits)
      if name == "race" then
        pids[#pids + 1] = self.process:get_pid()
        told[#told + 1] = arguments.how.max_seconds
        if limits.ahead then assert.is_true(limits.ahead.arguments.how.max_seconds > 0) end
      end
      return answer
    end
    local ok, err = pcall(function() assert.equal(5, assert(small { s_q = "2,4,8,16,32", seconds = 6 }).cells) end)
    class.call = call
    assert(ok, err)
    assert.equal(5, #pids)
    for i, pid in ipairs(pids) do
      assert.equal(pids[1], pid)
      assert.is_true(told[i] > 0 and told[i] < 6)
    end
  end)

  it("ends a call that goes on past it", function()
    local hangs = assert(fh.provider.load(toy, "slow", "hangs"))
    local clock = fh.ffi.C.fh_time_ns
    local start = clock()
    local sweep = assert(small { s_q = 2, paths = { "gather", hangs }, seconds = 3 })
    assert.is_true(tonumber(clock() - start) / 1e9 < 10) -- the plug-in itself would go on for ever
    assert.same({ 0, { "s_q 2, uniform" } }, { #sweep.records, sweep.unfit })
  end)

  it("refuses cells of too many bytes, by what they need", function()
    local sweep = assert(small { s_q = "2,400", max_bytes = 1000000 })
    assert.equal("pass", sweep.records[1].parity.status)
    assert.matches("^max_bytes: the cell needs about %d+ bytes, wanted at most 1000000$", sweep.records[3].parity.reason)
  end)
end)

describe("a sample within which the process was stopped", function()
  it("is dropped and counted", function()
    local timing = require "fewhead.measure.timing"
    local runs, stopped = 0, false
    local result = assert(timing.measure({ { name = "a", run = function()
      runs = runs + 1
      stopped = runs == 24 -- the warm-up runs 20 times
    end } }, { min_samples = 6, max_samples = 6, noise = false, stopped = function()
      local was = stopped
      stopped = false
      return was
    end }))
    assert.same({ 6, 1 }, { result.a.n, result.a.dropped })
  end)

  it("is known by the signal that lets the process go on", function()
    local token = posix.block(posix.SIGCONT)
    assert.is_false(posix.take(token))
    helper.shell(("(kill -STOP %d; sleep 0.2; kill -CONT %d) & sleep 0.5"):format(posix.pid(), posix.pid()))
    assert.is_true(posix.take(token))
    assert.is_false(posix.take(token))
    posix.unblock(token)
  end)
end)

describe("a dry run", function()
  it("shows cells, bytes, an estimate and what is refused, and measures nothing", function()
    local text = fh.sweep.dry_run { s_q = "2,2,-1", s_kv = 64, topk = 16, pattern = "uniform", device = "cpu", worker = true,
      axes = axis.grid { heads = "8" } }
    assert.matches("^uniform s_q=2 s_kv=64 h_q=8/64 [^\n]+: 0%.1 MiB, %d+%.%d s\n", text)
    assert.matches('\nheads=8 pattern="uniform" s_kv=64 s_q=%-1 topk=16: refused: case: s_q: got %-1, wanted a whole ', text)
    assert.matches("\n2 cells, 1 duplicates counted once, largest 0%.1 MiB, at least about %d+ s on [^\n]+$", text)
  end)
end)
