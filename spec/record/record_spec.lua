local helper = require "spec.helper"
local json = require "fewhead.base.json"
local record = require "fewhead.record.record"

local refusal = helper.refusal
local folder

before_each(function() folder = helper.folder() end)
after_each(function() helper.shell("rm -rf " .. folder) end)

local CASE = { pattern = "csa", layout = "vllm", s_q = 64, h_q = 8, prior = 0, seed = 1, preset = "v4.1-flash tp8" }
local TIME = { median_us = 10, p05_us = 9, p95_us = 11, n = 6, l2 = "hot", samples = { 10 } }

-- The options of a record that passed and was timed, with `changes`.
local function options(changes)
  local o = {
    path = "gather", case = CASE, parity = { status = "pass", against = "reference", compared = 5 }, time = TIME,
    work = { path = "gather", rows = 64, useful_flops = 6, executed_flops = 8, bytes = 9, kernel = "avx2 gather" },
    run = { device = "cpu" },
  }
  for key, value in pairs(changes or {}) do o[key] = value ~= "none" and value or nil end
  return o
end

local function with(changes) return record.new(options(changes)) end

describe("record.new", function()
  it("keeps what a record has and nothing else, and computes the waste", function()
    assert.same({
      path = "gather", provider = "fewhead", provider_version = require("fewhead").VERSION, kernel = "avx2 gather", case = CASE,
      parity = { status = "pass", against = "reference", compared = 5 },
      time = { median_us = 10, p05_us = 9, p95_us = 11, n = 6, l2 = "hot" },
      work = { path = "gather", rows = 64, useful_flops = 6, executed_flops = 8, bytes = 9, waste = 0.25 },
      run = { device = "cpu" },
    }, with())
  end)

  it("has no call where no option was given, and no kernel where none is known", function()
    assert.is_nil(with { call = {} }.call)
    assert.same({ group = 4 }, with({ call = { group = 4 } }).call)
    assert.is_nil(with({ work = { useful_flops = 1, kernel = "" } }).kernel)
    assert.is_nil(with({ work = { useful_flops = 1 } }).work.waste)
    assert.equal(0, with({ work = { useful_flops = 0, executed_flops = 0 } }).work.waste)
  end)

  it("takes further fields that are no field of every record", function()
    assert.equal("window", with({ more = { cell = "window" } }).cell)
    assert.equal('record.new: more: got "case", wanted no field of every record',
      refusal(function() local r = with { more = { case = {} } } return r end):gsub("^.-: record", "record"))
  end)

  it("is written in the order of its fields", function()
    local text = json.encode(with { more = { cell = "window" } })
    local order = {}
    local fields = { "path", "provider", "provider_version", "kernel", "case", "parity", "time", "work", "run", "cell" }
    for _, field in ipairs(fields) do
      order[#order + 1] = assert(text:find(('[{,]"%s":'):format(field)), field)
    end
    for i = 2, #order do assert.is_true(order[i] > order[i - 1]) end
  end)

  it("refuses a time beside a parity that is no pass, and what is no record, on the caller's line", function()
    local function refused(changes)
      local o = options(changes)
      return refusal(function() local r = record.new(o) return r end)
    end
    assert.equal('record.new: time: got one for gather, whose parity is "fail"; wanted none',
      refused { parity = { status = "fail" } })
    assert.equal("record.new: case: got nil, wanted a table", refused { case = "none" })
    assert.equal("record.new: parity: got nil, wanted a table", refused { parity = "none" })
    assert.equal("record.new: path: got 5, wanted a string", refused { path = 5 })
    assert.matches('^record.new: unknown option "tim"; did you mean "time"%? known: path, case, ', refused { tim = 1 })
  end)
end)

describe("record.check", function()
  it("takes a record, with a time and without", function()
    assert.is_nil(record.check(with()))
    assert.is_nil(record.check(with { time = "none", work = "none", parity = { status = "invalid" } }))
    assert.is_nil(record.check(with { work = { useful_flops = 0 } })) -- lists without a valid key
  end)

  for reason, spoil in pairs {
    ["path: got nil, wanted a string"] = function(r) r.path = nil end,
    ["provider: got nil, wanted a string"] = function(r) r.provider = nil end,
    ["kernel: got 5, wanted a string"] = function(r) r.kernel = 5 end,
    ["case: got 5, wanted a table"] = function(r) r.case = 5 end,
    ["call: got 5, wanted a table"] = function(r) r.call = 5 end,
    ["parity: got nil, wanted a table"] = function(r) r.parity = nil end,
    ["parity.status: got nil, wanted a string"] = function(r) r.parity = {} end,
    ["run: got true, wanted a table"] = function(r) r.run = true end,
    ["time: got a table, wanted none beside a parity that is no pass"] = function(r) r.parity = { status = "fail" } end,
    ["time.n: got 0, wanted a number > 0"] = function(r) r.time.n = 0 end,
    ["case.s_q: got nil, wanted a number > 0"] = function(r) r.case = { h_q = 8 } end,
    ["work: got nil, wanted a table"] = function(r) r.work = nil end,
    ["work.useful_flops: got nil, wanted a number >= 0"] = function(r) r.work = {} end,
    ["work.executed_flops: got -1, wanted a number >= 0"] = function(r) r.work.executed_flops = -1 end,
    ["verdict.hi: got nil, wanted a number > 0"] = function(r) r.verdict = { ratio = 2, lo = 1 } end,
  } do
    it("says " .. reason, function()
      local r = with()
      spoil(r)
      assert.equal(reason, record.check(r))
    end)
  end

  it("says what is no table", function()
    assert.equal("got 5, wanted a record", record.check(5))
  end)
end)

describe("record.key", function()
  local function changed(changes)
    local case = {}
    for key, value in pairs(CASE) do case[key] = value end
    for key, value in pairs(changes) do case[key] = value end
    return with { case = case }
  end

  it("tells configurations apart by everything that was run", function()
    local key = record.key(with())
    assert.equal('{"case":{"h_q":8,"layout":"vllm","pattern":"csa","prior":0,"s_q":64,"seed":1},"l2":"hot","path":"gather",'
      .. '"provider":"fewhead"}', key)
    for _, changes in ipairs { { prior = 1 }, { seed = 2 }, { requests = 2 }, { indices = "a.npy" }, { s_q = 65 } } do
      assert.are_not.equal(key, record.key(changed(changes)))
    end
    local cold = {}
    for name, value in pairs(TIME) do cold[name] = value end
    cold.l2 = "cold"
    for _, changes in ipairs { { path = "padded" }, { call = { group = 4 } }, { time = cold } } do
      assert.are_not.equal(key, record.key(with(changes)))
    end
  end)

  it("does not depend on run, result, version or the preset's name", function()
    assert.equal(record.key(with()), record.key(with { run = { device = "gpu" }, parity = { status = "pass", max_abs = 1 } }))
    assert.equal(record.key(with()), record.key(changed { preset = "another" }))
    assert.equal(record.key(with()), record.key(json.decode(json.encode(with()))))
  end)

  it("leaves out what it is told to", function()
    local out = { "path", "l2", "call", "s_q" }
    local other = with { path = "padded", call = { group = 4 }, case = changed({ s_q = 65 }).case }
    assert.equal(record.key(with(), out), record.key(other, out))
  end)
end)

describe("record files", function()
  it("are written record by record, and take their name at commit", function()
    local path = folder .. "deep/x.jsonl"
    local writer = assert(record.writer(path))
    assert.is_true(writer:add(with()))
    assert.is_true(writer:add(with { path = "padded" }))
    assert.is_nil((io.open(path)))
    assert.is_true(writer:commit())
    assert.equal("x.jsonl", (helper.shell("ls -A " .. folder .. "deep")))
    assert.same({ with(), with { path = "padded" } }, record.read(path))
    local seen = {}
    for r, line in record.lines(path) do seen[line] = r.path end
    assert.same({ "gather", "padded" }, seen)
  end)

  it("leave what stands there when nothing was written", function()
    helper.write(folder .. "x", "whole\n")
    assert.is_true(assert(record.writer(folder .. "x")):commit())
    local writer = assert(record.writer(folder .. "x"))
    writer:add(with())
    writer:discard()
    assert.equal("whole\n", helper.read(folder .. "x"))
    assert.equal("x", (helper.shell("ls -A " .. folder)))
  end)

  it("take no value that is no record", function()
    local writer = assert(record.writer(folder .. "x"))
    assert.equal("record.writer: path: got nil, wanted a string", refusal(function() writer:add {} end))
    writer:discard()
  end)

  it("say why they cannot be written", function()
    local writer, err = record.writer("/dev/null/x")
    assert.is_nil(writer)
    assert.equal("/dev/null/x: Not a directory", err)
    assert.same({ nil, "/dev/null/x: Not a directory" }, { record.write("/dev/null/x", { with() }) })
    assert.is_true(record.write(folder .. "x", { with() }))
    assert.same({ with() }, record.read(folder .. "x"))
  end)

  it("name file and line of what is no record, and nothing is half read", function()
    local good = json.encode(with())
    for text, reason in pairs {
      ["[]"] = "path: got nil, wanted a string",
      ['{"path":"x","case":{},"parity":{}}'] = "parity.status: got nil, wanted a string",
    } do
      helper.write(folder .. "x", good .. "\n\n" .. text .. "\n")
      assert.same({ nil, ("%sx:3: %s"):format(folder, reason) }, { record.read(folder .. "x") })
    end
    helper.write(folder .. "x", good .. "\n" .. good:sub(1, -2) .. "\n")
    local list, err = record.read(folder .. "x")
    assert.is_nil(list)
    assert.equal(folder .. "x:2: ", err:sub(1, #folder + 5))
    helper.write(folder .. "x", "\n")
    assert.same({ nil, folder .. "x: no record in it" }, { record.read(folder .. "x") })
    assert.same({ nil, folder .. "y: No such file or directory" }, { record.read(folder .. "y") })
  end)

  it("leave bad lines out for who takes their messages, and take times of 0 us only when told to", function()
    local zero = json.encode(with { time = { median_us = 0, p05_us = 0, p95_us = 0, n = 6, l2 = "hot" } })
    local path = helper.write(folder .. "x", ("{\n%s\n%s\n"):format(json.encode(with()), zero))
    local function read(zeros)
      local seen, bad = {}, {}
      for _, line in record.lines(path, { zero = zeros, bad = function(message) bad[#bad + 1] = message end }) do
        seen[#seen + 1] = line
      end
      return seen, bad
    end
    local seen, bad = read(false)
    assert.same({ { 2 }, 2, path .. ":3: time.median_us: got 0, wanted a number > 0" }, { seen, #bad, bad[2] })
    assert.matches("x:1: json: ", bad[1], 1, true)
    seen, bad = read(true)
    assert.same({ { 2, 3 }, 1 }, { seen, #bad })
  end)
end)

describe("records of version 0.1", function()
  local function read(text)
    helper.write(folder .. "x", text)
    return assert(record.read(folder .. "x"))[1]
  end

  it("come in today's words", function()
    local r = read('{"path":"padded","case":{"s_q":4,"layout":"packed","pattern":"file","file":"a.npy"},'
      .. '"parity":{"status":"fail"},"run":{"kind":"cuda","threads":132,"isa":"sm_90"}}')
    assert.same({
      path = "padded", provider = "fewhead", parity = { status = "fail" },
      case = { s_q = 4, layout = "contiguous", pattern = "file", indices = "a.npy" },
      run = { kind = "cuda", multiprocessors = 132, capability = "9.0" },
    }, r)
    assert.same({ kind = "cpu", threads = 2, isa = "avx2" },
      read('{"path":"x","case":{},"parity":{"status":"fail"},"run":{"kind":"cpu","threads":2,"isa":"avx2"}}').run)
  end)

  it("of a chunk through layers have that as their case", function()
    local r = read('{"path":"padded","provider":"fewhead","chunk":{"model":"glm-5.2","tp":8,"s_q":4},"parity":{"status":"fail"}}')
    assert.same({ preset = "glm-5.2 tp8", s_q = 4 }, r.case)
    assert.is_nil(r.chunk)
  end)

  it("have a cell's name from a bench, or the id that a run's store gave", function()
    assert.equal("csa, ratio 4", record.cell_name { cell = "csa, ratio 4" })
    assert.equal("f9a5", record.cell_name { cell = { id = "f9a5", at = 1, of = 4 } })
    assert.is_nil(record.cell_name {})
  end)

  it("are told from lines of other kinds by the first line", function()
    helper.with_file('{"kind": "engine", "path": "auto"}\n', function(path) assert.equal("engine", record.kind_of(path)) end)
    helper.with_file('{"path": "auto"}\n', function(path) assert.equal("case", record.kind_of(path)) end)
    helper.with_file("", function(path) assert.is_nil(record.kind_of(path)) end)
    assert.is_nil(record.kind_of("/no/such/file"))
  end)

  it("of this repository's results can all be read", function()
    local files, count, lines = 0, 0, 0
    local found = helper.shell(("find %sresults -name '*.jsonl' -not -path '*/local/*'"):format(helper.root))
    for path in found:gmatch("[^\n]+") do
      if record.kind_of(path) ~= "case" then goto next end
      files, lines = files + 1, lines + select(2, helper.read(path):gsub("\n", ""))
      for r in record.lines(path) do
        count = count + 1
        assert.are_not.equal("packed", r.case.layout, path)
        assert.is_string(record.key(r))
      end
      ::next::
    end
    assert.is_true(files >= 6)
    assert.equal(lines, count)
  end)
end)
