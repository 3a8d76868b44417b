-- fh.bench and the two scripts behind make bench-gpu, started as make starts them.
local bench = require "fewhead.cli.bench"
local device = require "fewhead.device.device"
local helper = require "spec.helper"
local json = require "fewhead.base.json"
local process = require "spec.process"

local on_device = device.default_name()
local packs = device.default():has_path("packed")

describe("bench", function()
  it("gives the columns that are named, and no others", function()
    local columns = bench.pick { "s_q", "median" }
    assert.same({ "s_q", "median us" }, { columns[1].key, columns[2].title })
    assert.equal("bench.pick: no column times", helper.refusal(function() bench.pick { "times" } end))
  end)

  it("measures a cell: a row and a record a path, with what the lists share", function()
    local b = bench.open("bench_spec", { device = on_device, samples = 6 })
    local rows = b:measure({ name = "window", options = { s_q = 8, pattern = "window", window = 16, prior = 40, heads = 8 } },
      { "padded", "packed" })
    assert.equal(packs and 2 or 1, #rows)
    assert.same({ "window", 8, 8, "padded", "pass" }, { rows[1].cell, rows[1].s_q, rows[1].h_q, rows[1].path, rows[1].parity })
    local useful = 8 * 16 * 8 * 2 * 1024
    assert.is_true(math.abs(rows[1].useful * 1e6 * rows[1].median / useful - 1) < 1e-9)
    assert.is_nil(rows[1].ratio)
    local first = b.experiment.records[1]
    assert.same({ "window", "padded", 6 }, { first.cell, first.path, first.time.n })
    if packs then
      assert.same({ 23, 8 * 16 / 23, "packed" }, { rows[2].union, rows[2].dedup, rows[2].path })
      assert.same({ 8, 1, 23, 128 }, { first.plan.group, first.plan.groups, first.plan.entries, first.plan.keys })
      assert.is_true(rows[2].ratio > 0)
    end
    assert.equal(0, b.experiment.failed)
  end)

  it("measures kinds of lists at every size, and auto beside padded with the times that are there", function()
    local b = bench.open("bench_spec", { device = on_device, samples = 6 })
    local kinds = { { name = "late", options = { pattern = "csa", window = 8, topk = 16 }, prompt = 40 },
      { name = "whole", options = { pattern = "csa", window = 8, topk = 16 } } }
    local rows = b:table { kinds = kinds, heads = { 8, 4 }, s_q = { 2, 8 }, paths = { "padded", "auto" } }
    local seen = {}
    for i, row in ipairs(rows) do seen[i] = ("%s %d %d %s"):format(row.cell, row.h_q, row.s_q, row.path) end
    assert.same({
      "late 8 2 padded", "late 8 2 auto", "late 8 8 padded", "late 8 8 auto",
      "late 4 2 padded", "late 4 2 auto", "late 4 8 padded", "late 4 8 auto",
      "whole 8 2 padded", "whole 8 2 auto", "whole 8 8 padded", "whole 8 8 auto",
      "whole 4 2 padded", "whole 4 2 auto", "whole 4 8 padded", "whole 4 8 auto",
    }, seen)
    local list = b.experiment.records
    assert.same({ 38, 32, 38 }, { list[1].case.prior, list[3].case.prior, list[5].case.prior })
    assert.equal(8190, list[9].case.prior) -- the default prompt of 8192 rows
    local beside = b:auto_beside_padded { kinds = kinds, heads = 8, s_q = { 8, 1 } }
    assert.equal(16 + 4, #list) -- s_q 8 was there
    local first = beside[1]
    assert.same({ "late", 8, rows[3].median, rows[4].median }, { first.cell, first.s_q, first.padded, first.auto })
    assert.same({ "whole", 1 }, { beside[4].cell, beside[4].s_q })
    assert.equal(beside[4].ratio, rows[4].ratio and list[20].verdict.ratio)
  end)

  it("leaves out the title of a table without rows", function()
    local b, lines, real = bench.open("bench_spec", { device = on_device, samples = 6 }), {}, print
    _G.print = function(text) lines[#lines + 1] = text end
    local ok, status = pcall(b.finish, b, "X", { "head", "## None", { {}, bench.pick { "s_q" } }, "## One",
      { { { s_q = 4 } }, bench.pick { "s_q" } }, "tail" })
    _G.print = real
    assert.same({ true, 0, "head\n\n## One\n\ns_q\n  4\n\ntail" }, { ok, status, lines[1] })
  end)

  it("says which cell it could not measure", function()
    local b = bench.open("bench_spec", { device = on_device, samples = 6 })
    assert.error_matches(function()
      b:measure({ name = "huge", options = { s_q = 1, pattern = "uniform", s_kv = 2^31 - 1, repeats = true } }, { "padded" })
    end, "^huge, s_q 1: kv: ")
  end)
end)

describe("the benches of a GPU", function()
  local folder
  before_each(function() folder = helper.folder() end)
  after_each(function() process.remove(folder) end)

  local function run(name)
    local status, out, err = process.run {
      "./fewhead", "run", ("experiments/%s.lua"):format(name), "--device", on_device, "--s-q", "2", "--quick", "--samples", "6",
      "--out", folder .. "results/DEVICE",
    }
    assert.same({ 0, "" }, { status, err })
    return out, folder .. "results/" .. device.default():info().name:lower():gsub("[^%w]+", "-") .. "/"
  end

  local function records(path)
    local list = {}
    for line in helper.read(path):gmatch("[^\n]+") do list[#list + 1] = assert(json.decode(line)) end
    return list
  end

  it("kernels: padded and gather on uniform lists", function()
    local out, at = run("bench_gpu")
    assert.matches("^lists +s_q +h_q +path +median us ", out)
    local list = records(at .. "kernels.jsonl")
    assert.equal(2, #list)
    assert.same({ "padded", "gather" }, { list[1].path, list[2].path })
    assert.same({ "uniform", 8192, 640, "vllm" }, {
      list[1].case.pattern, list[1].case.s_kv, list[1].case.topk, list[1].case.layout,
    })
    local text = helper.read(at .. "kernels.md")
    assert.matches("^# Kernels that work query by query on [^\n]+\n\n%- command: `./fewhead run experiments/", text)
    assert.matches("\n| d 512, topk 640 | 2 | 8 | gather | ", text)
  end)

  it("packed: all paths on lists that share more and less", function()
    local out, at = run("bench_packed")
    assert.matches("\nlists +s_q +h_q +union +dedup +path +median us ", out)
    local list, patterns = records(at .. "packed.jsonl"), {}
    for _, record in ipairs(list) do
      assert.equal("pass", record.parity.status)
      local c = record.case
      patterns[c.pattern .. (c.keep or "") .. (c.ratio or "") .. (c.prior and c.prior > 8192 and "late" or "")] = true
    end
    assert.equal(11 * (packs and 4 or 3), #list)
    for _, name in ipairs { "csa4", "csa2", "csa1", "local0.94", "local0.92", "local0.91", "local0.84", "local0.82", "local0.81",
      "local0.94late", "uniform" } do assert.is_true(patterns[name], name) end
    if packs then
      assert.is_true(list[1].plan.dedup > 1 and list[1].plan.dedup <= 2)
      assert.is_number(list[3].time.plan_us)
      assert.is_nil(list[4].time.plan_us) -- auto: in its time
    end
    assert.matches("\n## 8 heads, d 512, topk 640\n\n| lists | s_q | h_q | union | ", helper.read(at .. "packed.md"))
  end)
end)
