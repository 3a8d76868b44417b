-- Regret of auto: measured, and by costs that have not seen the cell.
local fh = require "fewhead"
local helper = require "spec.helper"

-- Records of a cell as benches make them: microseconds by path (packed's plan apart), and what its plan was.
local function cell(s_q, us, more)
  local list = {}
  for _, path in ipairs { "padded", "gather", "packed", "auto" } do
    if us[path] then
      list[#list + 1] = {
        path = path, provider = "fewhead", parity = { status = "pass" }, cell = "made",
        case = { s_q = s_q, h_q = 8, h_pad = 64, d_qk = 512, d_v = 512, pattern = more and "local" or "csa" },
        time = { median_us = us[path], plan_us = path == "packed" and us.plan or nil, n = 6, p05_us = 1, p95_us = 1, l2 = "hot" },
        plan = { keys = s_q * 600, group = 8, groups = s_q / 8, entries = s_q / 8 * 1000 }, run = { device = "made" },
      }
    end
  end
  return list
end

local function all(...)
  local list = {}
  for _, records in ipairs { ... } do
    for _, record in ipairs(records) do list[#list + 1] = record end
  end
  return list
end

describe("regret.of", function()
  it("is auto's time over that of the best path, its plan included", function()
    local found = assert(fh.regret.of(all(
      cell(64, { padded = 100, gather = 50, packed = 40, plan = 20, auto = 55 }), -- 1.1 times gather
      cell(128, { padded = 200, gather = 100, packed = 40, plan = 20, auto = 90 })))) -- 1.5 times packed and its plan
    assert.same({ 2, "made, s_q 128, 8 heads, d 512" }, { found.measured.cells, found.measured.at })
    assert.near(0.3, found.measured.mean, 1e-12)
    assert.near(0.5, found.measured.worst, 1e-12)
  end)

  it("chooses for each cell by costs of the other folds alone", function()
    -- Times by one rule, so that whatever is held out the others tell it: gather 1 us a row, packed 0.3 and 40 for its plan.
    local cells = {}
    for i, s_q in ipairs { 8, 16, 24, 32, 48, 64, 96, 128, 256, 512 } do
      cells[i] = cell(s_q, { padded = 8 * s_q, gather = s_q, packed = 0.3 * s_q, plan = 40 })
    end
    local found = assert(fh.regret.of(all(unpack(cells)), 4))
    assert.is_nil(found.measured) -- no auto
    -- Of the smallest cell nobody knows: costs are not taken from larger chunks alone.
    assert.same({ 9, 0, 0 }, { found.held_out.cells, found.held_out.wrong, found.held_out.worst })
    -- One cell that goes against the rule: packed is slow there, which only its own record says.
    cells[10] = cell(512, { padded = 4096, gather = 512, packed = 5080, plan = 40 })
    local seen = assert(fh.regret.of(all(unpack(cells)), 10)).held_out
    assert.is_true(seen.wrong >= 1)
    assert.near(9, seen.worst, 1e-9) -- 5120 / 512
    assert.equal("made, s_q 512, 8 heads, d 512", seen.at)
  end)

  it("says what is missing", function()
    local _, err = fh.regret.of(cell(64, { padded = 1, gather = 1 }))
    assert.equal("regret: got 2 records, wanted cells with a time of padded, gather, packed each", err)
    assert.equal("regret.of: folds: got 1, wanted a whole number >= 2",
      helper.refusal(function() local r = fh.regret.of({}, 1) return r end))
  end)
end)

describe("auto on traffic", function()
  it("is scored by its measured times, between them and beyond", function()
    local points = {}
    for i, row in ipairs { { 64, 100, 60, 80 }, { 128, 200, 120, 140 } } do
      points[i] = { s_q = row[1], auto = { time = { median_us = row[4] } } }
    end
    local cost = { heads = 8, range = function() return 64, 128 end,
      at = function(_, path, s_q) return (path == "padded" and 100 or 60) * s_q / 64 end }
    local gate = { decides = { points = points }, cost = cost, undecided = true }
    local list = fh.score.candidates(gate, {})
    assert.equal("auto (measured)", list[#list].name)
    local at = list[#list].us_at
    assert.same({ 80, 110, 140, 40, 280 }, { at(64), at(96), at(128), at(32), at(256) })
    local rows = fh.score.score({ counts = { { s_q = 96, count = 2 } }, chunks = 2, rows = 192 }, list, cost)
    assert.same({ 220, 180 }, { rows[#rows].us, rows[#rows].best_us })
    assert.is_nil(rows[#rows].native_chunks)
    assert.near(220 / 180 - 1, rows[#rows].regret, 1e-12)
  end)
end)

describe("experiments/auto_regret.lua", function()
  it("prints the regret in cells, in held-out cells and on a trace", function()
    local out, status = helper.shell(("cd %s. && ./fewhead run auto_regret --sweep results/nvidia-h200/gate_sweep.jsonl "
      .. "--traffic spec/serve/samples/mooncake.jsonl"):format(helper.root))
    assert.equal(0, status)
    assert.matches("\nauto, measured +98 ", out)
    assert.matches("\ncosts that have not seen the cell +98 +%d+ +%d+%.%d %% ", out)
    assert.matches("\nauto %(measured%) +%- +%- +[^\n]+ %%", out)
  end)
end)

describe("the gate tables in results/", function()
  it("hold what the records beside them say, and are refused on another device with the reason", function()
    local here, seen = fh.run.header(assert(fh.open("cpu"))), 0
    for path in helper.shell(("ls %sresults/*/gates.json"):format(helper.root)):gmatch("[^\n]+") do
      seen = seen + 1
      local file = assert(fh.json.decode(helper.read(path)))
      local sweep = assert(fh.sweep.read((path:gsub("gates%.json$", "gate_sweep.jsonl"))))
      local made = fh.gate_table.from(fh.gate.fit(sweep).curves, { run = sweep.records[1].run })
      made = fh.json.decode(fh.json.encode(made))
      assert.same(made.gates, file.gates, path)
      assert.same(made.device, file.device, path)
      local gate, err = fh.gate_table.load(path, assert(fh.open("cpu")), { h_q = 8, d_qk = 512, topk = 640 })
      local device = file.device
      if device.kind ~= "cpu" then
        assert.is_nil(gate)
        assert.is_truthy(err:find('device.kind: measured on "cuda", here it is "cpu"; measure this device', 1, true), err)
      elseif device.name == here.device and device.threads == here.threads and device.isa == fh.ffi.isas[here.isa] then
        assert.equal(file.gates[1].min_sq, gate.min_sq)
      else assert.matches("device%.%w+: measured .-, here it is ", err) end
    end
    assert.equal(2, seen)
  end)
end)
