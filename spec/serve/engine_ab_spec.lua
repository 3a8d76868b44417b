-- Records of the engine's bench as cells: medians of runs, the better of the engine's own arms, what is no result.
local fh = require "fewhead"
local helper = require "spec.helper"
local json = require "fewhead.base.json"
local process = require "spec.process"

local function record(arm, figures, work, more)
  local r = { path = arm, part = "glm", note = "one rank", run = { id = "1" }, parity = { status = "pass", max_abs = 0.004 },
    case = { model = "glm-5.2 tp8", layers = 78, workload = "C16x8kx48", lists = "local" }, engine = figures, work = work }
  for key, value in pairs(more or {}) do r[key] = value end
  return r
end

local function loops(arm, totals, work)
  local list = {}
  for i, total in ipairs(totals) do
    list[i] = record(arm, { total_tok_s = total, ttft_ms = { p50 = 100 * i, n = 48 }, failed = 0 }, work)
  end
  return list
end

local function all(...)
  local list = {}
  for _, part in ipairs { ... } do
    for _, r in ipairs(part) do list[#list + 1] = r end
  end
  return list
end

describe("engine_ab", function()
  it("takes the median of the runs, and keeps the least and the most", function()
    local cells = fh.engine_ab.cells(all(loops("flashmla", { 9000, 9500, 8000 }, { declined = { off = 1 } }),
      loops("fa3", { 9900, 9800 }, { fa3_calls = 1 }), loops("auto-shared", { 12000 }, { calls = { auto = 1 } })))
    assert.equal(1, #cells)
    local arms = cells[1].arms
    assert.same({ "flashmla", "fa3", "auto-shared" }, cells[1].order)
    local padded = arms.flashmla
    assert.same({ 3, 9000, 8000, 9500, 200 },
      { padded.n, padded.total_tok_s, padded.low.total_tok_s, padded.high.total_tok_s, padded.ttft_ms })
    assert.same({ 2, 9850 }, { arms.fa3.n, arms.fa3.total_tok_s })
    assert.same({ "C16x8kx48", "local", "one rank", 0.004 },
      { cells[1].workload, cells[1].lists, cells[1].note, arms.fa3.max_abs })
    assert.equal(9850, fh.engine_ab.best_own(cells[1], "total_tok_s"))
    assert.equal(150, fh.engine_ab.best_own(cells[1], "ttft_ms"))
    assert.is_nil(fh.engine_ab.best_own(cells[1], "attention_ms"))
  end)

  it("reads the samples of a cold workload from its one record", function()
    local cells = fh.engine_ab.cells { record("fa3", { ttft_ms = { p50 = 480, n = 3 }, ttft_runs_ms = { 470, 480, 500 } }, {}) }
    assert.same({ 3, 480, 470, 500 },
      { cells[1].arms.fa3.n, cells[1].arms.fa3.ttft_ms, cells[1].arms.fa3.low.ttft_ms, cells[1].arms.fa3.high.ttft_ms })
  end)

  it("tells cells apart by model, depth, workload, lists and how decode steps ran", function()
    local function at(field, value)
      local r = record("fa3", { total_tok_s = 1 }, {})
      r.case[field] = value or r.case[field]
      return r
    end
    local cells = fh.engine_ab.cells { at "lists", at("decode", "eager"), at("decode", "graphs") }
    assert.same({ 2, "eager", "graphs" }, { #cells, cells[1].decode, cells[2].decode })
    assert.equal(cells[1].name .. ", decode graphs", cells[2].name)
    assert.equal(5, #fh.engine_ab.cells { at "lists", at("lists", "indexer"), at("layers", 6), at("model", "v4"),
      at("workload", "x"), at "model" })
  end)

  it("adds the counters of an arm's records, and names what is no result", function()
    local good = all(loops("flashmla", { 1 }, { declined = { off = 3 } }), loops("fa3", { 1 }, { fa3_calls = 3 }),
      loops("auto", { 1, 1 }, { calls = { auto = 3 }, plans = { built = 0, shared = 0 } }),
      loops("gate", { 1 }, { calls = { gather = 3 } }))
    assert.same({}, fh.engine_ab.errors(good))
    assert.same({ "glm: arms auto and auto-shared have equal counters" },
      fh.engine_ab.errors(all(good, loops("auto-shared", { 1 }, { calls = { auto = 6 } }))))
    assert.same({ "glm: arm auto-shared routed nothing" }, fh.engine_ab.errors(all(good, loops("auto-shared", { 1 }, {}))))
    local off = loops("gather", { 1, 1 }, { calls = { gather = 9 } })
    off[2].parity = { status = "fail" }
    assert.same({ "glm: gather differs from the engine's own kernel" }, fh.engine_ab.errors(all(good, off)))
    assert.equal("fail", fh.engine_ab.cells(off)[1].arms.gather.status)
  end)

  it("refuses other files with their name", function()
    local folder = helper.folder()
    finally(function() process.remove(folder) end)
    process.write(folder .. "empty.jsonl", "")
    assert.has_error(function() fh.engine_ab.read(folder .. "empty.jsonl") end, folder .. "empty.jsonl: no record in it")
    process.write(folder .. "other.jsonl", json.encode(record("fa3", {}, {})) .. "\n" .. json.encode { path = "gather" } .. "\n")
    assert.has_error(function() fh.engine_ab.read(folder .. "other.jsonl") end,
      folder .. "other.jsonl: record 2 is not one of the engine's bench")
  end)
end)
