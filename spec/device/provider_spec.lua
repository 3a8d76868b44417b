-- Plug-ins: built here with the compiler at hand, loaded, raced, and caught where they are wrong.
local case = require "fewhead.case.case"
local compare = require "fewhead.measure.compare"
local device = require "fewhead.device.device"
local grid = require "fewhead.measure.grid"
local json = require "fewhead.base.json"
local parity = require "fewhead.measure.parity"
local provider = require "fewhead.device.provider"
local sweep = require "fewhead.decide.sweep"
local timing = require "fewhead.measure.timing"
local F = require "fewhead.base.ffi"
local helper = require "spec.helper"
local plugin = require "spec.plugin"

local refusal = helper.refusal

local dev = assert(device.open("cpu")) -- the plug-ins here are for a CPU
local folder = helper.folder()
local loops, toy = plugin.example(folder), plugin.toy(folder, "toy")

local SMALL = { heads = 8, s_q = 6, pattern = "csa", window = 16, index_topk = 24, prior = 100, layout = "vllm", seed = 3 }

local function small(more)
  local options = {}
  for key, value in pairs(SMALL) do options[key] = value end
  for key, value in pairs(more or {}) do options[key] = value end
  return case(options)
end

-- The toy with a manner.
local function mannered(manner, name) return assert(provider.load(toy, name or "toy", manner)) end

-- A comparison that takes no longer than it must.
local function compared(paths, more)
  local options = { device = dev, min_samples = 4, max_samples = 4 }
  for key, value in pairs(more or {}) do options[key] = value end
  return assert(compare(small(), paths, options))
end

teardown(function() helper.shell("rm -rf " .. folder) end)

describe("the example in fewhead_provider.h", function()
  it("is a whole plug-in: it builds without a warning, as C11 and in a C++ compiler's eyes", function()
    assert.equal("#include <fewhead_provider.h>\n", plugin.source():match("^[^\n]*\n"))
    if helper.shell("command -v c++") == "" then return end
    local output, status = helper.shell(("c++ -std=c++20 -Wall -Wno-missing-field-initializers -Werror -fsyntax-only -x c++ "
      .. "-I%slib/include %sloops.c"):format(helper.root, folder))
    assert.same({ "", 0 }, { output, status })
  end)

  it("says who it is", function()
    local p = assert(provider.load(loops))
    assert.same({ "loops", "1.0", "", "1.0", true, nil }, { p.name, p.version, p.description, p.text, p.kinds.cpu, p.kinds.cuda })
    assert.equal("loops 1.0", tostring(p))
    assert.equal("mine", assert(provider.load(loops, "mine")).name)
  end)

  it("passes where the library's paths do: layouts, sinks, holes, repeats, rows without keys, nothing at all", function()
    local p, cases = assert(provider.load(loops)), {}
    for i, entry in ipairs(grid.own()) do
      local few = not entry.paths and entry.case.s_q * entry.case.h_q * entry.case.topk < 30000
      if few and (i % 7 == 0 or entry.group == "own/empty") then cases[#cases + 1] = entry end
    end
    local totals = grid.run { device = dev, cases = cases, paths = {}, providers = { p } }
    assert.same({ #cases, 0, 0, 0 }, { totals.passed, totals.failed, totals.invalid, totals.refused })
    assert.is_true(#cases > 30)
  end)
end)

describe("fewhead_provider.h", function()
  it("is read by LuaJIT after fewhead.h", function()
    local output = helper.luajit(([[
      local ffi = require("fewhead.base.ffi").ffi
      local text = io.open(%q):read("*a"):match("\n/%%* cdef:begin %%*/\n(.-\n)/%%* cdef:end %%*/\n")
      ffi.cdef(text)
      print(ffi.C.FH_PROVIDER_ABI, ffi.sizeof("fh_provider_table"))]]):format(helper.root .. "lib/include/fewhead_provider.h"))
    assert.equal("2\t112", output)
  end)
end)

describe("provider.load", function()
  -- What a file is refused with.
  local function refused(path, options)
    local p, err = provider.load(path, nil, options)
    assert.is_nil(p)
    return err
  end

  it("quotes the system's loader for what does not load", function()
    local missing = folder .. "a.so"
    assert.equal(('path: got "%s", wanted a shared library that loads (%s: cannot open shared object file: No such file or '
      .. 'directory)'):format(missing, missing), refused(missing))
    helper.write(folder .. "text.so", "no library, however long this text is made, and it is made longer than an ELF header\n")
    assert.equal(('path: got "%s", wanted a shared library that loads (%s: invalid ELF header)'):format(folder .. "text.so",
      folder .. "text.so"), refused(folder .. "text.so"))
    assert.equal(('path: got "%s", wanted a shared library that loads (%s: undefined symbol: not_there)'):format(
      folder .. "needy.so", folder .. "needy.so"),
      refused(plugin.library(folder, "needy", "void not_there(void);\nvoid f(void);\nvoid f(void) { not_there(); }")))
  end)

  it("does not hand the loader a file that was cut off, which would end the process", function()
    local whole = helper.read(toy)
    helper.write(folder .. "cut.so", whole:sub(1, 3000))
    local err = refused(folder .. "cut.so")
    local size = err:match("%((.-): cut off, with 3000 of (%d+) bytes%)$") and tonumber(err:match("of (%d+) bytes"))
    assert.is_true(size > 3000 and size <= #whole, err)
    helper.write(folder .. "trimmed.so", whole:sub(1, size)) -- without sections, which no loader reads
    assert.equal("toy 0.3 (as asked)", tostring(assert(provider.load(folder .. "trimmed.so", nil, "good"))))
  end)

  it("looks for a name without a slash in the current folder alone", function()
    assert.equal('path: got "libm.so.6", wanted a shared library that loads (./libm.so.6: cannot open shared object file: No '
      .. 'such file or directory)', refused("libm.so.6"))
    assert.equal("loops 1.0", helper.luajit("print(require('fewhead').provider.load('loops.so'))",
      { cd = folder, lua = helper.shell(("cd %slua && pwd"):format(helper.root)) }))
  end)

  it("wants a plug-in", function()
    local path = plugin.library(folder, "other", "int answer(void);\nint answer(void) { return 42; }")
    assert.equal(('path: got "%s", wanted a plug-in: it exports no fewhead_provider'):format(path), refused(path))
  end)

  it("wants one of its own ABI, with structs that fit", function()
    local head = '.name = "toy", .version = "0.3", .run = toy_run, '
    local bytes, least = F.ffi.sizeof, F.ffi.offsetof
    local call, info = bytes("fh_call"), bytes("fh_device_info")
    for i, wrong in ipairs {
      { "FH_PROVIDER_HEAD, .abi = 7", "abi: got 7, wanted 2" },
      { "FH_PROVIDER_HEAD, .struct_size = 16", "struct_size: got 16, wanted 88 .. 112" },
      { "FH_PROVIDER_HEAD, .struct_size = 4096", "struct_size: got 4096, wanted 88 .. 112" },
      { "FH_PROVIDER_HEAD, .call_bytes = sizeof(fh_call) + 8",
        ("call_bytes: got %d, wanted %d .. %d"):format(call + 8, least("fh_call", "stream"), call) },
      { "FH_PROVIDER_HEAD, .info_bytes = 8",
        ("info_bytes: got 8, wanted %d .. %d"):format(least("fh_device_info", "threads"), info) },
    } do
      local path = plugin.toy(folder, "version" .. i, head .. wrong[1])
      assert.equal(('plug-in "%s": %s; build it with this library\'s header'):format(path, wrong[2]), refused(path))
    end
  end)

  it("takes a table that is shorter, of an older header of the same ABI", function()
    local path = plugin.toy(folder, "older",
      'FH_PROVIDER_HEAD, .struct_size = offsetof(fh_provider_table, collect), .name = "older", .version = "0", .run = toy_run')
    local p = assert(provider.load(path, nil, "elsewhere")) -- its collect, which brings the results, is not in the table
    assert.equal("fail", compared { p }.records[1].parity.status)
    assert.equal("pass", compared { assert(provider.load(path, nil, "good")) }.records[1].parity.status)
  end)

  it("wants all that a table must have", function()
    local must = "1 .. 31 letters, digits, '.', '_', '-', the first one a letter"
    for i, wrong in ipairs {
      { '.version = "0.3", .run = toy_run', "name: wanted " .. must },
      { '.name = "", .version = "0.3", .run = toy_run', "name: wanted " .. must },
      { '.name = "my kernel", .version = "0.3", .run = toy_run', "name: wanted " .. must },
      { '.name = "' .. ("k"):rep(32) .. '", .version = "0.3", .run = toy_run', "name: wanted " .. must },
      { '.name = "toy", .run = toy_run', "version: wanted a text" },
      { '.name = "toy", .version = "0.3"', "run: got NULL, wanted a function" },
      { '.devices = 1, .name = "toy", .version = "0.3", .run = toy_run',
        "devices: got 1, wanted FH_PROVIDER_CPU, FH_PROVIDER_CUDA or both" },
    } do
      local path = plugin.toy(folder, "table" .. i, "FH_PROVIDER_HEAD, " .. wrong[1])
      assert.equal(('plug-in "%s": %s'):format(path, wrong[2]), refused(path))
    end
  end)

  it("gives a plug-in its options and the reason why it does not open, on one line", function()
    assert.equal("toy: no licence for this machine", refused(toy, "shut"))
    local p = assert(provider.load(toy, nil, "good"))
    assert.same({ "toy", "0.3", "as asked", "0.3 (as asked)" }, { p.name, p.version, p.description, p.text })
    assert.equal("0.3", assert(provider.load(toy, nil, "quiet")).text)
  end)

  it("refuses names that mean something else, on the caller's line", function()
    local wanted = ", wanted a name of letters, digits, '.', '_', '-', a letter first, that is no path's"
    for _, name in ipairs { "padded", "native", "noise", "fewhead", "", "2nd", "a b" } do
      assert.equal(('provider.load: name: got "%s"'):format(name) .. wanted,
        refusal(function() local p = provider.load(loops, name) return p end))
    end
    assert.equal("provider.load: path: got nil, wanted a string", refusal(function() local p = provider.load() return p end))
    local path = plugin.toy(folder, "gather", 'FH_PROVIDER_HEAD, .name = "gather", .version = "0", .run = toy_run')
    assert.equal(("provider: %s calls itself gather: give it another name"):format(path), refused(path))
    assert.equal("mine", assert(provider.load(path, "mine")).name)
  end)

  it("opens once a load and closes when the provider and its last job have gone", function()
    local log = folder .. "log"
    local p = mannered("good " .. log)
    local problem = assert(small():problem(dev))
    local run, release = assert(problem:runner(p, assert(problem:outputs())))
    p:free()
    p:free()
    assert.equal(0, run())
    assert.equal("open\nprepare\nrun\n", helper.read(log))
    release()
    release()
    assert.equal("open\nprepare\nrun\nrelease\nclose\n", helper.read(log))
    assert.equal("problem:run: path: provider toy: used after free()",
      refusal(function() local work = problem:run(p, assert(problem:outputs())) return work end))
    assert.not_equal(0, run()) -- and does not crash
  end)

  it("lets the collector do the same", function()
    local log = folder .. "collected"
    local p = mannered("good " .. log)
    local problem = assert(small():problem(dev))
    local kept = { (assert(problem:runner(p, assert(problem:outputs())))) }
    p = nil
    collectgarbage() collectgarbage()
    assert.equal("open\nprepare\n", helper.read(log)) -- a runner keeps what it needs
    kept[1] = nil
    collectgarbage() collectgarbage()
    assert.equal("open\nprepare\nrelease\nclose\n", helper.read(log))
    assert.same({}, { p, unpack(kept) })
  end)
end)

describe("a provider", function()
  it("is raced: parity, times, a verdict, and a record that names it", function()
    local c = compared({ "padded", "gather", assert(provider.load(loops)), mannered("good") })
    local providers, names = {}, {}
    for i, record in ipairs(c.records) do
      assert.equal("pass", record.parity.status, record.parity.reason)
      assert.is_true(record.time.median_us > 0)
      providers[i], names[i] = record.provider .. " " .. record.provider_version, record.path
    end
    assert.same({ "padded", "gather", "loops", "toy" }, names)
    assert.same({ "fewhead 0.2.0", "fewhead 0.2.0", "loops 1.0", "toy 0.3 (as asked)" }, providers)
    local r = json.decode(json.encode(c:record("loops")))
    assert.equal("padded", r.verdict.against)
    local useful = 2 * 8 * (512 + 512) * assert(small():problem(dev)).valid_keys
    assert.same({ path = "loops", rows = 6, useful_flops = useful }, r.work) -- it does not say what it executes
    assert.equal(2 * 64 * 1024 * 6 * 40, c:record("toy").work.executed_flops)
    assert.near(1 - useful / (2 * 64 * 1024 * 6 * 40), c:record("toy").work.waste, 1e-12)
    assert.matches("\nloops +pass +%d%.%d%de%-%d%d +%d.- %- +%- +%-\nhot, ", (tostring(c):gsub("\ntoy [^\n]*", "")))
  end)

  it("takes turns with paths in a sweep, has a column of its own, and can be read back", function()
    local file = folder .. "sweep.jsonl"
    local s = assert(sweep {
      s_q = "2,3", heads = 8, pattern = "window", window = 16, paths = { "padded", "native", assert(provider.load(loops)) },
      device = dev, out = file, min_samples = 4, max_samples = 4,
    })
    assert.equal(8, #s.records)
    assert.matches("^s_q +padded +gather +packed +loops +ratio ", s:table())
    local again = assert(sweep.read(file))
    assert.equal(s:table(), again:table())
    assert.equal(2, #again:filter({ path = "loops" }).records)
    assert.is_true(s.records[4].provider == "loops" and s:rows()[1].native ~= "loops")
  end)

  it("may be called as a column or a field of a record is", function()
    for _, name in ipairs { "ratio", "s_q", "list" } do
      local s = assert(sweep {
        s_q = "2,3", heads = 8, pattern = "window", window = 16,
        paths = { "padded", "gather", assert(provider.load(loops, name)) },
        device = dev, min_samples = 4, max_samples = 4,
      })
      assert.matches(("^s_q +padded +gather +packed +%s +ratio "):format(name), s:table())
      local curve = require("fewhead.decide.curve").from(s.records)[1]
      assert.same({ 2, 3 }, { curve.points[1].s_q, curve.points[2].s_q })
    end
  end)

  it("stands in padded's place when three answers are compared", function()
    local problem = assert(small():problem(dev))
    local good, wrong = mannered("good"), mannered("wrong", "liar")
    local r = parity.three_way(problem, "gather", { padded = good })
    assert.same({ "agree", "toy", "toy" }, { r.verdict, r.padded.path, r.between.against })
    assert.equal("liar is wrong", parity.three_way(problem, "gather", { padded = wrong }).verdict)
    assert.equal("liar is wrong", parity.three_way(problem, wrong).verdict)
    assert.equal("not decided", parity.three_way(problem, mannered("fails")).verdict)
  end)

  it("may need a workspace, prepare, and bring its results later", function()
    local log = folder .. "elsewhere"
    local p, problem = mannered("elsewhere " .. log), assert(small():problem(dev))
    local r = parity.check(problem, p)
    assert.equal("pass", r.status, r.reason)
    assert.equal("open\nprepare\nrun\ncollect\nrelease\n", helper.read(log))
    timing.problem(problem, { p }, { min_samples = 2, max_samples = 2 })
    assert.is_true(problem.workspace_bytes >= 6 * 8 * 512 * 2)
    local _, collected = helper.read(log):gsub("collect", "")
    local _, prepared = helper.read(log):gsub("prepare", "")
    assert.same({ 1, 2 }, { collected, prepared }) -- neither is timed
  end)

  it("does nothing for a call without rows", function()
    local log = folder .. "rowless"
    local p, c = mannered("fails " .. log), case { s_q = 0, pattern = "uniform", s_kv = 8, topk = 4 }
    local problem = assert(c:problem(dev))
    assert(problem:run(p, assert(problem:outputs())))
    assert.equal("open\n", helper.read(log))
  end)

  it("records nothing in graphs", function()
    local problem = assert(small():problem(dev))
    local g, err = problem:graph(mannered("good"), assert(problem:outputs()), 2)
    assert.is_nil(g)
    assert.equal("a provider's calls are not recorded in graphs", err)
  end)
end)

describe("a provider that", function()
  local function statuses(c)
    local list = {}
    for i, record in ipairs(c.records) do list[i] = record.parity.status end
    return list
  end

  -- Its record beside gather's, which must not suffer.
  local function beside_gather(manner)
    local c = compared({ "gather", mannered(manner) })
    assert.equal("pass", c.records[1].parity.status)
    assert.is_true(c.records[1].time.median_us > 0)
    return c.records[2], c
  end

  it("refuses a case gives its reason as the cell's status", function()
    local r, c = beside_gather("picky")
    assert.same({ "invalid", "toy did not run: h_q: got 8, wanted 64" }, { r.parity.status, r.parity.reason })
    assert.is_nil(r.time)
    assert.matches("\ntoy +invalid .-\ntoy: toy did not run: h_q: got 8, wanted 64\n", tostring(c))
    local s = assert(sweep { s_q = "2", heads = "8,64", pattern = "window", window = 16, layout = "contiguous", device = dev,
      paths = { mannered("picky") }, min_samples = 4, max_samples = 4 })
    assert.same({ "invalid", "pass" }, { s.records[1].parity.status, s.records[2].parity.status })
    assert.equal("toy", s.records[1].provider)
  end)

  it("fails while it runs is an error with its message, and the process goes on", function()
    local r = beside_gather("fails")
    assert.same({ "error", "toy failed: the kernel gave up" }, { r.parity.status, r.parity.reason })
    assert.same({ "error", "toy failed: the results are gone" },
      { beside_gather("lost").parity.status, beside_gather("lost").parity.reason })
    assert.equal("toy failed: run gave status 7 and no reason", beside_gather("silent").parity.reason)
    assert.is_nil(r.time)
  end)

  it("fails when it is timed loses its place, and the others are timed without it", function()
    local r = beside_gather("tires")
    assert.equal("error", r.parity.status)
    assert.matches("^timing: toy: the run returned status 90: toy: the kernel gave up$", r.parity.reason)
    assert.is_nil(r.verdict)
  end)

  it("cannot prepare did not run", function()
    local r = beside_gather("unready")
    assert.same({ "invalid", "toy did not run: no room for padded heads" }, { r.parity.status, r.parity.reason })
  end)

  it("wants more workspace than there are addresses did not run", function()
    local r = beside_gather("greedy")
    assert.same({ "invalid", "toy did not run: workspace_bytes gave 18446744073709551615, wanted at most 140737488355328" },
      { r.parity.status, r.parity.reason })
  end)

  it("is wrong gets no time", function()
    local r = beside_gather("wrong")
    assert.equal("fail", r.parity.status)
    assert.matches("^out: got 10, wanted ", r.parity.reason)
    assert.is_nil(r.time)
  end)

  it("writes nothing is caught", function()
    assert.matches("^out: never written ", beside_gather("lazy").parity.reason)
  end)

  it("writes outside its heads is caught", function()
    local r = beside_gather("spills")
    assert.equal("fail", r.parity.status)
    assert.equal("out: written outside its elements, at row 0, head 8, column 0", r.parity.reason)
  end)

  for manner, input in pairs { ["alters-q"] = "q", ["alters-kv"] = "kv", ["alters-lists"] = "indices" } do
    it(("writes to %s is caught, and the paths after it are right"):format(input), function()
      local c = compared({ "gather", mannered(manner), "padded" })
      assert.same({ "pass", "fail", "pass" }, statuses(c))
      assert.equal("toy changed its input " .. input, c.records[2].parity.reason)
      assert.is_nil(c.records[2].time)
      assert.is_true(c.records[1].time.median_us > 0 and c.records[3].time.median_us > 0)
    end)
  end

  it("writes to an input while it is timed is caught, and the others are timed without it", function()
    local r, c = beside_gather("alters-later")
    assert.same({ "fail", "toy changed its input kv" }, { r.parity.status, r.parity.reason })
    assert.same({ nil, nil }, { r.time, r.verdict })
    assert.equal(c.case:describe().s_q, r.case.s_q)
  end)

  it("writes to an input while it is timed is told from a good one beside it", function()
    local c = compared({ mannered("good", "good"), "gather", mannered("alters-later", "bad") })
    assert.same({ "pass", "pass", "fail" }, statuses(c))
    assert.equal("bad changed its input kv", c.records[3].parity.reason)
    assert.is_true(c.records[1].time.median_us > 0 and c.records[2].time.median_us > 0)
    assert.equal("good", c.records[2].verdict.against)
  end)

  it("turns wrong after its first run is caught after it was timed", function()
    local r = beside_gather("turns")
    assert.equal("fail", r.parity.status)
    assert.matches("^toy was right in its first run and is not after it was timed: out: got 10, wanted ", r.parity.reason)
    assert.same({ nil, nil }, { r.time, r.verdict })
    assert.equal("toy", r.work.path)
  end)

  it("is not made for the device is refused", function()
    local path = plugin.toy(folder, "gpu",
      'FH_PROVIDER_HEAD, .devices = FH_PROVIDER_CUDA, .name = "gpu", .version = "0", .run = toy_run')
    local p = assert(provider.load(path))
    assert.same({ nil, true }, { p.kinds.cpu, p.kinds.cuda })
    assert.equal("gpu did not run: not made for a CPU", compared({ p }).records[1].parity.reason)
  end)
end)

describe("a provider on a GPU #gpu", function()
  it("runs on the device's memory and stream, beside the kernels there", function()
    local path = plugin.naive(folder)
    if not path then
      pending("no nvcc here to build a plug-in with")
      return
    end
    local gpu, naive = assert(device.open("cuda:0")), assert(provider.load(path))
    assert.same({ nil, true }, { naive.kinds.cpu, naive.kinds.cuda })
    local cases = {}
    for i, entry in ipairs(grid.own()) do
      if not entry.paths and i % 5 == 0 then cases[#cases + 1] = entry end
    end
    local totals = grid.run { device = gpu, cases = cases, paths = {}, providers = { naive } }
    assert.same({ #cases, 0, 0 }, { totals.passed, totals.failed, totals.refused })
    local c = assert(compare(small { s_q = 64 }, { "padded", "gather", naive }, { device = gpu, max_samples = 6 }))
    for _, record in ipairs(c.records) do assert.is_true(record.parity.status == "pass" and record.time.median_us > 0) end
    local refused = assert(compare(small(), { assert(provider.load(loops)) }, { device = gpu })).records[1]
    assert.equal("loops did not run: not made for CUDA", refused.parity.reason)
  end)

  it("that crashes, hangs or loses the context ends its own part alone, in a race and in a sweep", function()
    local path = plugin.naive(folder)
    if not path then
      pending("no nvcc here to build a plug-in with")
      return
    end
    local gpu = assert(device.open("cuda:0"))
    for manner, wanted in pairs {
      crashes = { phase = "parity", path = "bad", code = 11, text = "signal 11 (Segmentation fault)" },
      hangs = { phase = "parity", path = "bad", text = "one call took more than 2 s" },
      traps = { phase = "parity", path = "bad", code = F.C.FH_ERR_DEVICE },
      ["traps-later"] = { phase = "timing", path = "bad", code = F.C.FH_ERR_DEVICE },
    } do
      local bad = assert(provider.load(path, "bad", manner))
      local c = assert(compare(small { s_q = 64 }, { "padded", bad, "gather" },
        { device = gpu, max_samples = 6, provider_seconds = 2 }))
      local failure = c.records[2].failure
      assert.is_table(failure, ("%s: %s: %s"):format(manner, c.records[2].parity.status, tostring(c.records[2].parity.reason)))
      assert.same({ "error", wanted.phase, wanted.path, wanted.code },
        { c.records[2].parity.status, failure.phase, failure.path, failure.code }, manner)
      if wanted.text then assert.equal(wanted.text, failure.text)
      else
        assert.is_true(#failure.text > 0)
        assert.equal("bad did not come back: the device was lost: " .. failure.text, c.records[2].parity.reason)
      end
      for i = 1, 3, 2 do
        assert.equal("pass", c.records[i].parity.status, manner)
        assert.is_true(c.records[i].time.median_us > 0)
      end
    end
    local bad = assert(provider.load(path, "bad", "traps"))
    local s = assert(sweep { s_q = "16,64", heads = 8, pattern = "csa", paths = { "padded", bad, "gather" }, device = "cuda:0",
      worker = true, seconds = 0, min_samples = 6 })
    local said = {}
    for i, record in ipairs(s.records) do said[i] = record.path .. " " .. record.parity.status end
    assert.same({ "padded pass", "bad error", "gather pass", "padded pass", "bad error", "gather pass" }, said)
    assert.equal("pass", parity.check(assert(small():problem(gpu)), "gather").status) -- this process's own context is well
  end)
end)

describe("the C functions", function()
  local C, ffi = F.C, F.ffi

  it("refuse NULL by the argument's name", function()
    local bytes, box, job = ffi.new("uint64_t[1]"), ffi.new("fh_provider *[1]"), ffi.new("fh_provider_job *[1]")
    local p = assert(provider.load(loops))
    local function said(status) return (select(2, F.check(status))) end
    assert.equal("path: got NULL, wanted a pointer", said(C.fh_provider_load(nil, nil, box)))
    assert.equal("provider: got NULL, wanted a pointer", said(C.fh_provider_load(loops, nil, nil)))
    assert.equal("provider: got NULL, wanted a pointer", said(C.fh_provider_workspace_bytes(nil, dev.handle, nil, bytes)))
    assert.equal("bytes: got NULL, wanted a pointer", said(C.fh_provider_workspace_bytes(p.handle, dev.handle, nil, nil)))
    assert.equal("fh_call: got NULL, wanted a pointer", said(C.fh_provider_workspace_bytes(p.handle, dev.handle, nil, bytes)))
    assert.equal("provider: got NULL, wanted a pointer", said(C.fh_provider_prepare(nil, dev.handle, nil, job)))
    assert.equal("job: got NULL, wanted a pointer", said(C.fh_provider_prepare(p.handle, dev.handle, nil, nil)))
    assert.equal("job: got NULL, wanted a pointer", said(C.fh_provider_run(nil)))
    assert.equal("job: got NULL, wanted a pointer", said(C.fh_provider_collect(nil)))
    assert.equal("provider: got NULL, wanted a pointer", said(C.fh_provider_get_info(nil, nil)))
    assert.equal("fh_provider_info: got NULL, wanted a pointer", said(C.fh_provider_get_info(p.handle, nil)))
    assert.equal(0, tonumber(C.fh_provider_executed_flops(nil)))
    C.fh_provider_free(nil)
    C.fh_provider_free(box)
    C.fh_provider_job_free(nil)
    C.fh_provider_job_free(job)
  end)

  it("check a call before the plug-in sees it", function()
    local p, problem = mannered("good"), assert(small():problem(dev))
    local call = problem:bare_call(p, assert(problem:outputs()))
    local job = ffi.new("fh_provider_job *[1]")
    local function said() return (select(2, F.check(C.fh_provider_prepare(p.handle, dev.handle, call, job)))) end
    call.h_q = 129
    assert.equal("h_q: got 129, wanted 1 .. 128", said())
    call.h_q, call.out = 8, ffi.cast("void *", call.q)
    assert.matches("^out: its memory overlaps q; ", said())
    assert.is_true(job[0] == nil)
    p = mannered("elsewhere")
    call = problem:bare_call(p, assert(problem:outputs()))
    assert.equal("workspace: got NULL, wanted 49152 bytes", said())
  end)
end)

describe("--provider", function()
  local function parity_command(options)
    return helper.shell(("cd %s. && ./fewhead parity --device cpu --grid %sgrid.jsonl %s"):format(helper.root, folder, options))
  end

  setup(function()
    helper.write(folder .. "grid.jsonl", '{"group": "g", "d_qk": 512, "h_q": 64, "s_q": 3, "s_kv": 40, "topk": 16, '
      .. '"attn_sink": true, "topk_length": false, "some_rows_all_invalid": false}\n')
  end)

  it("has a plug-in go through the conformance grid beside the paths", function()
    local output, status = parity_command(("--path gather --provider mine=%s"):format(loops))
    assert.equal(0, status)
    assert.matches("\npass    mine   [^\n]*\n24 passed, 0 failed, 0 invalid %(0 on a sample of rows%) of 24 checks, 12 cases$",
      output)
    output = parity_command(("--path gather --json --provider mine=%s"):format(loops))
    assert.matches('"path":"mine","provider":"mine",', output)
    assert.matches('"provider_version":"1.0"', output)
  end)

  it("counts what a plug-in refuses, which is no failure", function()
    local wrapped = plugin.toy(folder, "picky",
      'FH_PROVIDER_HEAD, .name = "picky", .version = "0", .run = toy_run, .supports = toy_picky')
    local output, status = parity_command(("--path gather --provider picky=%s"):format(wrapped))
    assert.equal(0, status)
    assert.matches("\n13 passed, 0 failed, 0 invalid, 11 refused by providers %(0 on a sample of rows%) of 24 checks, 12 cases$",
      output)
  end)

  it("is refused with status 2 and one line", function()
    local hint = " (--help lists the options)"
    for value, wanted in pairs {
      ["mine"] = "NAME=FILE, a plug-in's file and what to call it",
      ["mine="] = "NAME=FILE, a plug-in's file and what to call it",
      ["gather=x.so"] = "NAME=FILE, where NAME is a name of letters, digits, '.', '_', '-', a letter first, that is no path's",
      ["x=/no/x.so"] = 'NAME=FILE with a plug-in in FILE (path: got "/no/x.so", wanted a shared library that loads (/no/x.so: '
        .. "cannot open shared object file: No such file or directory))",
    } do
      local output, status = parity_command("--provider " .. value)
      assert.equal(2, status)
      assert.equal(('fewhead: parity: --provider: got "%s", wanted %s'):format(value, wanted) .. hint, output)
    end
    local output, status = helper.shell(("cd %s. && ./fewhead run experiments/layouts.lua --provider x"):format(helper.root))
    assert.equal(2, status)
    assert.equal('layouts: --provider: got "x", wanted NAME=FILE, a plug-in\'s file and what to call it' .. hint, output)
  end)

  it("of one name twice is refused", function()
    assert.equal("compare: paths[2]: two providers are called loops: load one under another name", refusal(function()
      local c = compare(small(), { assert(provider.load(loops)), assert(provider.load(loops)) }, { device = dev })
      return c
    end))
  end)
end)

describe("provider.flashmla", function()
  it("is nil with one line where there is none", function()
    local output = helper.luajit("print(require('fewhead').provider.flashmla())", { env = "FEWHEAD_FLASHMLA=/no/where" })
    assert.equal('nil\tno FlashMLA: FEWHEAD_FLASHMLA: got "/no/where", wanted a library or a folder with vllm/_flashmla_C*.so, '
      .. "sgl_kernel/flashmla_ops*.so in it; the built-in padded path stands in", output)
  end)

  it("and provider.fa3 the same", function()
    local output = helper.luajit("print(require('fewhead').provider.fa3())", { env = "FEWHEAD_FA3=/no/where" })
    assert.equal('nil\tno FlashAttention 3: FEWHEAD_FA3: got "/no/where", wanted a library or a folder with '
      .. "vllm/vllm_flash_attn/_vllm_fa3_C*.so in it", output)
  end)
end)
