local gate = require "fewhead.decide.gate"
local ffi = require "ffi"

ffi.cdef [[
int setenv(const char *name, const char *value, int overwrite);
int unsetenv(const char *name);
]]

local PREFILL, MIN_SQ = "VLLM_DSV41_FEWHEAD_PREFILL", "VLLM_DSV41_FEWHEAD_MIN_SQ"

-- What an engine with these settings does with a chunk of 8 local heads.
local function native(prefill, min_sq, s_q)
  return (gate.parse(prefill, min_sq)):native(8, s_q)
end

local function message(f)
  local ok, err = pcall(f)
  assert.is_false(ok)
  return (err:match("gate_spec%.lua:%d+: (.*)$"))
end

describe("the published gate", function()
  it("takes native heads from 2048 rows up unless told otherwise", function()
    assert.equal(2048, gate.default_min_sq)
    for _, unset in ipairs { false, "" } do
      assert.is_false(native(unset or nil, unset or nil, 2047))
      assert.is_true(native(unset or nil, unset or nil, 2048))
      assert.is_true(native(unset or nil, unset or nil, 8192))
    end
  end)

  it("takes every chunk at MIN_SQ 0", function()
    assert.is_true(native(nil, "0", 0))
    assert.is_true(native(nil, "0", 1))
    assert.is_true(native(nil, "0", 8192))
  end)

  it("takes MIN_SQ as it stands", function()
    assert.is_false(native(nil, "512", 511))
    assert.is_true(native(nil, "512", 512))
    assert.is_false(native(nil, "9007199254740991", 8192))
  end)

  it("is off at PREFILL=0, whatever MIN_SQ says, and on in every spelling of on", function()
    for _, off in ipairs { "0", "false", "no", "off", "FALSE", "No", "oFF" } do
      assert.is_false(native(off, "0", 8192), off)
    end
    for _, on in ipairs { "1", "true", "yes", "on", "TRUE", "Yes", "oN" } do
      assert.is_true(native(on, "0", 1), on)
    end
  end)

  it("wants 0 < local heads < padded heads", function()
    local always = gate.new { min_sq = 0 }
    assert.is_false(always:native(0, 8192))
    assert.is_false(always:native(-8, 8192))
    assert.is_true(always:native(1, 8192))
    assert.is_true(always:native(63, 8192))
    assert.is_false(always:native(64, 8192))
    assert.is_true(always:native(65, 8192))
    assert.is_false(always:native(128, 8192))
    assert.is_false(always:native(129, 8192))
    -- what the engine pads to can be said
    assert.is_false(always:native(8, 8192, 8))
    assert.is_false(always:native(9, 8192, 8))
    assert.is_true(always:native(64, 8192, 128))
  end)

  it("keeps the default and warns once a value for what it cannot read", function()
    for _, bad in ipairs { "2", "maybe", " 1", "1 ", "y", "tru", "-1", "enabled" } do
      local g, warning = gate.parse(bad, nil)
      assert.is_true(g.enabled, bad)
      assert.equal(("%s: got %q, wanted 1/0, true/false, yes/no or on/off; using 1"):format(PREFILL, bad), warning)
    end
    for _, bad in ipairs { "-1", "1.5", "2k", "0x10", " 64", "64 ", "1e3", "nan", "+5", "99999999999999999999" } do
      local g, warning = gate.parse(nil, bad)
      assert.equal(2048, g.min_sq, bad)
      assert.equal(("%s: got %q, wanted a whole number >= 0; using 2048"):format(MIN_SQ, bad), warning)
    end
    local _, both = gate.parse("x", "y")
    assert.equal(PREFILL .. ': got "x", wanted 1/0, true/false, yes/no or on/off; using 1\n' .. MIN_SQ
      .. ': got "y", wanted a whole number >= 0; using 2048', both)
    assert.is_nil(select(2, gate.parse("on", "64")))
  end)
end)

describe("gate.from_env", function()
  local stderr, said

  before_each(function()
    said, stderr = {}, io.stderr
    io.stderr = { write = function(_, ...) said[#said + 1] = table.concat { ... } end } -- luacheck: ignore
  end)

  after_each(function()
    io.stderr = stderr -- luacheck: ignore
    ffi.C.unsetenv(PREFILL)
    ffi.C.unsetenv(MIN_SQ)
  end)

  it("reads the environment", function()
    ffi.C.setenv(MIN_SQ, "256", 1)
    local g, warning = gate.from_env()
    assert.equal(256, g.min_sq)
    assert.is_true(g.enabled)
    assert.is_nil(warning)
    ffi.C.setenv(PREFILL, "Off", 1)
    assert.is_false(gate.from_env().enabled)
  end)

  it("returns the warning, and prints it once a process where asked to", function()
    ffi.C.setenv(MIN_SQ, "many", 1)
    local line = MIN_SQ .. ': got "many", wanted a whole number >= 0; using 2048'
    assert.equal(line, (select(2, gate.from_env())))
    assert.same({}, said)
    assert.equal(line, (select(2, gate.from_env { warn = true })))
    assert.equal(line, (select(2, gate.from_env { warn = true })))
    assert.same({ "fewhead: " .. line .. "\n" }, said)
    ffi.C.setenv(MIN_SQ, "lots", 1)
    gate.from_env { warn = true }
    assert.equal(2, #said)
  end)
end)

describe("gate.padded_heads", function()
  it("is what a 64- or 128-head kernel computes", function()
    for heads, want in pairs { [-1] = 0, [0] = 0, [1] = 64, [64] = 64, [65] = 128, [128] = 128, [129] = 0 } do
      assert.equal(want, gate.padded_heads(heads))
    end
  end)
end)

describe("gate:explain", function()
  local function why(options, s_q, heads, padded_heads)
    local e = gate.new(options):explain { s_q = s_q, heads = heads, padded_heads = padded_heads }
    return tostring(e)
  end

  it("says which path and why, for every reason there is", function()
    assert.equal("native: s_q 2048 >= MIN_SQ 2048, and 8 of 64 heads are real", why({}, 2048, 8))
    assert.equal("padded: s_q 2047 < MIN_SQ 2048", why({}, 2047, 8))
    assert.equal("native: MIN_SQ 0 takes every chunk, and 96 of 128 heads are real", why({ min_sq = 0 }, 1, 96))
    assert.equal("padded: the native path is off", why({ enabled = false }, 8192, 8))
    assert.equal("padded: 0 local heads: nothing to run natively", why({}, 8192, 0))
    assert.equal("padded: 64 local heads fill the 64 padded ones: no head is padding", why({}, 8192, 64))
    assert.equal("padded: 65 local heads fill the 64 padded ones: no head is padding", why({}, 8192, 65, 64))
    assert.equal("padded: 129 local heads are more than the 128 a padded kernel takes", why({}, 8192, 129))
  end)

  it("agrees with native() on every corner", function()
    for _, options in ipairs { {}, { min_sq = 0 }, { enabled = false } } do
      local g = gate.new(options)
      for _, heads in ipairs { -1, 0, 1, 8, 63, 64, 65, 127, 128, 129 } do
        for _, s_q in ipairs { 0, 1, 2047, 2048 } do
          assert.equal(g:native(heads, s_q) and "native" or "padded", g:explain({ s_q = s_q, heads = heads }).path)
        end
      end
    end
  end)

  it("refuses what is no chunk on the caller's line", function()
    local g = gate.new {}
    assert.equal("gate:explain: s_q: got nil, wanted a whole number in 0 .. 9007199254740991",
      message(function() g:explain { heads = 8 } end))
    assert.equal("gate:explain: heads: got nil, wanted a whole number in -2147483647 .. 2147483647",
      message(function() g:explain { s_q = 8 } end))
    assert.equal('gate:explain: unknown option "head"; did you mean "heads"? known: s_q, heads, padded_heads',
      message(function() g:explain { s_q = 1, head = 8 } end))
    assert.equal("gate:native: s_q: got -1, wanted a whole number in 0 .. 9007199254740991",
      message(function() g:native(8, -1) end))
    assert.equal("gate.new: min_sq: got NaN, wanted a whole number in 0 .. 9007199254740991",
      message(function() gate.new { min_sq = 0 / 0 } end))
    assert.equal("gate.new: enabled: got 1, wanted true or false", message(function() gate.new { enabled = 1 } end))
  end)
end)

describe("gate.tp", function()
  it("deals heads that divide", function()
    local plan = assert(gate.tp(64, 8))
    assert.equal(8, plan.n_local_heads)
    assert.equal(0, plan.virtual)
    assert.same({ first = 56, real = 8, virtual = 0 }, plan.ranks[8])
  end)

  it("refuses a rest, or rounds up with virtual heads", function()
    local plan, err = gate.tp(65, 8)
    assert.is_nil(plan)
    assert.equal("heads: got 65 over 8 ranks, wanted a multiple, or virtual_heads 1 for 9 a rank", err)
    plan = assert(gate.tp(65, 8, { virtual = true }))
    assert.equal(9, plan.n_local_heads)
    assert.equal(7, plan.virtual)
    assert.same({ first = 63, real = 2, virtual = 7 }, plan.ranks[8])
  end)

  it("never loses a head", function()
    for heads = 1, 130 do
      for ranks = 1, 17 do
        local plan = assert(gate.tp(heads, ranks, { virtual = true }))
        local real, virtual = 0, 0
        for r, rank in ipairs(plan.ranks) do
          assert.equal((r - 1) * plan.n_local_heads, rank.first)
          assert.equal(plan.n_local_heads, rank.real + rank.virtual)
          real, virtual = real + rank.real, virtual + rank.virtual
        end
        assert.equal(ranks, #plan.ranks)
        assert.equal(heads, real)
        assert.equal(plan.virtual, virtual)
      end
    end
  end)
end)

-- ---- Fit ---------------------------------------------------------------------------------------------------------------------

-- A record as a sweep writes it; +-1 % of spread over 9 runs unless told otherwise.
local function record(path, s_q, us, changes)
  local c = changes or {}
  local spread = c.spread or 0.01
  local executed = s_q * 575 * 2 * (512 + 512) * (path == "padded" and 64 or path == "gather" and 8 or 13)
  return {
    path = path, provider = "fewhead",
    case = { s_q = s_q, s_kv = 8192, h_q = c.h_q or 8, h_pad = 64, d_qk = 512, d_v = 512, topk = 640, seed = 1,
      pattern = c.pattern or "csa", layout = c.layout or "vllm" },
    parity = { status = c.status or "pass" },
    time = { median_us = us, p05_us = us * (1 - spread), p95_us = us * (1 + spread), n = 9, l2 = c.l2 or "hot" },
    work = { useful_flops = s_q * 575 * 2 * 1024 * 8, executed_flops = executed, bytes = 1 },
    run = { device = c.device or "cpu" },
  }
end

-- Records of padded (100 us) and gather at each s_q, with these speed-ups.
local function records(ratios, changes)
  local list, sizes = {}, {}
  for s_q in pairs(ratios) do sizes[#sizes + 1] = s_q end
  table.sort(sizes)
  for _, s_q in ipairs(sizes) do
    list[#list + 1] = record("padded", s_q, 100 * s_q, changes)
    list[#list + 1] = record("gather", s_q, 100 * s_q / ratios[s_q], changes)
  end
  return list
end

describe("gate.fit", function()
  it("finds the smallest s_q from which native is never slower, and where it crosses", function()
    local g = assert(gate.fit(records { [64] = 0.5, [128] = 0.5, [256] = 2, [512] = 2 }))
    assert.equal(256, g.min_sq)
    assert.is_true(g.enabled)
    -- ln 0.5 .. ln 2: half way between ln 128 and ln 256
    assert.is_true(math.abs(g.crossover.at - 128 * math.sqrt(2)) < 1e-9)
    assert.is_true(g.crossover.lo < g.crossover.at and g.crossover.at < g.crossover.hi)
    assert.is_true(g.crossover.hi / g.crossover.lo < 1.02)
    assert.is_nil(g.crossover.lo_open)
    assert.is_nil(g.crossover.hi_open)
    assert.equal("export VLLM_DSV41_FEWHEAD_MIN_SQ=256", g:export_line())
    assert.equal("csa vllm hot: native pays from s_q 181 on (180 to 182)\nrecommended MIN_SQ: 256\n"
      .. "export VLLM_DSV41_FEWHEAD_MIN_SQ=256", tostring(g))
    assert.is_false(g:native(8, 255))
    assert.is_true(g:native(8, 256))
  end)

  it("widens the interval with the spread", function()
    local ratios = { [64] = 0.5, [128] = 0.5, [256] = 2, [512] = 2 }
    local narrow, wide = gate.fit(records(ratios)), gate.fit(records(ratios, { spread = 0.2 }))
    assert.equal(narrow.crossover.at, wide.crossover.at)
    assert.is_true(wide.crossover.lo < narrow.crossover.lo and narrow.crossover.hi < wide.crossover.hi)
  end)

  it("says when an end of the interval lies outside what was measured", function()
    -- 5 % better or worse cannot be told at a spread of 20 %
    local g = gate.fit(records({ [64] = 0.95, [128] = 0.5, [256] = 2, [512] = 1.05 }, { spread = 0.2 }))
    assert.equal(256, g.min_sq)
    assert.is_nil(g.crossover.lo_open)
    -- a loss that may be a win, and nothing measured before it
    g = gate.fit(records({ [64] = 0.95, [128] = 2 }))
    assert.is_nil(g.crossover.lo_open)
    local list = records({ [64] = 0.95 })
    for _, r in ipairs(records { [128] = 2 }) do list[#list + 1] = r end
    list[2].verdict = { against = "padded", verdict = "slower", ratio = 0.95, lo = 0.9, hi = 1.01 }
    g = gate.fit(list)
    assert.is_true(g.crossover.lo_open)
    assert.matches("below 64", tostring(g))
  end)

  it("is always where native is never slower", function()
    local g = gate.fit(records { [64] = 1.001, [128] = 2, [256] = 3 })
    assert.equal("always", g.crossover)
    assert.equal(0, g.min_sq)
    assert.equal("csa vllm hot: always: native is never slower from s_q 64 to 256\nrecommended MIN_SQ: 0\n"
      .. "export VLLM_DSV41_FEWHEAD_MIN_SQ=0", tostring(g))
  end)

  it("is never where native wins nowhere", function()
    for _, ratio in ipairs { 0.5, 1.001 } do
      local g = gate.fit(records { [64] = 0.5, [128] = 0.7, [256] = ratio })
      assert.equal("never", g.crossover)
      assert.is_false(g.enabled)
      assert.is_false(g:native(8, 8192))
      assert.equal("csa vllm hot: never: native has no lasting win from s_q 64 to 256\nrecommended: native off\n"
        .. "export VLLM_DSV41_FEWHEAD_PREFILL=0", tostring(g))
    end
  end)

  it("says when the data are not monotone", function()
    local g = gate.fit(records { [64] = 2, [128] = 0.5, [256] = 2 })
    assert.equal(256, g.min_sq)
    assert.same({ "csa vllm: not monotone: native wins at s_q 64 and loses at 128" }, g.notes)
    g = gate.fit(records { [64] = 2, [128] = 2, [256] = 0.5 })
    assert.equal("never", g.crossover)
    assert.same({ "csa vllm: not monotone: native wins at s_q 128 and loses at 256",
      "csa vllm: native loses at the largest s_q measured: no MIN_SQ keeps its wins without its losses" }, g.notes)
  end)

  it("gives no answer that an unclear point could turn", function()
    local noisy = { spread = 0.2 } -- 14 % either way
    local list = records({ [64] = 0.95 }, noisy)
    for _, r in ipairs(records { [128] = 2 }) do list[#list + 1] = r end
    local g = gate.fit(list) -- always, or from 128 on?
    assert.is_true(g.undecided)
    assert.is_false(g.enabled)
    assert.is_nil(g:export_line())
    assert.equal("csa vllm hot: not decided from s_q 64 to 128: measure longer (--seconds)\n"
      .. "note: csa vllm: unclear at s_q 64, 0.95x (0.82 to 1.10)\n"
      .. "not decided, measure longer (--seconds): no recommendation", tostring(g))
    assert.is_true(gate.fit(records({ [64] = 0.5, [128] = 1.05, [256] = 1.05 }, noisy)).undecided) -- from 128 on, or never?
    -- a large win that too few samples leave unclear is no reason to turn native off
    list = records { [16] = 14.4 }
    list[2].verdict = { against = "padded", verdict = "unclear", ratio = 14.4, lo = 3.5, hi = 16 }
    assert.is_true(gate.fit(list).undecided)
    assert.same({ "csa vllm: unclear at s_q 16, 14.40x (3.50 to 16.00)" }, gate.fit(list).notes)
  end)

  it("takes no difference within the noise floor for a win or a loss", function()
    local function verdict(ratio, floor)
      local list = records { [64] = ratio }
      for _, r in ipairs(list) do r.time.noise_floor = floor end
      return assert(gate.fit(list)).curves[1].points[1].verdict
    end
    assert.equal("faster", verdict(1.2))
    assert.equal("faster", verdict(1.2, 0.1))
    assert.equal("unclear", verdict(1.2, 0.2))
    assert.equal("slower", verdict(0.8, 0.1))
    assert.equal("unclear", verdict(0.8, 0.3))
  end)

  it("takes an unclear point that is a tie for what it is, and one before the last loss for nothing", function()
    assert.equal(0, gate.fit(records { [64] = 0.999, [128] = 2 }).min_sq)
    assert.equal("never", gate.fit(records { [64] = 0.5, [128] = 1.001 }).crossover)
    assert.equal("never", gate.fit(records { [64] = 2, [128] = 0.5, [256] = 1.001 }).crossover) -- its win does not last
    local list = records({ [64] = 0.95 }, { spread = 0.2 })
    for _, r in ipairs(records { [128] = 0.5, [256] = 2 }) do list[#list + 1] = r end
    assert.equal(256, gate.fit(list).min_sq)
  end)

  it("lets an open case stand before a threshold and behind a loss", function()
    local list = records { [64] = 2 }
    for _, r in ipairs(records({ [64] = 1.05 }, { spread = 0.2, layout = "contiguous" })) do list[#list + 1] = r end
    assert.equal("contiguous", gate.fit(list).decides.layout)
    for _, r in ipairs(records({ [64] = 0.5 }, { pattern = "uniform" })) do list[#list + 1] = r end
    assert.is_nil(gate.fit(list).undecided)
    assert.equal("export VLLM_DSV41_FEWHEAD_PREFILL=0", gate.fit(list):export_line())
  end)

  it("takes the better native path at each s_q, or the one asked for", function()
    local list = records { [64] = 0.5, [128] = 2 }
    list[#list + 1] = record("packed", 64, 100 * 64 / 3)
    list[#list + 1] = record("packed", 128, 100 * 128 / 1.5)
    assert.equal(0, gate.fit(list).min_sq)
    local gather = gate.fit(list, { native = "gather" })
    assert.equal(128, gather.min_sq)
    assert.equal(100 * 64 * 2, gather.cost:at("native", 64)) -- its costs are those of the path asked for
    assert.equal(0, gate.fit(list, { native = "packed" }).min_sq)
  end)

  it("lets the most careful of several cases decide", function()
    local list = records { [64] = 2, [128] = 2 }
    for _, r in ipairs(records({ [64] = 0.5, [128] = 2 }, { layout = "contiguous" })) do list[#list + 1] = r end
    local g = gate.fit(list)
    assert.equal(128, g.min_sq)
    assert.equal("contiguous", g.decides.layout)
    for _, r in ipairs(records({ [64] = 0.5, [128] = 0.5 }, { pattern = "uniform" })) do list[#list + 1] = r end
    g = gate.fit(list)
    assert.is_false(g.enabled)
    assert.equal("uniform", g.decides.pattern)
    assert.equal(3, #g.curves)
  end)

  -- Two cells of one s_q where native is 8.9 and 11 times as fast. Taken for one point, padded of the second stands beside native
  -- of the first: 265.93 times, a loss of 26,493 % for a gate that is off.
  local function two_cells(first, second)
    local list = {}
    for i, row in ipairs { { first, 8.9, 1 }, { second, 265.93, 265.93 / 11 } } do
      list[2 * i - 1], list[2 * i] = record("padded", 64, row[2]), record("gather", 64, row[3])
      for _, r in ipairs { list[2 * i - 1], list[2 * i] } do
        for key, value in pairs(row[1]) do r.case[key] = value end
      end
    end
    return list
  end

  for name, cells in pairs {
    prior = { { prior = 0 }, { prior = 131072 }, ", prior 0", ", prior 131072" },
    ["prior that was left out"] = { { prior = 8128 }, { prior = 0 }, ", prompts of 8192", ", prior 0" },
    seed = { { seed = 1 }, { seed = 2 }, ", seed 1", ", seed 2" },
    requests = { { prior = 0, requests = 1 }, { prior = 0, requests = 2 }, ", requests 1", ", requests 2" },
    ["captured file"] = { { indices = "a.npy" }, { indices = "b.npy" }, ", indices a.npy", ", indices b.npy" },
    heads_pad = { { h_pad = 64 }, { h_pad = 128 }, ", h_pad 64", ", h_pad 128" },
  } do
    it("puts cells that differ in " .. name .. " into curves of their own", function()
      local g = assert(gate.fit(two_cells(cells[1], cells[2])))
      assert.same({ cells[3], cells[4] }, { g.curves[1].label, g.curves[2].label })
      for i, ratio in ipairs { 8.9, 11 } do
        assert.equal(1, #g.curves[i].points)
        assert.is_true(math.abs(g.curves[i].points[1].ratio / ratio - 1) < 1e-12)
      end
      local off = require("fewhead.decide.score").cells(g.curves, { { name = "off", gate = gate.new { enabled = false } } })[1]
      assert.equal(2, off.points)
      assert.is_true(math.abs(off.worst - 10) < 1e-9 and math.abs(off.mean - (7.9 + 10) / 2) < 1e-9)
      assert.equal("s_q 64, csa, vllm" .. cells[4], off.at)
      assert.equal(("csa vllm hot%s: always: native is never slower from s_q 64 to 64"):format(cells[3]), tostring(g.curves[1]))
    end)
  end

  it("puts cells into one curve that differ in s_q and what follows from it", function()
    local function curves_of(change)
      local list = records { [64] = 0.5, [128] = 2, [8192] = 2 }
      for _, r in ipairs(list) do change(r.case) end
      return gate.fit(list).curves, list
    end
    for _, change in ipairs {
      function(case) case.prior, case.s_kv = math.max(0, 8192 - case.s_q), 8192 + 128 end, -- prior left out
      function(case) case.prior, case.s_kv = 0, case.s_q end,
      function(case) case.indices, case.s_kv = "a.npy", 2 * case.s_q end,
    } do
      local curves = curves_of(change)
      assert.same({ 1, 3, "" }, { #curves, #curves[1].points, curves[1].label })
    end
    -- both kinds of prior: at 8192 rows they are one cell, which both curves hold
    local _, list = curves_of(function(case) case.prior = math.max(0, 8192 - case.s_q) end)
    local _, more = curves_of(function(case) case.prior = 0 end)
    for i = 1, 4 do list[#list + 1] = more[i] end
    local curves = gate.fit(list).curves
    assert.same({ 2, 3, 3 }, { #curves, #curves[1].points, #curves[2].points })
    assert.same({ ", prompts of 8192", ", prior 0" }, { curves[1].label, curves[2].label })
    -- drawn from KV rows that were given: another size is another curve
    curves = curves_of(function(case) case.pattern, case.s_kv = "uniform", case.s_q == 64 and 100 or 200 end)
    assert.same({ 2, 1, 2 }, { #curves, #curves[1].points, #curves[2].points })
  end)

  it("says what auto is worth where it was measured, its plan included", function()
    local list = records { [64] = 0.5, [128] = 2, [256] = 2 }
    local packed = record("packed", 256, 100 * 256 / 4)
    packed.time.plan_us = 100 * 256 / 20 -- 0.3 of padded with its plan
    list[#list + 1] = packed
    assert.is_nil(gate.fit(list).auto)
    -- padded at 64, gather at 128, packed with half its plan again at 256
    local took = { [64] = 100 * 64 * 1.005, [128] = 100 * 64, [256] = 100 * 256 * 0.33 }
    for s_q, us in pairs(took) do list[#list + 1] = record("auto", s_q, us) end
    local auto = gate.fit(list).auto
    assert.same({ 3, {}, {} }, { auto.cells, auto.slower, auto.undecided })
    assert.equal("auto is nowhere slower than padded in 3 cells, its plan included: with it no gate is needed\n"
      .. "auto over the best path and its plan: 3.5 % on average, at most 10.0 % (s_q 256, csa, vllm)", tostring(auto))
    list[#list].verdict = { against = "padded", verdict = "unclear", ratio = 0.33, lo = 0.2, hi = 2 }
    assert.matches("^auto beside padded is not decided in 1 of 3 cells %(s_q %d+, csa, vllm: 0%.33x%): measure longer "
      .. "%(%-%-seconds%)\n", tostring(gate.fit(list).auto))
    list[#list].verdict = nil
    list[#list + 1] = record("auto", 128, 100 * 128 * 1.25)
    local fitted = gate.fit(list)
    assert.matches("\nauto is slower than padded in 1 of 3 cells %(s_q 128, csa, vllm: 0%.80x%): there a gate is better\n",
      tostring(fitted))
    -- native at all is still what the threshold is about
    assert.equal(128, fitted.min_sq)
  end)

  it("fits nothing to a wrong result, and says how much it left out", function()
    local list = records { [64] = 0.5, [128] = 2 }
    for _, r in ipairs(records({ [256] = 0.1 }, { status = "fail" })) do list[#list + 1] = r end
    local g = gate.fit(list)
    assert.equal(128, g.min_sq)
    assert.same({ "2 records left out: no time, no valid key, or parity did not pass" }, g.notes)
  end)

  it("refuses records that answer nothing, or two questions", function()
    local g, err = gate.fit {}
    assert.is_nil(g)
    assert.equal("gate.fit: got 0 records (0 without a time, parity or a valid key), wanted padded and a native path of one s_q",
      err)
    g, err = gate.fit({ record("padded", 64, 1), record("gather", 128, 1) }, { native = "gather" })
    assert.is_nil(g)
    assert.equal("gate.fit: got 2 records (0 without a time, parity or a valid key), wanted padded and gather of one s_q", err)
    local list = records { [64] = 2 }
    for _, r in ipairs(records({ [64] = 2 }, { h_q = 16 })) do list[#list + 1] = r end
    g, err = gate.fit(list)
    assert.is_nil(g)
    assert.equal("gate.fit: got records of heads 8 and 16, wanted one: filter the sweep", err)
  end)
end)

describe("the cost model of a fit", function()
  local function model(plan)
    local list = {}
    for _, s_q in ipairs { 64, 128, 256 } do
      list[#list + 1] = record("padded", s_q, 50 + 10 * s_q)
      list[#list + 1] = record("gather", s_q, 200 + 4 * s_q)
      list[#list + 1] = record("packed", s_q, 500 + 16 * s_q / 8)
      list[#list].time.plan_us = plan and 20 + s_q / 8
    end
    return assert(gate.fit(list))
  end

  it("gives the medians where they were measured, and interpolates between them", function()
    local cost = model().cost
    assert.equal(690, cost:at("padded", 64))
    assert.equal(1650, cost:at("padded", 160))
    assert.equal(456, cost:at("native", 64))
    assert.equal(456, cost:at("gather", 64))
    assert.equal(628, cost:at("packed", 64))
    assert.equal(1012, cost:at("native", 256)) -- packed, from here on
    assert.same({ 64, 256 }, { cost:range() })
  end)

  it("follows the fitted formula beyond them", function()
    local cost = model().cost
    for path, want in pairs { padded = 50 + 10 * 8192, gather = 200 + 4 * 8192, packed = 500 + 2 * 8192 } do
      assert.is_true(math.abs(cost:at(path, 8192) / want - 1) < 1e-6, path)
      assert.is_true(cost.fit[path].error < 1e-6)
    end
    assert.is_true(math.abs(cost:at("padded", 1) / 60 - 1) < 1e-6)
  end)

  it("has costs that the library chooses by", function()
    local F = require "fewhead.base.ffi"
    local cost = model().cost
    local work = ffi.new("fh_work", { struct_size = ffi.sizeof("fh_work"), rows = 2048, keys = 2048 * 575, groups = 256,
      entries = 256 * 934, h_q = 8, h_pad = 64, group = 8, d_qk = 512, d_v = 512 })
    local path, us = ffi.new("int32_t[1]"), ffi.new("double[?]", F.C.FH_PATHS)
    assert(F.check(F.C.fh_costs_choose(cost.costs, work, 0, path, us, F.C.FH_PATHS)))
    assert.equal("packed", F.path_names[path[0]])
    assert.is_true(math.abs(us[F.paths.padded] / (50 + 10 * 2048) - 1) < 1e-3)
    assert(F.check(F.C.fh_costs_choose(cost.costs, work, 1, path, us, F.C.FH_PATHS)))
    assert.equal("gather", F.path_names[path[0]])
  end)

  it("lets explain() say what each path would cost", function()
    assert.equal("native: MIN_SQ 0 takes every chunk, and 8 of 64 heads are real "
      .. "(expected: padded 1.33 ms, gather 712.0 us, packed 756.0 us)\n"
      .. "auto: s_q 128, h_q 8, 73600 keys: auto builds a plan, which says which groups are packed; the other rows take gather. "
      .. "Expected: padded 1330 us, gather 712 us, packed 658 us at best and 0 us for its plan: packing saves 54.5 us at most, "
      .. "and has to save 0 us. Costs: given by the caller", tostring(model():explain { s_q = 128 }))
    local auto = model():explain({ s_q = 256 }).auto
    assert.same({ "packed", 1012 }, { auto.path, auto.us })
    assert.equal(model().cost:explain(256), auto.why)
    assert.equal(tostring(model():explain { s_q = 128, heads = 8 }), tostring(model():explain { s_q = 128 }))
    assert.is_nil(model():explain({ s_q = 128, heads = 16 }).cost_us) -- nothing was measured for 16 heads
  end)

  it("has what plans cost, and says what auto would do with one to build", function()
    local cost = model(true).cost
    assert.is_true(math.abs(cost.fit.plan.call_us / 20 - 1) < 1e-6)
    assert.is_true(cost.fit.plan.error < 1e-6)
    local x = cost.costs.plan
    assert.is_true(math.abs(x.call_us + x.unit_us * 32 + x.gflop_us * 256 * 575 * 16384e-9 - 52) < 1e-6)
    assert.matches("\nplan    us = 20 %+ [^\n]+GFLOP   %(relative error 0.0 %%%)$", tostring(cost))
    assert.is_nil(model().cost.fit.plan)
    assert.equal(0, model().cost.costs.plan.call_us)
    -- at 256 rows packed takes 1012, and 52 of plan, of gather's 1224: the plan saves more than it costs in vain
    local path, us = cost:auto(256)
    assert.equal("packed", path)
    assert.is_true(math.abs(us - 1064) < 1e-3)
    -- at 128 gather is the better anyway: the plan is tried where lists that are all alike would have paid for it
    path, us = cost:auto(128)
    assert.equal("gather", path)
    assert.is_true(us >= 712)
    assert.is_nil(gate.fit(records { [64] = 2 }).cost:auto(64)) -- packed was not measured: there are no costs
    assert.has_error(function() cost:auto(0.5) end)
    assert.is_nil(gate.fit(records { [64] = 2 }).cost:explain(64))
    assert.has_error(function() cost:explain(0.5) end)
  end)

  it("keeps costs from falling below zero", function()
    local nnls = require("fewhead.decide.cost").nnls
    -- 5 - x is best without the slope: the mean
    local x, err = nnls({ { 1, 1 }, { 1, 2 }, { 1, 3 } }, { 4, 3, 2 })
    assert.equal(0, x[2])
    assert.is_true(math.abs(x[1] - 3) < 1e-12 and math.abs(err - 2) < 1e-12)
    x = nnls({ { 1, 1, 2 }, { 1, 2, 4 }, { 1, 3, 6 } }, { 3, 5, 7 }) -- the last two columns say the same
    assert.is_true(math.abs(x[1] - 1) < 1e-9 and math.abs(x[2] + 2 * x[3] - 2) < 1e-9)
    assert.same({ 0 }, nnls({ { 1 } }, { -1 }))
  end)
end)

describe("scoring gates on traffic", function()
  local score = require "fewhead.decide.score"

  -- Chunks as trace.chunks counts them.
  local function chunks(counts)
    local list = { counts = {}, chunks = 0, rows = 0 }
    for s_q, count in pairs(counts) do
      list.counts[#list.counts + 1] = { s_q = s_q, count = count }
      list.chunks, list.rows = list.chunks + count, list.rows + count * s_q
    end
    return list
  end

  it("predicts time, routed share and regret of each gate", function()
    -- padded 100 s_q; native 200 s_q at 64, 50 s_q at 128
    local fitted = gate.fit(records { [64] = 0.5, [128] = 2 })
    local rows, note = score.score(chunks { [64] = 3, [128] = 1 }, {
      { name = "off", gate = gate.new { enabled = false } }, { name = "always", gate = gate.new { min_sq = 0 } },
      { name = "fitted", gate = fitted },
    }, fitted.cost)
    local best = 3 * 6400 + 6400
    assert.same({ name = "off", native_chunks = 0, native_rows = 0, us = 3 * 6400 + 12800, best_us = best, regret_us = 6400,
      regret = 0.25 }, rows[1])
    assert.same({ name = "always", native_chunks = 1, native_rows = 1, us = 3 * 12800 + 6400, best_us = best, regret_us = 19200,
      regret = 0.75 }, rows[2])
    assert.same({ name = "fitted", native_chunks = 0.25, native_rows = 0.4, us = best, best_us = best, regret_us = 0,
      regret = 0 }, rows[3])
    assert.same(rows[3], require("fewhead.serve.trace").score(chunks { [64] = 3, [128] = 1 },
      { { name = "fitted", gate = fitted } }, fitted.cost)[1])
    assert.equal(0, note.outside)
    assert.equal("every chunk lies within the measured s_q 64 to 128", tostring(note))
  end)

  it("says how much traffic lies outside the measured s_q", function()
    local fitted = gate.fit(records { [64] = 0.5, [128] = 2 })
    local _, note = score.score(chunks { [1] = 8, [128] = 1, [8192] = 1 }, score.candidates(fitted), fitted.cost)
    assert.equal("98.5 % of the rows lie in chunks outside the measured s_q 64 to 128: their times are modelled, not measured",
      tostring(note))
  end)

  it("puts off, always, the doublings, the published and the fitted gate side by side", function()
    local names = {}
    local fitted = gate.fit(records { [64] = 0.5, [128] = 2 })
    for i, candidate in ipairs(score.candidates(fitted)) do names[i] = candidate.name end
    assert.same({ "off", "0 (always)", "64", "128", "256", "512", "1024", "2048 (published)", "fitted (128)" }, names)
  end)
end)
