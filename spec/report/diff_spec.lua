local fh = require "fewhead"
local helper = require "spec.helper"
local some = require "spec.report.some_records"
local stats = require "fewhead.measure.stats"

local diff, record = fh.diff, some.record

-- A record of another run.
local function later(us, changes)
  local r = record(us, changes)
  r.run.id, r.run.commit = "b", ("b"):rep(40)
  return r
end

local function outcome(old, new, options)
  local cell = assert(diff({ old }, { new }, options)).cells[1]
  return cell.outcome, cell.note
end

local function swapped(new, old) return (outcome(old, new)) end

describe("diff of one cell", function()
  it("knows faster, slower and same by the stored noise", function()
    assert.equal("same", (outcome(record(100), later(100.5))))
    assert.equal("slower", (outcome(record(100), later(104))))
    assert.equal("faster", (outcome(record(104), later(100))))
    assert.equal("slower", (outcome(record(100), later(300))))
    -- 4 % of change under 5 % of noise
    local noisy = { median_lo_us = 95, median_hi_us = 105, p05_us = 90, p95_us = 110 }
    assert.same({ "same" }, { outcome(record(100, { time = noisy }), later(101, { time = noisy })) })
    assert.same({ "same" }, { outcome(record(100, { time = noisy }), later(104, { time = noisy })) })
  end)

  it("takes no difference for one that a path had to itself, by the noise floor of either record", function()
    local function floor(share) return { time = { noise_floor = share } } end
    assert.equal("slower", (outcome(record(100, floor(0.01)), later(104, floor(0.01)))))
    assert.not_equal("slower", (outcome(record(100, floor(0.05)), later(104))))
    assert.not_equal("slower", (outcome(record(100), later(104, floor(0.05)))))
    assert.equal("slower", (outcome(record(100, floor(0.05)), later(110, floor(0.05)))))
    assert.same({ "unclear", "a path differed from itself by 25 %" }, { outcome(record(100, floor(0.25)), later(100)) })
  end)

  it("takes a difference of less than `least` for none", function()
    assert.equal("slower", (outcome(record(100), later(104), { least = 0.02 })))
    assert.equal("same", (outcome(record(100), later(104), { least = 0.05 })))
  end)

  it("is unclear where noise, few samples or a time of 0 hide what happened", function()
    local wide = { median_lo_us = 70, median_hi_us = 140, p05_us = 60, p95_us = 150 }
    assert.same({ "unclear", "noise hides changes up to 100 %" },
      { outcome(record(100, { time = wide }), later(100, { time = wide })) })
    local spread = { p05_us = 50, p95_us = 200 }
    assert.same({ "unclear", "within the spread of the samples" },
      { outcome(record(100, { time = spread }), later(110, { time = spread })) })
    local one = { n = 1, p05_us = 100, p95_us = 100, median_lo_us = 100, median_hi_us = 100 }
    assert.same({ "unclear", "samples: 1 and 1, too few" }, { outcome(record(100, { time = one }), later(100, { time = one })) })
    assert.same({ "unclear", "a time of 0 us" }, { outcome(record(0), later(100)) })
    assert.same({ "unclear", "a time of 0 us" }, { outcome(record(100), later(0)) })
  end)

  it("counts what is gone, new, failed and mended", function()
    assert.same({ "failed", "fail: 7 of 8 elements" }, { outcome(record(100), some.failed()) })
    assert.same({ "mended", "was fail" }, { outcome(some.failed(), record(100)) })
    assert.same({ "both failed", "fail" }, { outcome(some.failed(), some.failed()) })
    local untimed = record(1)
    untimed.time = nil
    assert.same({ "same", "passed parity; not timed" }, { outcome(untimed, untimed) })
    assert.same({ "unclear", "timed on one side only" }, { outcome(untimed, record(1)) })
    assert.same({ "failed", "fail: 7 of 8 elements" }, { outcome(untimed, some.failed()) })
    local d = assert(diff({ record(1) }, { record(1, { case = { s_q = 128 } }) }))
    assert.same({ 1, 1, 0 }, { d.counts.gone, d.counts.new, d.compared })
    assert.equal("nothing compared: 2 cells: 1 gone, 1 new", d:summary())
    assert.equal("nothing compared: no cell", assert(diff({}, {})):summary())
  end)

  it("names a setting that differs, and never calls the cell the same", function()
    local cpu = { device = "CPU", kind = "cpu", threads = 10, isa = "avx2" }
    for name, changes in pairs {
      ["threads 10 -> 35"] = { run = { threads = 35 } }, ["isa avx2 -> amx"] = { run = { isa = "amx" } },
      ["topk 640 -> 512"] = { case = { topk = 512 } }, ["seed 0 -> 1"] = { case = { seed = 1 } },
      ["device CPU -> other"] = { run = { device = "other" } }, ["l2 hot -> cold"] = { time = { l2 = "cold" } },
    } do
      local new = later(100, { run = cpu })
      for part, fields in pairs(changes) do
        for key, value in pairs(fields) do new[part][key] = value end
      end
      assert.same({ "differs", name }, { outcome(record(100, { run = cpu }), new) })
    end
    assert.equal("nothing compared: 1 cells: 1 differs",
      assert(diff({ record(1) }, { later(1, { case = { seed = 1 } }) })):summary())
  end)

  it("compares across fields when asked", function()
    local other = { run = { device = "B200", multiprocessors = 148, capability = "10.0" } }
    assert.equal("faster", (outcome(record(100), later(50, other), { across = { "device" } })))
    assert.equal("same", (outcome(record(100), later(100, { case = { seed = 7 } }), { across = { "seed" } })))
    assert.equal("diff: across: got path, wanted a field of the case or the run",
      helper.refusal(function() diff({ record(1) }, { record(1) }, { across = { "path" } }) end))
  end)

  it("flips every sign when the sides are swapped", function()
    local pairs_ = {
      { record(100), later(104), "slower", "faster" }, { record(100), later(300), "slower", "faster" },
      { record(100), later(100.5), "same", "same" }, { record(100), some.failed(), "failed", "mended" },
      { record(0), later(1), "unclear", "unclear" }, { record(100), later(1, { case = { seed = 2 } }), "differs", "differs" },
    }
    for _, p in ipairs(pairs_) do assert.same({ p[3], p[4] }, { (outcome(p[1], p[2])), swapped(p[1], p[2]) }) end
    local there, back = diff({ record(100) }, { later(150) }).cells[1], diff({ later(150) }, { record(100) }).cells[1]
    assert.is_true(math.abs(there.change * back.change - 1) < 1e-12)
    assert.is_true(math.abs(there.lo * back.hi - 1) < 1e-12)
  end)

  it("notes that all arms of a case moved alike", function()
    local function arms(factor, other)
      return { later(100 * factor), later(200 * (other or factor), { path = "padded" }), later(7, { case = { s_q = 128 } }) }
    end
    local old = { record(100), record(200, { path = "padded" }), record(7, { case = { s_q = 128 } }) }
    local function notes(new)
      local list = {}
      for i, cell in ipairs(assert(diff(old, new)).cells) do list[i] = cell.outcome .. " " .. (cell.note or "-") end
      return list
    end
    local alike = "slower all 2 arms alike: the machine's load?"
    assert.same({ alike, alike, "same -" }, notes(arms(2, 2.2)))
    assert.same({ "slower -", "slower -", "same -" }, notes(arms(2, 3)))
    assert.same({ "slower -", "same -", "same -" }, notes(arms(2, 1)))
  end)

  it("finds a file the same as itself, however noisy it is", function()
    local list = { record(100, { time = { n = 1, median_lo_us = 1, median_hi_us = 900 } }), record(5, { path = "packed" }) }
    assert.equal("2 cells: 2 same", assert(diff(list, list)):summary())
  end)

  it("takes the newest of records of one cell, and says so", function()
    local new = later(200)
    new.run.date = "2026-02-02T00:00:00Z"
    local d = assert(diff({ new, record(100) }, { later(200) }))
    assert.equal("1 cells: 1 same", d:summary())
    assert.matches("\nNEW: NVIDIA H200, commit bbbbbbbbbbbb, 2026%-01%-02T03:04:05Z, driver 580; 1 records\n", tostring(d))
    assert.matches("^OLD: .*, driver 580, and 1 earlier run; 2 records; cells that stand there more than once: 1, the newest"
      .. " counts\n", tostring(d))
  end)

  it("counts what a status is to tell", function()
    local d = assert(diff({ record(1), record(1, { path = "packed" }) }, { record(1) }))
    assert.same({ 1, 0, 1 }, { d:failing { "slower" }, d:failing { "unclear" }, d:failing { "gone" } })
    assert.equal(1, assert(diff({ record(1) }, { some.failed() })):failing { "slower" })
  end)

  it("filters, and prints what varies, what does not and the change", function()
    local d = assert(diff({ record(100), record(100, { case = { s_q = 128 } }) },
      { later(100), later(150, { case = { s_q = 128 } }) }))
    assert.equal(table.concat({
      "all cells: NVIDIA H200, 132 multiprocessors, csa lists, layout vllm, 8 heads, h_pad 64, d_qk 512, topk 640, hot caches, "
        .. "seed 0",
      "",
      "s_q  path         OLD       NEW   change  interval            outcome  note",
      "128  gather  100.0 us  150.0 us  +50.0 %  +49.1 % .. +50.9 %  slower",
      "",
      "2 cells: 1 same, 1 slower",
    }, "\n"), tostring(d):match("\n(all cells.*)$"))
    assert.equal("1 cells: 1 same", assert(diff(d.old, d.new, { where = { s_q = "64" } })):summary())
    local none, err = diff(d.old, d.new, { where = { sq = "64" } })
    assert.is_nil(none)
    assert.matches('^where: no record has a field "sq"; did you mean s_q%?', err)
  end)
end)

-- Normal deviates of a generator with a fixed start.
local function deviates(seed)
  local state = seed
  local function uniform()
    state = (state * 16807) % 2147483647
    return state / 2147483647
  end
  return function() return math.sqrt(-2 * math.log(uniform())) * math.cos(2 * math.pi * uniform()) end
end

-- A record of n samples around us with a spread, as fh.timing sums them up.
local function measured(us, spread, n, normal, s_q, id)
  local samples = {}
  for i = 1, n do samples[i] = us * (1 + spread * normal()) end
  local sorted = stats.sorted(samples)
  local lo, hi = stats.median_interval(sorted, 0.95)
  local r = record(1, { case = { s_q = s_q }, time = {
    median_us = stats.quantile(sorted, 0.5), p05_us = stats.quantile(sorted, 0.05), p95_us = stats.quantile(sorted, 0.95),
    median_lo_us = lo, median_hi_us = hi, n = n } })
  r.run.id = id
  return r
end

describe("diff of A and A", function()
  it("calls at least 95 of 100 cells the same in each of 20 runs, none faster or slower, and finds the one at +200 %", function()
    for seed = 1, 20 do
      local normal = deviates(7919 * seed)
      local old, new, changed = {}, {}, {}
      for i = 1, 100 do
        local spread = ({ 0.002, 0.01, 0.03, 0.05 })[i % 4 + 1]
        local n = ({ 10, 30, 100 })[i % 3 + 1]
        old[i] = measured(50 * i, spread, n, normal, i, "a")
        new[i] = measured(50 * i, spread, n, normal, i, "b")
        changed[i] = i == 37 and measured(150 * i, spread, n, normal, i, "b") or new[i]
      end
      local d = assert(diff(old, new))
      assert.is_true(d.counts.same >= 95, ("seed %d: %s"):format(seed, d:summary()))
      local one = assert(diff(old, changed))
      assert.equal(d.counts.slower + 1, one.counts.slower)
      local found
      for _, cell in ipairs(one.cells) do
        if cell.outcome == "slower" and cell.change > 2.5 then found = cell.old.case.s_q end
      end
      assert.equal(37, found)
    end
  end)
end)
