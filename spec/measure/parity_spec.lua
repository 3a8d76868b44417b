local device = require "fewhead.device.device"
local parity = require "fewhead.measure.parity"
local paths_of = require "fewhead.device.path"
local tensor = require "fewhead.device.tensor"
local helper = require "spec.helper"

local NAN, INF = 0 / 0, math.huge
local dev = device.default()

-- Outputs of the sizes of a small call, equal on every call: out [6, 3, 512], lse and max_logits [6, 3].
local S, H, D = 6, 3, 512
local function fresh(dtype)
  return {
    out = tensor.new(dev, dtype or "bf16", { S, H, D }):random { dist = "normal", seed = 7, sd = 0.1 },
    lse = tensor.new(dev, "f32", { S, H }):random { dist = "uniform", seed = 8, low = 5, high = 7 },
    max_logits = tensor.new(dev, "f32", { S, H }):random { dist = "uniform", seed = 9, low = 1, high = 2 },
  }
end

describe("parity.tolerance_of", function()
  local function problem(kind, values) return { device = { kind = kind }, case = { values = values } } end

  it("is FlashMLA's as it stands on a CPU, and on FlashMLA's own values everywhere", function()
    assert.is_nil(parity.tolerance_of(problem("cpu", "normal")))
    assert.is_nil(parity.tolerance_of(problem("cpu", "flashmla")))
    assert.is_nil(parity.tolerance_of(problem("cuda", "flashmla")))
  end)

  it("takes abs in proportion to the values' deviation where weights are rounded to bf16", function()
    assert.near(8e-3, parity.tolerance_of(problem("cuda", "normal")).out.abs, 1e-12)
  end)
end)

describe("parity.tolerance", function()
  it("is FlashMLA's", function()
    assert.same({ abs = 8e-4, rel = 3.01 / 128, cos = 7e-6 }, parity.tolerance.out)
    assert.same({ abs = 1e-6, rel = 2.01 / 65536, cos = 1e-7 }, parity.tolerance.lse)
    assert.same(parity.tolerance.lse, parity.tolerance.max_logits)
  end)
end)

describe("parity.compare", function()
  it("passes what differs by rounding to bf16 alone and counts what it compared", function()
    local r = parity.compare(fresh("bf16"), fresh("f32"))
    assert.equal("pass", r.status)
    assert.is_nil(r.reason)
    assert.equal(S * H * D, r.compared)
    assert.equal(0, r.failing)
    assert.near(0.00165, r.rel, 0.0001) -- the published error of rounding alone
    assert.is_true(r.cos_diff > 0 and r.cos_diff < 2e-6)
    assert.equal(0, r.lse_max_abs)
    assert.equal(0, r.max_logits_max_abs)
  end)

  it("finds exact agreement exact", function()
    local r = parity.compare(fresh(), fresh())
    assert.equal("pass", r.status)
    assert.same({ 0, 0, 0 }, { r.mean_abs, r.max_abs, r.rel })
  end)

  it("measures mean, largest, relative and cosine difference", function()
    local want = tensor.new(dev, "f32", { 1, 2, 2 }):from_table { { { 1, 2 }, { 2, 4 } } }
    local got = tensor.new(dev, "f32", { 1, 2, 2 }):from_table { { { 1, 2 }, { 2.5, 4 } } }
    local r = parity.compare({ out = got }, { out = want })
    assert.equal("fail", r.status)
    assert.equal(0.125, r.mean_abs)
    assert.equal(0.5, r.max_abs)
    assert.equal(0.5 / 5, r.rel)
    assert.near(1 - 2 * 26 / (27.25 + 25), r.cos_diff, 1e-15)
    assert.equal(1, r.failing)
    assert.same({ field = "out", row = 0, head = 1, dim = 0, got = 2.5, want = 2 }, r.worst)
    assert.equal("out: got 2.5, wanted 2 at row 0, head 1, dim 0; 1 of 4 values differ by abs >= 0.0008 and rel >= 0.0235156",
      r.reason)
  end)

  it("fails a value only when it breaks both the absolute and the relative limit", function()
    local function status(got, want)
      -- The rest of the array agrees, and is large enough for the cosine not to see one value.
      local a = tensor.new(dev, "f32", { 1, 1, 8 }, { fill = 100 })
      local b = tensor.new(dev, "f32", { 1, 1, 8 }, { fill = 100 })
      a:set(1, 1, 3, got)
      b:set(1, 1, 3, want)
      return parity.compare({ out = a }, { out = b }).status
    end
    assert.equal("pass", status(0.0007, 0))           -- within abs, far beyond rel
    assert.equal("fail", status(0.0009, 0))           -- beyond both: rel is taken over |0| + 1e-6
    assert.equal("pass", status(1.02, 1))             -- within rel, beyond abs
    assert.equal("fail", status(1.024, 1))            -- 3.01 / 128 = 0.02352
    assert.equal("pass", status(-1.02, -1))
    assert.equal("fail", status(-1, 1))
  end)

  it("holds lse and max_logits to their own limits", function()
    for _, name in ipairs { "lse", "max_logits" } do
      local got, want = fresh(), fresh()
      local base = want[name]:get(5, 2)
      got[name]:set(5, 2, base * (1 + 1.5 / 65536))
      assert.equal("pass", parity.compare(got, want).status)
      got[name]:set(5, 2, base * (1 + 2.5 / 65536))
      local r = parity.compare(got, want)
      assert.equal("fail", r.status)
      assert.matches(("^%s: got [%%d.]+, wanted [%%d.]+ at row 4, head 1; 1 of 18 values"):format(name), r.reason)
      assert.near(base * 2.5 / 65536, r[name .. "_max_abs"], 1e-6)
      assert.equal(name, r.worst.field)
      assert.is_nil(r.worst.dim)
    end
  end)

  it("fails on the cosine alone when every value is within its own limit", function()
    local want = tensor.new(dev, "f32", { 4, 2, 64 }):random { dist = "normal", seed = 1, sd = 1 }
    local got = tensor.new(dev, "f32", { 4, 2, 64 })
    local values = want:read()
    for i = 0, 511 do values[i] = values[i] * (1 + (i % 2 == 0 and 0.02 or -0.02)) end
    got:write(values)
    local r = parity.compare({ out = got }, { out = want })
    assert.equal("fail", r.status)
    assert.equal(0, r.failing)
    assert.matches("^out: cosine difference 0%.000%d+, wanted at most 7e%-06$", r.reason)
    assert.equal("pass", parity.compare({ out = got }, { out = want }, { tolerance = { out = { cos = 1e-3 } } }).status)
  end)

  it("compares the positions of NaN and infinity before values", function()
    for _, odd in ipairs { { NAN, "NaN" }, { INF, "inf" }, { -INF, "-inf" } } do
      local got, want = fresh(), fresh("f32")
      got.out:set(1, 1, 1, 50) -- a wrong value as well: the position is the worse news
      got.out:set(3, 2, 8, odd[1])
      local r = parity.compare(got, want)
      assert.equal("fail", r.status)
      assert.matches(("^out: got %s, wanted %%-?[%%d.]+ at row 2, head 1, dim 7$"):format(odd[2]:gsub("%-", "%%-")), r.reason)
      assert.same({ "out", 2, 1, 7, odd[2] }, { r.worst.field, r.worst.row, r.worst.head, r.worst.dim, r.worst.got })
      assert.is_true(r.max_abs < INF and r.mean_abs == r.mean_abs) -- sums are over finite pairs alone
      assert.equal(S * H * D - 1, r.compared)

      want.out:set(3, 2, 8, odd[1])
      got.out:set(1, 1, 1, want.out:get(1, 1, 1))
      assert.equal("pass", parity.compare(got, want).status)
    end
  end)

  it("tells +inf from -inf", function()
    local got, want = fresh(), fresh()
    got.lse:set(2, 3, -INF)
    want.lse:set(2, 3, INF)
    local r = parity.compare(got, want)
    assert.equal("lse: got -inf, wanted inf at row 1, head 2", r.reason)
    assert.same({ field = "lse", row = 1, head = 2, got = "-inf", want = "inf" }, r.worst)
  end)

  it("names the first place that was never written", function()
    for _, dtype in ipairs { "bf16", "f32" } do
      local got = fresh(dtype)
      local place = got.out:slice(1, 4, 5):slice(2, 3, 3) -- rows 3 and 4, head 2
      local poison = tensor.new(dev, dtype, { 2, 1, D }):fill_bytes(0xFF)
      assert(place:copy_from(poison))
      local r = parity.compare(got, fresh("f32"))
      assert.equal("fail", r.status)
      assert.equal("out: never written (or computed from poison) at row 3, head 2, dim 0 and at 1023 more places", r.reason)
      assert.equal("NaN", r.worst.got)
    end
    local got = fresh()
    got.lse:fill_bytes(0xFF)
    assert.equal("lse: never written (or computed from poison) at row 0, head 0 and at 17 more places",
      parity.compare(got, fresh()).reason)
  end)

  it("fails a poisoned place even where the oracle has NaN too", function()
    local got, want = fresh(), fresh("f32")
    want.out:set(1, 1, 1, NAN)
    assert(got.out:slice(3, 1, 1):copy_from(tensor.new(dev, "bf16", { S, H, 1 }):fill_bytes(0xFF)))
    assert.equal("out: never written (or computed from poison) at row 0, head 0, dim 0 and at 17 more places",
      parity.compare(got, want).reason)
  end)

  it("is invalid when the oracle itself was never written", function()
    local want = fresh("f32")
    want.out:fill_bytes(0xFF)
    local r = parity.compare(fresh(), want)
    assert.equal("invalid", r.status)
    assert.equal("out: the reference was never written at row 0, head 0, dim 0 and at 9215 more places", r.reason)
  end)

  it("is invalid when nothing was compared", function()
    local none = { out = tensor.new(dev, "bf16", { 0, H, D }) }
    local r = parity.compare(none, none)
    assert.same({ status = "invalid", reason = "nothing compared", compared = 0, failing = 0 }, r)
    local nans = { out = tensor.new(dev, "f32", { 1, 1, 4 }, { fill = NAN }) }
    assert.equal("nothing compared", parity.compare(nans, nans).reason)
  end)

  it("is invalid when the oracle is all zero, unless every row is empty", function()
    local function zeros(lse)
      return {
        out = tensor.new(dev, "f32", { 2, 2, 4 }, { fill = 0 }), lse = tensor.new(dev, "f32", { 2, 2 }, { fill = lse }),
      }
    end
    local r = parity.compare(zeros(1), zeros(1))
    assert.equal("invalid", r.status)
    assert.equal("the reference is all zero: agreement would say nothing", r.reason)
    assert.equal("invalid", parity.compare({ out = zeros(1).out }, { out = zeros(1).out }).status)
    r = parity.compare(zeros(INF), zeros(INF))
    assert.equal("pass", r.status)
    assert.equal(16, r.compared)
    assert.equal("pass", parity.compare(zeros(1), zeros(1), { zero = true }).status)
    local one = zeros(INF)
    one.lse:set(2, 2, 0)
    assert.equal("invalid", parity.compare(one, one).status)
  end)

  it("compares views with any strides", function()
    local wide = tensor.new(dev, "bf16", { S, 64, D }):fill_bytes(0xFF)
    local want = fresh("f32")
    local got = { out = wide:slice(2, 1, H) }
    assert(got.out:copy_from(fresh().out))
    assert.equal("pass", parity.compare(got, want).status)
    assert.equal("out: never written (or computed from poison) at row 0, head 3, dim 0 and at 3071 more places",
      parity.compare({ out = wide:slice(2, 1, H + 1) }, { out = tensor.new(dev, "f32", { S, H + 1, D }, { fill = 1 }) }).reason)
  end)

  it("names rows as in the whole problem when only some were compared", function()
    local got, want = fresh(), fresh()
    got.out:set(3, 1, 1, 9)
    local r = parity.compare(got, want, { rows = { first = 5, step = 11 } })
    assert.equal(5 + 2 * 11, r.worst.row)
    assert.matches("at row 27, head 0, dim 0;", r.reason, 1, true)
  end)

  it("refuses outputs of different shapes and unknown options on the caller's line", function()
    local function refused(message, ...)
      local line, packed = debug.getinfo(1, "l").currentline + 1, { ... }
      local ok, err = pcall(function() local r = parity.compare(unpack(packed)) return r end)
      assert.is_false(ok)
      assert.equal(("parity_spec.lua:%d: %s"):format(line, message), err:match("parity_spec.*"))
    end
    refused("parity.compare: out: got shape 6 x 3 x 512, wanted 6 x 2 x 512", fresh(), { out = fresh().out:slice(2, 1, 2) })
    refused("parity.compare: want.out: got nil, wanted a table", fresh(), {})
    refused('parity.compare: unknown option "tolerances"; did you mean "tolerance"? known: tolerance, rows, zero', fresh(),
      fresh(), { tolerances = {} })
    refused('parity: tolerance: unknown option "outs"; did you mean "out"? known: out, lse, max_logits', fresh(), fresh(),
      { tolerance = { outs = {} } })
    refused('parity: tolerance.out: unknown option "max"; known: abs, rel, cos', fresh(), fresh(),
      { tolerance = { out = { max = 1 } } })
    local lists = { out = tensor.new(dev, "i32", { S, H, D }) }
    refused('parity.compare: out: got dtype "i32", wanted bf16 or f32', lists, fresh())
  end)
end)

describe("parity.sample_rows", function()
  -- The rows of a sample, counted from 1.
  local function rows(...)
    local first, step, count = parity.sample_rows(...)
    return first, step, count, first + (count - 1) * step
  end

  it("spreads rows over the whole chunk and ends on its last row", function()
    assert.same({ 1, 1, 10, 10 }, { rows(10, 10) })
    assert.same({ 4, 4, 25, 100 }, { rows(100, 25) })
    assert.same({ 8192, 8192, 1, 8192 }, { rows(8192, 1) })
    for _, s_q in ipairs { 1, 2, 63, 64, 65, 8191, 8192 } do
      for count = 1, 70 do
        local first, _, n, last = rows(s_q, count, 8)
        assert.is_true(first >= 1 and n >= 1 and n <= count and last == s_q)
      end
    end
  end)

  it("visits every place of a packed group", function()
    for _, group in ipairs { 1, 2, 3, 4, 5, 6, 8, 12, 16, 64 } do
      local first, step, count = parity.sample_rows(8192, 256, group)
      local seen, places = {}, 0
      for i = 0, count - 1 do
        local place = (first + i * step) % group
        if not seen[place] then seen[place], places = true, places + 1 end
      end
      assert.equal(group, places)
    end
  end)
end)

-- ---- On problems

local case = require "fewhead.case.case"

local small = { heads = 8, s_q = 21, pattern = "local", window = 16, index_topk = 48, prior = 100, layout = "vllm", seed = 3 }

local function problem_of(options)
  return assert(case(options):problem(dev))
end

-- The problem with a path that does something wrong: after(path, outputs, counters) changes what a run left.
local function tampered(problem, after)
  local copy = { outputs = function(_, o) return problem:outputs(o) end, intact = function(_, o) return problem:intact(o) end }
  function copy.rows(_, first, step) return problem:rows(first, step) end
  function copy.run(_, path, outputs, opts)
    local counters, err = problem:run(path, outputs, opts)
    if counters then after(path, outputs, counters) end
    return counters, err
  end
  return setmetatable(copy, { __index = problem })
end

-- Rounds out to 3 bits less: far outside tolerance, close enough to look right.
local function blur(outputs)
  local values = outputs.out:read()
  for i = 0, outputs.out.numel - 1 do
    local v = outputs.out.dtype == "bf16" and tensor.to_float(values[i]) or values[i]
    v = v * 1.05
    values[i] = outputs.out.dtype == "bf16" and tensor.to_bf16(v) or v
  end
  outputs.out:write(values)
end

describe("parity.check", function()
  it("passes every path against the reference and against padded, in every layout", function()
    for _, layout in ipairs { "contiguous", "vllm", "strided", "offset" } do
      local options = { layout = layout }
      for key, value in pairs(small) do options[key] = options[key] or value end
      local problem = problem_of(options)
      for _, path in ipairs { "reference", unpack(helper.paths(dev)) } do
        for _, against in ipairs { "reference", "padded" } do
          local r = parity.check(problem, path, { against = against })
          assert.equal("pass", r.status, r.reason)
          assert.equal(21 * 8 * 512, r.compared)
          assert.same({ path, against, path }, { r.path, r.against, r.work.path })
          assert.is_nil(r.sampled)
          assert.is_true(r.max_abs > 0 or path == "padded" and against == "padded")
        end
      end
    end
  end)

  it("says how many rows a sample compared, and names a bad row by its place in the whole", function()
    local problem = tampered(problem_of(small), function(path, outputs)
      if path == "gather" then outputs.out:set(21, 8, 512, 7) end -- the last element of all
    end)
    assert.equal("pass", parity.check(problem, "padded", { sample = 5 }).status)
    local r = parity.check(problem, "gather", { sample = 5 })
    assert.equal(5, r.sampled)
    assert.equal(5 * 8 * 512, r.compared)
    assert.equal("fail", r.status)
    assert.same({ 20, 7, 511, 7 }, { r.worst.row, r.worst.head, r.worst.dim, r.worst.got })
    assert.is_nil(parity.check(problem, "padded", { sample = 21 }).sampled)
  end)

  it("finds an unwritten place that no sampled row shows", function()
    local whole = problem_of(small)
    local problem = tampered(whole, function(path, outputs)
      if path ~= "gather" then return end
      assert(outputs.lse:slice(1, 20, 20):copy_from(assert(whole:outputs()).lse:slice(1, 20, 20)))
    end)
    local r = parity.check(problem, "gather", { sample = 2 })
    assert.equal("fail", r.status)
    assert.equal("lse: never written (or computed from poison) at row 19, head 0 and at 7 more places", r.reason)
    assert.equal(2, r.sampled)
  end)

  it("fails a path that left rows unwritten", function()
    local whole = problem_of(small)
    local problem = tampered(whole, function(path, outputs)
      if path ~= "gather" then return end
      assert(outputs.out:slice(1, 21, 21):copy_from(assert(whole:outputs()).out:slice(1, 21, 21)))
    end)
    local r = parity.check(problem, "gather")
    assert.equal("fail", r.status)
    assert.equal("out: never written (or computed from poison) at row 20, head 0, dim 0 and at 4095 more places", r.reason)
  end)

  it("fails a path that wrote padding heads or rows outside the chunk", function()
    local problem = tampered(problem_of(small), function(path, outputs)
      if path == "padded" then outputs.canaries.out.whole:slice(2, 9, 9):slice(1, 6, 6):fill(0) end
    end)
    assert.equal("pass", parity.check(problem, "gather").status)
    local r = parity.check(problem, "padded")
    assert.equal("fail", r.status)
    assert.equal("out: written outside its elements, at row 0, head 8, column 0", r.reason)
    assert.equal("pass", parity.check(problem, "padded", { canaries = false }).status)
  end)

  it("fails when another path ran than was asked for", function()
    local problem = tampered(problem_of(small), function(path, _, counters)
      if path == "padded" then counters.path = "gather" end
    end)
    assert.equal("asked for padded, gather ran", parity.check(problem, "padded").reason)
    assert.equal("pass", parity.check(problem, "auto").status)
  end)

  it("calls a refused call invalid and says why", function()
    local r = parity.check(problem_of(small), "gather", { group = 9 })
    assert.equal("invalid", r.status)
    assert.matches("^gather did not run: group: got 9", r.reason)
    assert.equal(0, r.compared)
  end)

  it("runs packed on a plan that was built before", function()
    if not dev:has_path("packed") then pending("the device does not pack") end
    local problem = problem_of(small)
    for _, group in ipairs { 1, 3, 8 } do
      local plan = assert(require("fewhead.device.plan").build(problem, { group = group }))
      local r = parity.check(problem, "packed", { plan = plan })
      assert.equal("pass", r.status, r.reason)
      plan:free()
    end
  end)

  it("refuses wrong arguments on the caller's line", function()
    local problem = problem_of(small)
    local function refused(message, ...)
      local line, packed = debug.getinfo(1, "l").currentline + 1, { ... }
      local ok, err = pcall(function() local r = parity.check(unpack(packed)) return r end)
      assert.is_false(ok)
      assert.equal(("parity_spec.lua:%d: %s"):format(line, message), err:match("parity_spec.*"))
    end
    refused("parity.check: sample: got 0, wanted a whole number >= 1", problem, "gather", { sample = 0 })
    refused('parity.check: against: got "gather", wanted one of reference, padded', problem, "gather", { against = "gather" })
    refused('parity.check: path: got "gathr", wanted one of ' .. table.concat(paths_of.names(), ", ")
      .. '; did you mean "gather"?',
      problem, "gathr")
    refused('parity.check: problem: got "x", wanted a table', "x", "gather")
    refused('parity: tolerance: unknown option "otu"; did you mean "out"? known: out, lse, max_logits', problem, "gather",
      { tolerance = { otu = {} } })
  end)

  it("uses an answer of the oracle again", function()
    local runs = 0
    local problem = tampered(problem_of(small), function(path) if path == "reference" then runs = runs + 1 end end)
    local want = assert(parity.expected(problem))
    for _, path in ipairs(helper.paths(dev)) do
      assert.equal("pass", parity.check(problem, path, { want = want }).status)
    end
    assert.equal(1, runs)
  end)

  it("takes empty rows and heads with a sink of +inf for what they are", function()
    local r = parity.check(problem_of { s_q = 3, heads = 8, pattern = "uniform", s_kv = 9, topk = 4, invalid_rows = 1 }, "gather")
    assert.equal("pass", r.status)
    assert.equal(0, r.max_abs)
    local problem = problem_of { s_q = 3, heads = 1, pattern = "uniform", s_kv = 9, topk = 4, sink = "normal" }
    problem.attn_sink:fill(INF)
    assert.equal("pass", parity.check(problem, "gather").status)
  end)

  it("is invalid for a chunk without rows", function()
    local r = parity.check(problem_of { s_q = 0, heads = 8, pattern = "uniform", s_kv = 9, topk = 4 }, "gather")
    assert.equal("invalid", r.status)
    assert.equal("nothing compared", r.reason)
  end)
end)

describe("parity.judge_whole", function()
  local six_rows = { s_q = 6, pattern = "csa", window = 8, index_topk = 24, prior = 40, layout = "vllm" }

  -- The verdict on gather's outputs after spoil(outputs).
  local function judged(spoil, sample, options)
    local p = assert(require("fewhead.case.case")(six_rows):problem(require("fewhead.device.device").default()))
    local want, outputs = assert(parity.expected(p, { sample = sample })), assert(p:outputs())
    assert(p:run("gather", outputs))
    spoil(outputs)
    local result = parity.judge_whole(p, outputs, want, options)
    want.free()
    return result
  end

  it("passes what is right", function()
    assert.equal("pass", judged(function() end).status)
  end)

  it("fails for what was written around the outputs, unless told not to look", function()
    local function spill(outputs)
      helper.poke(outputs.out, 0, 0)
    end
    assert.same({ "fail", "out: written outside its elements" }, { judged(spill).status, judged(spill).reason:match("^[^,]*") })
    assert.equal("pass", judged(spill, nil, { canaries = false }).status)
  end)

  it("fails for rows that were not compared and hold the poison", function()
    assert.equal("pass", judged(function() end, 1).status)
    local result = judged(function(outputs)
      local bytes = outputs.lse.stride[1] * 4
      for i = 0, 3 do helper.poke(outputs.lse, outputs.lse.offset * 4 + bytes + i, 0xff) end
    end, 1)
    assert.equal("fail", result.status)
    assert.matches("^lse: never written %(or computed from poison%) at row 1, head 0", result.reason)
  end)
end)

describe("parity.affordable_rows", function()
  it("is nil where the whole is cheap enough, else the share of rows that is", function()
    local problem = problem_of(small)
    local as_on_cpu = problem.useful_flops / (dev.kind == "cpu" and 1 or 500) -- what a GPU does in the time of a CPU's one flop
    assert.is_nil(parity.affordable_rows(problem, as_on_cpu * 1.001))
    assert.equal(10, parity.affordable_rows(problem, as_on_cpu / 2))
    assert.equal(1, parity.affordable_rows(problem, as_on_cpu / 1000))
  end)
end)

describe("parity.three_way", function()
  -- The verdict when the named paths are blurred.
  local function verdict(...)
    local bad = {}
    for _, path in ipairs { ... } do bad[path] = true end
    local problem = tampered(problem_of(small), function(path, outputs) if bad[path] then blur(outputs) end end)
    local r = parity.three_way(problem, "gather")
    return r.verdict, r
  end

  it("says which side is wrong", function()
    assert.equal("agree", (verdict()))
    assert.equal("padded is wrong", (verdict "padded"))
    assert.equal("gather is wrong", (verdict "gather"))
    assert.equal("reference is doubtful", (verdict "reference"))
    assert.equal("reference is doubtful", (verdict("padded", "gather")))
  end)

  it("shows the three results", function()
    local _, r = verdict "padded"
    assert.same({ "fail", "pass", "fail" }, { r.padded.status, r.native.status, r.between.status })
    assert.same({ "reference", "reference", "padded" }, { r.padded.against, r.native.against, r.between.against })
  end)

  it("says so when no two agree", function()
    local problem = tampered(problem_of(small), function(path, outputs)
      if path == "padded" then blur(outputs) end
      if path == "gather" then blur(outputs) blur(outputs) end
    end)
    assert.equal("no two agree", parity.three_way(problem, "gather").verdict)
  end)

  it("decides nothing on nothing", function()
    local problem = problem_of { s_q = 0, heads = 8, pattern = "uniform", s_kv = 9, topk = 4 }
    assert.equal("not decided", parity.three_way(problem, "gather").verdict)
  end)
end)
