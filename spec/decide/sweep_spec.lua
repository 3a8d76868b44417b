local fh = require "fewhead"
local helper = require "spec.helper"
local json = require "fewhead.base.json"

local folder

before_each(function() folder = helper.folder() end)
after_each(function() helper.shell("rm -rf " .. folder) end)

local read, write = helper.read, helper.write

-- A sweep of cases that take no time: 4 rows of 16 keys unless `changes` say otherwise.
local function small(changes)
  local options = {
    s_q = 4, s_kv = 64, topk = 16, pattern = "uniform", paths = { "padded", "gather" }, max_seconds = 0, min_samples = 5,
  }
  for key, value in pairs(changes or {}) do options[key] = value end
  return fh.sweep(options)
end

describe("fh.sweep", function()
  it("runs every combination of its axes, s_q slowest, and says where it is", function()
    local seen = {}
    local sweep = small { s_q = "2:4:*2", layout = "vllm,contiguous", heads = { 8, 16 }, on_cell = function(i, n, cell)
      seen[#seen + 1] = ("%d/%d s_q=%d heads=%d %s"):format(i, n, cell.s_q, cell.heads, cell.layout)
    end }
    assert.same({
      "1/8 s_q=2 heads=8 vllm", "2/8 s_q=2 heads=8 contiguous", "3/8 s_q=2 heads=16 vllm", "4/8 s_q=2 heads=16 contiguous",
      "5/8 s_q=4 heads=8 vllm", "6/8 s_q=4 heads=8 contiguous", "7/8 s_q=4 heads=16 vllm", "8/8 s_q=4 heads=16 contiguous",
    }, seen)
    assert.equal(8, sweep.cells)
    assert.equal(8, sweep.planned)
    assert.is_false(sweep.interrupted)
    assert.equal(16, #sweep.records)
  end)

  it("refuses by name, on the caller's line and before anything runs, what no cell could take", function()
    local function refused(options)
      local ok, err = pcall(function() small(options) end)
      assert.is_false(ok)
      return (err:gsub("^.-sweep_spec.lua:%d+: ", ""))
    end
    assert.equal('sweep: layout: got "vlm", wanted one of contiguous, vllm, strided, offset; did you mean "vllm"?',
      refused { layout = "contiguous,vlm" })
    assert.equal('sweep: pattern: got "cs", wanted one of '
      .. table.concat(fh.pattern.names, ', ') .. '; did you mean "csa"?',
      refused { pattern = "cs" })
    assert.equal('sweep: preset: got "v9 tp8", wanted one of ' .. #fh.preset.names()
      .. ' names (fewhead run gate_sweep --list lists them)',
      refused { preset = "v9 tp8" })
    assert.equal('sweep: paths[2]: got "gahter", wanted one of ' .. table.concat(fh.path.names(), ", ")
      .. ', native; did you mean "gather"?', refused { paths = { "padded", "gahter" } })
    assert.equal("sweep: indices: got nil, wanted the file of pattern file", refused { pattern = "file" })
    local ok, err = pcall(function() fh.sweep { heads = 8 } end)
    assert.is_false(ok)
    assert.matches('sweep_spec.lua:%d+: sweep: s_q: got nil, wanted numbers, such as "64:2048:%*2"$', err)
  end)

  it("has every option of a case as an axis, by the same rows", function()
    for _, row in ipairs(fh.case.rows.list) do
      assert.is_true(row.axis, row.key)
      assert.equal(row, fh.sweep.rows.by_key[row.key].of, row.key)
    end
    local sweep = small { max_seconds = 0, seconds = nil, lse = "true,false", max_logits = { false } }
    assert.same({ true, true, false, false }, { sweep.records[1].case.lse, sweep.records[2].case.lse, sweep.records[3].case.lse,
      sweep.records[4].case.lse })
  end)

  it("takes patterns that are functions beside names, and runs them in this process", function()
    local own = { name = "own", row = function(row) return { row, row + 1 } end }
    local sweep = fh.sweep { s_q = "2,4", pattern = { "window", own }, worker = true, max_seconds = 0, min_samples = 5,
      device = fh.device.default_name(), paths = { "padded", "gather" } }
    local seen = {}
    for i, r in ipairs(sweep:filter({ path = "gather" }).records) do
      seen[i] = { r.case.s_q, r.case.pattern, r.case.pattern_name or "-", r.parity.status, r.run.process }
    end
    assert.same({
      { 2, "window", "-", "pass", "script" }, { 2, "function", "own", "pass", "script" },
      { 4, "window", "-", "pass", "script" }, { 4, "function", "own", "pass", "script" },
    }, seen)
    -- alone, { row = f } is one value; a function of the cell gives the pattern
    assert.equal(1, small({ pattern = own, s_kv = 8, topk = 2 }).planned)
    assert.equal("window", fh.sweep({ s_q = 2, pattern = function(cell) return cell.s_q == 2 and "window" or "csa" end,
      paths = { "gather" }, max_seconds = 0 }).records[1].case.pattern)
  end)

  it("keeps a function's lists that are none as a row with the reason", function()
    local line = debug.getinfo(1, "l").currentline + 1
    local sweep = small { s_q = { 2, 4 }, s_kv = 3, topk = 2, pattern = { function(row) return { row < 2 and 1 or row.x } end } }
    assert.same({ "pass", "pass", "invalid", "invalid" }, { sweep.records[1].parity.status, sweep.records[2].parity.status,
      sweep.records[3].parity.status, sweep.records[4].parity.status })
    assert.matches(("^case: pattern: row 2: [^:]*sweep_spec%%.lua:%d: attempt to index "):format(line),
      sweep.records[3].parity.reason)
    assert.same({ "function", "function" }, { sweep.records[1].case.pattern, sweep.records[3].case.pattern })
  end)

  it("tells a function of the cell from one that is a pattern, and functions by their names", function()
    local function f(row) return { row + 1 } end
    local ok, err = pcall(function() local s = fh.sweep { s_q = 2, pattern = f } return s end)
    assert.is_false(ok)
    assert.matches("^sweep: pattern: the function raised .*; a pattern that is a function stands in braces: pattern = { f }$",
      err)
    assert.equal('sweep: pattern: got two functions called function, wanted { row = f, name = "mine" } with a name for each',
      helper.refusal(function() local s = fh.sweep { s_q = 2, pattern = { f, { fill = f } } } return s end))
  end)

  it("runs captured lists, of which s_q takes the first rows", function()
    local header = "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }"
    header = header .. (" "):rep(118 - #header - 1) .. "\n"
    write(folder .. "lists.npy", "\147NUMPY\1\0" .. "\118\0" .. header
      .. "\0\0\0\0\1\0\0\0\255\255\255\255" .. "\2\0\0\0\1\0\0\0\5\0\0\0")
    local sweep = fh.sweep { indices = folder .. "lists.npy", s_q = "1:3:+1", paths = { "padded", "gather" }, max_seconds = 0 }
    local seen = {}
    for i, record in ipairs(sweep:filter({ path = "gather" }).records) do
      seen[i] = ("%s s_q=%d %s"):format(record.case.pattern, record.case.s_q, record.parity.reason or record.parity.status)
    end
    assert.same({ "file s_q=1 pass", "file s_q=2 pass", "file s_q=3 case: s_q: got 3, wanted a whole number in 0 .. 2" }, seen)
    local table_text = sweep:table()
    assert.not_matches("h_q", table_text) -- one head count: what a refused cell does not know is no other value
    assert.matches("\n *3 +%- +%- +%- +%- +%- +%- +padded invalid, gather invalid +%- +%- +%-$", table_text)
  end)

  it("makes a record a path with every promised name", function()
    local sweep = small { argv = { "--s-q", "4" } }
    assert.equal(2, #sweep.records)
    for i, path in ipairs { "padded", "gather" } do
      local r = sweep.records[i]
      assert.equal(path, r.path)
      assert.equal("fewhead", r.provider)
      for _, key in ipairs { "s_q", "s_kv", "h_q", "h_pad", "d_qk", "d_v", "topk", "seed" } do
        assert.is_number(r.case[key], key)
      end
      assert.equal("uniform", r.case.pattern)
      assert.equal("contiguous", r.case.layout)
      assert.equal("pass", r.parity.status)
      assert.equal("reference", r.parity.against)
      for _, key in ipairs { "compared", "mean_abs", "max_abs", "rel", "cos_diff", "lse_max_abs" } do
        assert.is_number(r.parity[key], key)
      end
      for _, key in ipairs { "median_us", "p05_us", "p95_us", "n" } do assert.is_number(r.time[key], key) end
      assert.equal("hot", r.time.l2)
      assert.is_string(r.time.stop)
      for _, key in ipairs { "useful_flops", "executed_flops", "bytes" } do assert.is_number(r.work[key], key) end
      for _, key in ipairs { "id", "commit", "device", "driver", "date" } do assert.is_string(r.run[key], key) end
      assert.same({ "--s-q", "4" }, r.run.argv)
    end
    -- 64 heads for 8, which AMX computes as 16
    assert.is_true(sweep.records[1].work.executed_flops > 3 * sweep.records[2].work.executed_flops)
  end)

  it("writes the records as JSON lines that read back as they are", function()
    local told = {}
    local sweep = small { s_q = { 2, 4 }, out = folder .. "deep/sweep.jsonl", on_record = function(r) told[#told + 1] = r end }
    assert.same(sweep.records, told)
    local again = assert(fh.sweep.read(folder .. "deep/sweep.jsonl"))
    assert.same(sweep.records, again.records)
    assert.equal(tostring(sweep), tostring(again))
    assert.equal("sweep.jsonl", (helper.shell("ls -A " .. folder .. "deep")))
  end)

  it("records a cell that is refused, with the reason, and goes on", function()
    local sweep = small { heads = { 200, 8 } }
    assert.equal(4, #sweep.records)
    for i, path in ipairs { "padded", "gather" } do
      local r = sweep.records[i]
      assert.equal(path, r.path)
      assert.equal("invalid", r.parity.status)
      assert.equal("case: heads: got 200, wanted a whole number in 1 .. 128", r.parity.reason)
      assert.equal(200, r.case.h_q)
      assert.is_nil(r.time)
      json.encode(r)
    end
    assert.equal("pass", sweep.records[3].parity.status)
    assert.equal(2, #sweep:failures().records)
  end)

  it("records what the library refuses in the library's words", function()
    local sweep = small { heads = 64, group = 2 } -- 2 x 64 heads do not fit a tile
    assert.equal(2, #sweep.records)
    assert.equal("invalid", sweep.records[1].parity.status)
    assert.equal("padded did not run: group: got 2, wanted 0 .. 1 for h_q 64", sweep.records[1].parity.reason)
    assert.matches("padded invalid, gather invalid", tostring(sweep))
  end)

  it("gives a cell the options that its pattern takes, and no cell twice", function()
    local cells = {}
    local sweep = fh.sweep { s_q = 2, pattern = { "uniform", "local" }, ratio = { 1, 2 }, keep = 0.8, prior = 30, topk = 160,
      paths = { "padded", "gather" }, max_seconds = 0, min_samples = 5, on_cell = function(_, _, cell)
        cells[#cells + 1] = { cell.pattern, cell.ratio or 0, cell.keep or 0 }
      end }
    assert.same({ { "uniform", 0, 0 }, { "local", 1, 0.8 }, { "local", 2, 0.8 } }, cells)
    assert.equal(0, #sweep:failures().records)
    assert.equal("sweep: keep: has no effect with pattern uniform, csa; patterns that take it: local, blocks, pools",
      helper.refusal(function() local s = fh.sweep { s_q = 2, keep = 0.8, pattern = { "uniform", "csa" } } return s end))
    assert.equal("sweep: ratio: has no effect with pattern file; patterns that take it: csa, local, blocks, all",
      helper.refusal(function() local s = fh.sweep { s_q = 2, ratio = 2, indices = "x.npy" } return s end))
    assert.equal("sweep: indices: got nil, wanted the file of pattern file",
      helper.refusal(function() local s = fh.sweep { s_q = 2, pattern = "file" } return s end))
  end)

  it("measures the first cell once more as a control, without records of it", function()
    local function run(changes)
      local o = { s_q = { 2, 4 }, pattern = "uniform", s_kv = 64, topk = 16, paths = { "padded", "gather" }, seconds = 0,
        min_samples = 6, control = true }
      for key, v in pairs(changes or {}) do o[key] = v end
      return assert(fh.sweep(o))
    end
    local sweep = run()
    assert.same({ 2, 4, "s_q 2, uniform" }, { sweep.measured, #sweep.records, sweep.control.cell })
    assert.is_true(sweep.control.ratio > 0 and (sweep.control.path == "padded" or sweep.control.path == "gather"))
    assert.is_nil(run { s_q = 2 }.control) -- there is nothing between the two
    assert.is_nil(run { control = false }.control)
    local records = 0
    assert.is_nil(run {
      on_record = function() records = records + 1 end, interrupted = function() return records > 2 end,
    }.control)
    sweep.noise_floor, sweep.control = 0.05, { cell = "s_q 2", path = "gather", ratio = 1.04 }
    local function says(text) assert.is_truthy(sweep:summary():find(text .. "\n", 1, true), sweep:summary()) end
    says "\ncontrol: s_q 2 once more at the end: gather took 1.040 of its first time"
    sweep.control.ratio = 0.9
    says "gather took 0.900 of its first time, more than the noise floor: the machine changed"
  end)

  it("keeps the cells before an interrupt, in a whole file", function()
    local started = 0
    local sweep = small { s_q = "1:64:*2", out = folder .. "sweep.jsonl", on_cell = function() started = started + 1 end,
      interrupted = function() return started == 3 end }
    assert.is_true(sweep.interrupted)
    assert.equal(2, sweep.cells)
    assert.equal(7, sweep.planned)
    assert.equal(4, #sweep.records)
    assert.same(sweep.records, fh.sweep.read(folder .. "sweep.jsonl").records)
  end)

  it("leaves an earlier file alone when nothing was measured", function()
    write(folder .. "sweep.jsonl", "whole\n")
    local sweep = small { out = folder .. "sweep.jsonl", interrupted = function() return true end }
    assert.is_true(sweep.interrupted)
    assert.equal(0, #sweep.records)
    assert.equal("whole\n", read(folder .. "sweep.jsonl"))
    assert.equal("sweep.jsonl", (helper.shell("ls -A " .. folder)))
  end)

  it("refuses wrong options before anything runs", function()
    assert.matches('^sweep: unknown option "sq"; did you mean "s_q"%? known: ', helper.refusal(function() small { sq = 4 } end))
    assert.equal('sweep: s_q: got "4:x", wanted numbers, "a,b,c" or a range "first:last:step" or "first:last:*k"',
      helper.refusal(function() local s = fh.sweep { s_q = "4:x" } return s end))
    assert.equal("sweep: max_seconds: got -1, wanted a finite number >= 0",
      helper.refusal(function() local s = fh.sweep { s_q = 4, max_seconds = -1 } return s end))
    for options, message in pairs {
      [{ seconds = 5, max_seconds = 5 }] = "max_seconds: has no effect with seconds",
      [{ cell_seconds = 5 }] = "cell_seconds: has no effect without worker true",
      [{ retry_failed = true }] = "retry_failed: has no effect without store",
      [{ shard = "3/2" }] = 'shard: got "3/2", wanted "I/N" with I in 1 .. N',
      [{ seconds = { 1, 2 } }] = "seconds: got {1, 2}, wanted a finite number >= 0",
      [{ cold = { true, false } }] = "cold: got {true, false}, wanted true or false",
      [{ group = { 2, 4 } }] = "group: got {2, 4}, wanted a whole number in 0 .. 64",
      [{ paths = "padded" }] = 'paths: got "padded", wanted a table',
      [{ on_cell = 1 }] = "on_cell: got 1, wanted a function",
    } do
      options.s_q = 4
      assert.equal("sweep: " .. message, helper.refusal(function() local s = fh.sweep(options) return s end))
    end
    local sweep, err = small { out = "/dev/null/sweep.jsonl" }
    assert.is_nil(sweep)
    assert.equal("/dev/null/sweep.jsonl: Not a directory", err)
  end)
end)

describe("a sweep", function()
  it("filters by case, path, status and function", function()
    local sweep = small { s_q = { 2, 4 }, layout = { "vllm", "contiguous" } }
    local function count(wanted) return #sweep:filter(wanted).records end
    assert.equal(4, count { s_q = 2 })
    assert.equal(2, count { s_q = 2, layout = "vllm" })
    assert.equal(1, count { s_q = 2, layout = "vllm", path = "gather" })
    assert.equal(8, count { heads = 8, l2 = "hot", status = "pass" })
    assert.equal(0, count { heads = 16 })
    assert.equal(4, count(function(r) return r.case.s_q > 2 end))
  end)

  it("prints a row a case, naming only what varies", function()
    local text = tostring(small { s_q = { 2, 4 }, layout = { "vllm", "contiguous" } })
    local titles = {
      "layout", "s_q", "padded", "gather", "packed", "ratio", "verdict", "by", "parity", "max error", "waste padded",
      "waste native",
    }
    assert.matches("^" .. table.concat(titles, " +") .. "\n", text)
    assert.matches("\nvllm +2 .- pass ", text)
    assert.matches("\ncontiguous +4 .-[89]%d%.%d %% +%d+%.%d %%\nkernels: [%w_ ]+ padded, [%w_ ]+ gather$", text)
    assert.equal(6, select(2, (text .. "\n"):gsub("\n", "")))
    assert.is_nil(tostring(small()):find("layout"))
  end)

  it("takes a device or its name, in this process too", function()
    local sweep = fh.sweep { s_q = 2, heads = 8, pattern = "uniform", s_kv = 64, topk = 64, device = "cpu", max_seconds = 0 }
    assert.same({ 1, "cpu" }, { sweep.cells, sweep.run.kind })
    local none, err = fh.sweep { s_q = 2, device = "abacus" }
    assert.is_nil(none)
    assert.matches('^name: got "abacus"', err)
  end)

  it("has a column for every field that varies: ratio, topk, preset, heads, device", function()
    local some = require "spec.report.some_records"
    local path = helper.write(os.tmpname(), some.text {
      some.record(200, { path = "padded", case = { ratio = 1, preset = "a", prior = 0 } }),
      some.record(100, { case = { ratio = 1, preset = "a", prior = 0 },
        verdict = { verdict = "faster", ratio = 2, lo = 1.9, hi = 2.1 } }),
      some.record(300, { path = "padded", case = { ratio = 4, preset = "b", h_q = 4, topk = 512, prior = 5 },
        run = { device = "other" } }),
    })
    local measured = assert(fh.sweep.read(path))
    os.remove(path)
    assert.equal(table.concat({
      "device       preset  h_q  topk  case ratio  s_q    padded    gather  packed  ratio  verdict  by",
      "NVIDIA H200  a         8   640           1   64  200.0 us  100.0 us       -  2.00x  faster   gather",
      "other        b         4   512           4   64  300.0 us         -       -      -  -        -",
    }, "\n"), (measured:table():gsub(" +parity[^\n]*", ""):gsub(" +pass[^\n]*", "")))
  end)

  it("is what a gate is fitted to", function()
    local sweep = small { s_q = "2:16:*2", paths = { "padded", "native" } }
    local gate = assert(fh.gate.fit(sweep))
    assert.equal(1, #gate.curves)
    assert.equal(4, #gate.curves[1].points)
    for _, point in ipairs(gate.curves[1].points) do
      local quicker = math.min(point.gather.time.median_us, point.packed and point.packed.time.median_us or math.huge)
      assert.equal(quicker, point.native.time.median_us)
      assert.equal(point.native.verdict.verdict, point.verdict)
    end
    assert.equal(fh.device.default():has_path("packed"), gate.cost.costs ~= nil)
  end)
end)

describe("sweep.read", function()
  local good = json.encode {
    path = "padded", case = { s_q = 4, h_q = 8 }, parity = { status = "pass" }, work = { useful_flops = 1 },
    time = { median_us = 1, p05_us = 1, p95_us = 1, n = 5, l2 = "hot" },
  }

  it("refuses a line that is no record, by file and line", function()
    write(folder .. "x", good .. "\n\n[]\n")
    local sweep, err = fh.sweep.read(folder .. "x")
    assert.is_nil(sweep)
    assert.equal(folder .. "x:3: path: got nil, wanted a string", err)
  end)

  it("takes records without a time, and refuses an empty or missing file", function()
    write(folder .. "x", '{"path":"padded","case":{"s_q":4},"parity":{"status":"invalid"}}')
    assert.equal(1, #fh.sweep.read(folder .. "x").records)
    write(folder .. "x", "\n")
    assert.equal(folder .. "x: no record in it", (select(2, fh.sweep.read(folder .. "x"))))
    assert.equal(folder .. "y: No such file or directory", (select(2, fh.sweep.read(folder .. "y"))))
  end)
end)
