-- What objects have in common, as the facade gives it to them.
local fh = require "fewhead"
local helper = require "spec.helper"
local json = require "fewhead.base.json"
local some = require "spec.report.some_records"
local speedups = require "spec.decide.speedups"

local folder

-- Checks that an object prints itself and returns itself.
local function check_print(object)
  local real, printed = print, nil
  _G.print = function(text) printed = text end
  local ok, same = pcall(object.print, object)
  _G.print = real
  assert.is_true(ok, same)
  assert.equal(object, same)
  assert.equal(tostring(object), printed)
end

before_each(function() folder = helper.folder() end)
after_each(function() helper.shell("rm -rf " .. folder) end)

local function case() return assert(fh.case { s_q = 4, s_kv = 64, topk = 16, pattern = "uniform" }) end
local HOW = { max_seconds = 0, min_samples = 5 }

-- An object of each call whose result holds records.
local WITH_RECORDS = {
  compare = function() return fh.compare(case(), { "padded", "gather" }, HOW) end,
  sweep = function()
    return fh.sweep { s_q = "4,8", s_kv = 64, topk = 16, pattern = "uniform", paths = { "padded", "gather" }, max_seconds = 0,
      min_samples = 5 }
  end,
  layers = function()
    return fh.layers { s_q = 1, prior = 20, paths = { "padded", "gather" }, max_seconds = 0, min_samples = 1 }
  end,
  results = function()
    return fh.results(helper.write(folder .. "in.jsonl", some.text { some.record(100, { path = "padded" }), some.record(50) }))
  end,
}

describe("an object with records", function()
  for name, make in pairs(WITH_RECORDS) do
    it(("of fh.%s prints, saves and compares"):format(name), function()
      local object = assert(make())
      check_print(object)
      for _, kind in ipairs { "jsonl", "csv", "md", "html", "svg" } do
        local path = ("%sx.%s"):format(folder, kind)
        assert.same({ true }, { object:save(path) }, path)
        assert.is_true(#helper.read(path) > 100)
      end
      local again = assert(fh.results(folder .. "x.jsonl"))
      assert.equal(#object.records, #again.records)
      assert.same(json.decode(json.encode(object.records[1])), again.records[1])
      local diff = assert(object:compare(again)) -- the very records: nothing changed
      assert.equal(#object.records, diff.counts.same + diff.counts.unclear)
      assert.equal(tostring(diff), tostring(object:compare(folder .. "x.jsonl")))
      assert.equal(tostring(diff), tostring(object:compare(again.records)))
    end)
  end

  it("says which endings there are, and what cannot be written", function()
    local object = assert(WITH_RECORDS.results())
    assert.same({ nil, 'got "x.xls", wanted a file that ends in .jsonl, .csv, .sqlite, .db, .md, .html or .svg' },
      { object:save "x.xls" })
    assert.same({ nil, "/dev/null/x.csv: Not a directory" }, { object:save "/dev/null/x.csv" })
    assert.equal("result:save: path: got nil, wanted a string", helper.refusal(function() local ok = object:save() return ok end))
    local none = object:filter { path = "gather" }
    none.records = {}
    assert.same({ nil, folder .. "x.csv: there is no record to save" }, { none:save(folder .. "x.csv") })
  end)

  it("refuses to be compared with what holds no records", function()
    local object = assert(WITH_RECORDS.results())
    local wanted = "wanted an object with records, a list of records, or the name of a file, folder, run or commit"
    assert.equal("result:compare: other: got 5, " .. wanted, helper.refusal(function() local d = object:compare(5) return d end))
    assert.equal("result:compare: other: got {}, " .. wanted, helper.refusal(function() local d = object:compare {} return d end))
    assert.same({ nil, folder .. "no: no file, folder, commit or run of that name" }, { object:compare(folder .. "no") })
  end)

  it("takes the options of fh.diff, and finds what changed", function()
    local old = assert(WITH_RECORDS.results())
    local new = { some.record(100, { path = "padded" }), some.record(25, { run = { device = "other" } }) }
    assert.same({ 1, 1 }, { old:compare(new).counts.same, old:compare(new).counts.differs })
    assert.equal(1, old:compare(new, { across = { "device" } }).counts.faster)
  end)
end)

describe("a diff", function()
  it("prints and saves, and is compared with nothing", function()
    local old = assert(WITH_RECORDS.results())
    local diff = fh.diff(old.records, { some.record(25) })
    check_print(diff)
    assert.is_nil(diff.compare)
    assert.is_nil(diff.plot)
    assert.same({ true }, { diff:save(folder .. "d.txt") })
    assert.equal(tostring(diff) .. "\n", helper.read(folder .. "d.txt"))
    assert.same({ true }, { diff:save(folder .. "d.md") })
    assert.matches("\n| ", helper.read(folder .. "d.md"))
    assert.same({ nil, 'got "d", wanted a file that ends in .md or .txt' }, { diff:save "d" })
  end)
end)

describe("a gate", function()
  local function fitted(at)
    local list = speedups { [64] = 0.5, [128] = at, [256] = 2, [512] = 3 }
    for _, record in ipairs(list) do record.run = some.run "a" end
    return assert(fh.gate.fit(list))
  end

  it("saves its table and its lines", function()
    local gate = fitted(2)
    check_print(gate)
    assert.same({ true }, { gate:save(folder .. "g.json") })
    local made = assert(json.decode(helper.read(folder .. "g.json")))
    assert.same({ "cuda", "NVIDIA H200", 132, 90 }, { made.device.kind, made.device.name, made.device.multiprocessors,
      made.device.capability })
    assert.same({ 1, 128, "csa", "vllm" }, { made.schema, made.gates[1].min_sq, made.gates[1].pattern, made.gates[1].layout })
    assert.same({ true }, { gate:save(folder .. "g.env") })
    assert.matches("\nexport VLLM_DSV41_FEWHEAD_MIN_SQ=128\n$", helper.read(folder .. "g.env"))
    assert.same({ nil, 'got "g.csv", wanted a file that ends in .json or .env' }, { gate:save "g.csv" })
    assert.same({ nil, "g.json: the records do not say on which device they were measured" },
      { fh.gate.fit(speedups { [64] = 0.5, [128] = 2 }):save "g.json" })
    assert.same({ nil, "g.json: the gate has no measurements, wanted one that fh.gate.fit made" },
      { fh.gate.new({ min_sq = 5 }):save "g.json" })
  end)

  it("is compared with another one curve by curve", function()
    local found = fitted(2):compare(fitted(0.5))
    assert.same({ "128", "256" }, { found.old, found.new })
    assert.same({ { curve = "8 heads, csa vllm", old = "from 128", new = "from 256" } }, found.rows)
    assert.matches("\nMIN_SQ: 128, then 256$", tostring(found))
    assert.equal("gate:compare: got a gate without measurements, wanted two that fh.gate.fit made",
      helper.refusal(function() local d = fitted(2):compare(fh.gate.new { min_sq = 4 }) return d end))
  end)
end)

describe("a serving A/B", function()
  local function ab(ratio)
    local engine = fh.engine.computed { name = "toy", preset = "v4.1-flash tp8", tflops = 100, efficiency = 0.5, ratio = ratio,
      rest = { step_us = 1000 } }
    return fh.serve { workload = fh.workload.closed { concurrency = 2, count = 4, input = 4000, output = 4 }, engine = engine,
      arms = { "padded", "native" } }
  end

  it("saves a line an arm, a table and a picture", function()
    local one = ab(2)
    check_print(one)
    assert.same({ true, true, true }, { one:save(folder .. "s.jsonl"), one:save(folder .. "s.md"), one:save(folder .. "s.svg") })
    local lines = {}
    for line in helper.read(folder .. "s.jsonl"):gmatch("[^\n]+") do lines[#lines + 1] = assert(json.decode(line)) end
    assert.same({ "padded", "native" }, { lines[1].arm, lines[2].arm })
    assert.equal(one.rows[2].figures.total_tok_s, lines[2].figures.total_tok_s)
    assert.matches("^| arm | ", helper.read(folder .. "s.md"))
    assert.matches("^<svg", helper.read(folder .. "s.svg"))
    assert.is_nil(one.plot)
  end)

  it("is compared arm by arm", function()
    local old, new = ab(2), ab(4)
    local found = old:compare(new)
    assert.same({ "padded", "native" }, { found.rows[1].arm, found.rows[2].arm })
    assert.equal(0, found.rows[1].total)
    assert.equal(new.rows[2].figures.total_tok_s / old.rows[2].figures.total_tok_s - 1, found.rows[2].total)
    assert.is_true(found.rows[2].total > 0 and found.rows[2].ttft < 0)
    assert.matches("^arm +tok/s, OLD +NEW +change +mean TTFT s, OLD +NEW +change\npadded ", tostring(found))
    assert.equal("serve:compare: other: got 5, wanted what fh.serve returned",
      helper.refusal(function() local d = old:compare(5) return d end))
  end)
end)
