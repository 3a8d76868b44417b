local ffi = require "ffi"
local case = require "fewhead.case.case"
local device = require "fewhead.device.device"
local layout = require "fewhead.case.layout"
local paths_of = require "fewhead.device.path"
local plan = require "fewhead.device.plan"
local problem = require "fewhead.case.problem"
local tensor = require "fewhead.device.tensor"
local F = require "fewhead.base.ffi"
local helper = require "spec.helper"

require("fewhead.measure.assert").register()

-- A tensor's elements as numbers: a function of an index counted from 0 in row-major order.
local function numbers(t)
  local host = assert(t:read())
  if t.dtype == "bf16" then return function(i) return tensor.to_float(host[i]) end end
  return function(i) return host[i] end
end

-- The call, written down from its definition in double precision: a function of row s and head h (from 0) that gives out, lse and
-- max_logits.
local function attention_of(p)
  local c, q, kv, indices = p.case, numbers(p.q), numbers(p.kv), numbers(p.indices)
  local lengths, sink = p.topk_length and numbers(p.topk_length), p.attn_sink and numbers(p.attn_sink)
  return function(s, h)
    local logits, keys, largest = {}, {}, -math.huge
    for j = 1, math.max(0, math.min(lengths and lengths(s) or c.topk, c.topk)) do
      local t = indices(s * c.topk + j - 1)
      if t >= 0 and t < c.s_kv then
        local dot = 0
        for d = 0, c.d_qk - 1 do dot = dot + q((s * c.h_q + h) * c.d_qk + d) * kv(t * c.d_qk + d) end
        keys[#keys + 1], logits[#logits + 1] = t, dot * c.sm_scale
        largest = math.max(largest, dot * c.sm_scale)
      end
    end
    local sum, out = 0, {}
    for d = 1, c.d_v do out[d] = 0 end
    for i, t in ipairs(keys) do
      local w = math.exp(logits[i] - largest)
      sum = sum + w
      for d = 1, c.d_v do out[d] = out[d] + w * kv(t * c.d_qk + d - 1) end
    end
    local bottom = sum
    if sink then bottom = bottom + math.exp(sink(h) - largest) end
    for d = 1, c.d_v do out[d] = #keys > 0 and out[d] / bottom or 0 end
    return out, #keys > 0 and largest + math.log(sum) or math.huge, largest
  end
end

-- How far the reference may be from that: it works in doubles on a CPU, in floats on a GPU.
local CLOSE = helper.on_cpu() and { out = 2e-6, lse = 1e-5 } or { out = 2e-5, lse = 5e-5 }

local function same_array(a, b, n)
  for i = 0, n - 1 do
    if a[i] ~= b[i] then return false end
  end
  return true
end

local function same_elements(a, b)
  local x, n = a:read()
  local y, m = b:read()
  return n == m and same_array(x, y, n)
end

local function mean_and_deviation(t)
  local values, n = t:read()
  local sum, squares = 0, 0
  for i = 0, n - 1 do
    local v = t.dtype == "bf16" and tensor.to_float(values[i]) or values[i]
    sum, squares = sum + v, squares + v * v
  end
  return sum / n, math.sqrt(squares / n - (sum / n)^2)
end

local SMALL = { s_q = 12, h_q = 3, topk = 24, window = 8, ratio = 2, prior = 30, seed = 4 }
local function small(changes)
  local o = {}
  for key, v in pairs(SMALL) do o[key] = v end
  for key, v in pairs(changes or {}) do o[key] = v end
  if o.pattern == "uniform" then o.window, o.ratio, o.prior = nil, nil, nil end -- which it does not read
  return case(o)
end

describe("problem", function()
  local dev
  setup(function() dev = helper.device() end)
  teardown(function() dev:close() end)

  local function refused(message, f)
    local ok, err = pcall(f)
    assert.is_false(ok)
    assert.matches("problem_spec%.lua:%d+: ", err)
    assert.equal(message, (err:gsub("^.*problem_spec%.lua:%d+: ", "")))
  end

  it("holds the same numbers in every layout and on every device handle", function()
    local other = assert(device.open("cpu", { threads = 1 })) -- where dev is a GPU, on another device
    local first = assert(small { lengths = "uniform" }:problem(dev))
    for _, name in ipairs(layout.names) do
      local p = assert(small { lengths = "uniform", layout = name }:problem(other))
      for _, key in ipairs { "q", "kv", "indices", "topk_length", "attn_sink" } do
        assert.is_true(same_elements(first[key], p[key]), name .. " " .. key)
      end
    end
  end)

  it("draws its tensors from the seed, each on its own", function()
    local p, q = small():problem(dev), small { seed = 5 }:problem(dev)
    for _, key in ipairs { "q", "kv", "attn_sink" } do
      assert.is_false(same_elements(p[key], q[key]))
      local mean, deviation = mean_and_deviation(p[key])
      if key ~= "attn_sink" then
        assert.is_true(math.abs(mean) < 0.03 and math.abs(deviation - 1) < 0.03)
      end
    end
    assert.is_not.equal(p.q:get(1, 1, 1), p.kv:get(1, 1))
    local _, deviation = mean_and_deviation(small { scale_q = 4 }:problem(dev).q)
    assert.is_true(math.abs(deviation - 4) < 0.1)
  end)

  it("makes FlashMLA's inputs: a tenth of a normal and a constant, a third of the sinks -inf and a third +inf", function()
    local p = case({
      s_q = 8, h_q = 128, s_kv = 300, topk = 8, pattern = "uniform", values = "flashmla", sink = "flashmla", layout = "vllm",
    }):problem(dev)
    local constants = {}
    for _, key in ipairs { "q", "kv" } do
      local mean, deviation = mean_and_deviation(p[key])
      assert.is_true(math.abs(deviation - 0.1) < 0.002)
      assert.is_true(math.abs(mean) > 0.002 and math.abs(mean) < 0.052)
      constants[#constants + 1] = mean
    end
    assert.is_true(math.abs(constants[1] - constants[2]) > 0.002)
    local low, high, finite = 0, 0, 0
    for h = 1, 128 do
      local v = p.attn_sink:get(h)
      if v == -math.huge then low = low + 1 elseif v == math.huge then high = high + 1 else finite = finite + 1 end
    end
    assert.is_true(low > 25 and low < 55 and high > 25 and high < 55 and finite > 30)
  end)

  it("counts its valid keys and useful FLOPs", function()
    local p = assert(case({ s_q = 6, h_q = 8, window = 2, index_topk = 3, ratio = 2, holes = 0, prior = 0 }):problem(dev))
    assert.equal(20, p.valid_keys)
    assert.equal(2 * 8 * (512 + 512) * 20, p.useful_flops)
    p = assert(case({ preset = "v3.2 tp8", s_q = 2, topk = 4, prior = 50, holes = 0 }):problem(dev))
    assert.equal(2 * 16 * (576 + 512) * 8, p.useful_flops)
  end)

  it("runs the reference as it is defined, in every layout, and leaves the canaries alone", function()
    for _, options in ipairs {
      {}, { sink = "none" }, { lengths = "uniform" }, { invalid_rows = 0.5, lengths = "none" }, { d_qk = 576, scale_q = 3 },
      { sink = "flashmla", h_q = 9, requests = 2, prior = 5 }, { pattern = "uniform", s_kv = 10, repeats = true },
      { pattern = "uniform", s_kv = 10, topk = 20, values = "flashmla", sm_scale = 0.5 },
    } do
      for i, name in ipairs(layout.names) do
        options.layout = name
        local p = assert(small(options):problem(dev))
        local o = assert(p:outputs { float32 = true })
        local counters = assert(p:run("reference", o))
        assert.same({ "reference", 12, p.useful_flops }, { counters.path, counters.rows, counters.useful_flops })
        assert.is_true(counters.bytes > 0)
        assert.untouched(o)
        local attention, written = attention_of(p), numbers(o.out)
        for k = 0, 2 do -- some rows and heads, others in each layout
          local s, h = (5 * k + 3 * i) % 12, (k + i) % p.case.h_q
          local out, lse, largest = attention(s, h)
          for d = 1, 512 do
            local got = written((s * p.case.h_q + h) * 512 + d - 1)
            assert.is_true(math.abs(got - out[d]) <= CLOSE.out * (1 + math.abs(out[d])))
          end
          local got = o.lse:get(s + 1, h + 1)
          assert.is_true(got == lse or math.abs(got - lse) < CLOSE.lse)
          got = o.max_logits:get(s + 1, h + 1)
          assert.is_true(got == largest or math.abs(got - largest) < CLOSE.lse)
        end
        o:free()
        p:free()
      end
    end
  end)

  it("runs every path, and says which really ran", function()
    local p = assert(small { layout = "vllm", holes = 0 }:problem(dev))
    local want = assert(p:outputs { float32 = true })
    assert(p:run("reference", want))
    for _, path in ipairs(helper.paths(dev)) do
      local o = assert(p:outputs())
      local counters = assert(p:run(path, o))
      assert.same({ path, 12, p.useful_flops }, { counters.path, counters.rows, counters.useful_flops })
      if helper.on_cpu() then assert.equal(("cpu %s %s"):format(dev:info().isa, path), counters.kernel) end
      assert.is_true(counters.executed_flops >= p.useful_flops)
      assert.untouched(o)
      for s = 1, 12 do
        for h = 1, 3 do
          for d = 1, 512, 37 do assert.is_true(math.abs(o.out:get(s, h, d) - want.out:get(s, h, d)) < 0.03) end
        end
      end
    end
    local counters = assert(p:run("auto", assert(p:outputs())))
    assert.same({ [counters.path] = counters.rows }, counters.by_path)
    assert.is_true(counters.path == "padded" or counters.path == "gather" or counters.path == "packed")
    assert.equal(12, counters.rows)
  end)

  it("says what auto makes of it, in the library's words", function()
    local p = assert(small { holes = 0, prior = 200 }:problem(dev))
    local line = assert(p:explain())
    assert.matches("^s_q 12, h_q %d+, %d+ keys: auto .*%. Expected: padded .* us, gather .* us.*%. Costs: %w.*$", line)
    assert.is_nil(line:find("\n"))
    assert.equal(helper.on_cpu() and p.valid_keys or 12 * p.case.topk, tonumber(line:match("(%d+) keys")))
    assert.is_truthy(p:explain({ row_invariant = true }):find("packed is not on offer: row_invariant is 1", 1, true))
    assert.matches('^problem:explain: unknown option "rows"; ',
      helper.refusal(function() p:explain { rows = 3 } end))
  end)

  it("gives padded its zero heads to compute: as many as the case says", function()
    local p = assert(small { holes = 0, prior = 200 }:problem(dev))
    local q = assert(small { holes = 0, prior = 200, h_pad = 128 }:problem(dev))
    local padded = assert(p:run("padded", assert(p:outputs()))).executed_flops
    assert.is_true(padded >= p.useful_flops * 64 / 3)
    local twice = assert(q:run("padded", assert(q:outputs()))).executed_flops
    assert.is_true(math.abs(twice - 2 * padded) <= 1) -- both are whole numbers
  end)

  it("takes a plan, and a group without one", function()
    if not dev:has_path("packed") then pending("the device does not pack") end
    local p = assert(small():problem(dev))
    local want = assert(p:outputs())
    assert(p:run("packed", want, { group = 4 }))
    local made = assert(plan.build(p, { group = 4 }))
    local got = assert(p:outputs())
    assert(p:run("packed", got, { plan = made }))
    assert.is_true(same_elements(want.out, got.out))
    assert.is_true(same_elements(want.lse, got.lse))
  end)

  it("asks for lse and max_logits where the case does", function()
    local p = assert(small { lse = false, max_logits = false }:problem(dev))
    local o = assert(p:outputs())
    assert.is_nil(o.lse)
    assert.is_nil(o.max_logits)
    local call = assert(p:call("reference", o))
    assert.is_true(call.lse == nil and call.max_logits == nil)
    assert(p:run("reference", o))
  end)

  it("runs with no rows and with no keys", function()
    for _, options in ipairs { { s_q = 0, prior = 3 }, { topk = 0, window = 0 }, { pattern = "uniform", s_kv = 0 } } do
      for _, name in ipairs(layout.names) do
        options.layout = name
        local p = assert(small(options):problem(dev))
        local o = assert(p:outputs())
        assert.equal(p.s_q, assert(p:run("reference", o)).rows)
        assert.equal(0, p.valid_keys)
        if p.s_q > 0 then assert.equal(0, o.out:get(1, 1, 1)) end
        if p.s_q > 0 then assert.equal(math.huge, o.lse:get(1, 1)) end
        assert.untouched(o)
      end
    end
  end)

  describe("call", function()
    it("is the library's struct with the tensors' addresses and strides", function()
      local p = assert(small { layout = "strided", h_pad = 128, sm_scale = 0.25 }:problem(dev))
      local o = assert(p:outputs())
      local call = assert(p:call("gather", o, { row_invariant = true, group = 2 }))
      assert.is_true(ffi.istype("fh_call", call))
      assert.same({ F.paths.gather, 1, 2, 128, 0.25 }, { call.path, call.row_invariant, call.group, call.h_pad, call.sm_scale })
      assert.same({ 12, 3, 24 }, { tonumber(call.s_q), call.h_q, tonumber(call.topk) })
      assert.equal(p.case.s_kv, tonumber(call.s_kv))
      assert.is_true(call.q == p.q:data() and call.out == o.out:data() and call.lse == o.lse:data())
      assert.same({ 5 * 517, 517, 519, 25 }, {
        tonumber(call.q_stride_s), tonumber(call.q_stride_h), tonumber(call.kv_stride), tonumber(call.indices_stride),
      })
      assert.equal(5 * 515, tonumber(call.out_stride_s))
    end)

    it("keeps alive what it points to", function()
      local function make()
        local c = small()
        local p = assert(c:problem(dev))
        return assert(p:call("reference", assert(p:outputs())))
      end
      local call = make()
      for _ = 1, 3 do collectgarbage() end
      local held = tensor.live_bytes()
      for _ = 1, 200 do assert(tensor.new(dev, "f32", { 12 * 3 * 512 }, { fill = 7 })) end -- over what was freed too early
      assert.equal(0, F.C.fh_sparse_fwd(dev.handle, call))
      assert(dev:synchronize())
      local buffer, lse = ffi.gc(ffi.new("fh_buffer *[1]"), F.C.fh_buffer_free), ffi.new("float[1]")
      assert.equal(0, F.C.fh_buffer_wrap(dev.handle, call.lse, 4, buffer))
      assert.equal(0, F.C.fh_buffer_read(buffer[0], 0, lse, 4))
      assert.is_true(lse[0] > 0 and lse[0] < 20)
      call = nil -- luacheck: ignore
      for _ = 1, 3 do collectgarbage() end
      assert.is_true(tensor.live_bytes() < held)
    end)

    it("keeps the workspace it was given when a larger one is needed later", function()
      if not dev:has_path("packed") then pending("the device does not pack") end
      local p = assert(small():problem(dev))
      local o = assert(p:outputs())
      local first = assert(p:call("gather", o))
      local packed = assert(p:call("packed", o))
      assert.is_true(packed.workspace_bytes > first.workspace_bytes)
      collectgarbage()
      collectgarbage()
      assert.equal(0, F.C.fh_sparse_fwd(dev.handle, first))
      assert.equal(0, F.C.fh_sparse_fwd(dev.handle, packed))
    end)

    it("survives the collector whenever it comes", function()
      for i = 1, 60 do
        local p = assert(small({ seed = i, layout = layout.names[1 + i % 4] }):problem(dev))
        local run = assert(p:runner("reference", assert(p:outputs())))
        local part = assert(p:rows(1 + i % 12, 2))
        local other = assert(part:runner("reference", assert(part:outputs())))
        p, part = nil, nil -- luacheck: ignore
        if i % 7 == 0 then collectgarbage() end
        collectgarbage("step", 100)
        assert.equal(0, run())
        assert.equal(0, other())
      end
    end)
  end)

  describe("runner", function()
    it("runs the call and makes no garbage", function()
      local p = assert(case({ s_q = 1, h_q = 1, topk = 1, pattern = "uniform", s_kv = 1, sink = "none" }):problem(dev))
      local o = assert(p:outputs())
      local run = assert(p:runner("reference", o))
      assert.equal(0, run())
      assert.equal(p.kv:get(1, 1), o.out:get(1, 1, 1)) -- one key: its own value
      collectgarbage()
      collectgarbage("stop")
      for _ = 1, 200 do run() end
      local before = collectgarbage("count")
      for _ = 1, 10000 do run() end
      local after = collectgarbage("count")
      collectgarbage("restart")
      assert.is_true((after - before) * 1024 < 10000) -- less than a byte a call: nothing but the JIT's own traces
    end)

    it("is refused before it is timed", function()
      local p = assert(small():problem(dev))
      local run, err = p:runner("gather", assert(p:outputs { float32 = true }))
      assert.is_nil(run)
      assert.matches("^out_dtype: ", err)
    end)
  end)

  describe("rows", function()
    it("are those rows of the whole, on the same memory", function()
      for _, name in ipairs(layout.names) do
        local p = assert(small { layout = name, lengths = "uniform", holes = 0.3 }:problem(dev))
        local whole = assert(p:outputs())
        assert(p:run("reference", whole))
        for _, range in ipairs { { 1, 1 }, { 1, 5 }, { 3, 4 }, { 12, 1 }, { 2, 100 } } do
          local part = assert(p:rows(range[1], range[2]))
          local picked = whole.out:slice(1, range[1], 12, range[2])
          assert.equal(picked.shape[1], part.s_q)
          local o = assert(part:outputs())
          local counters = assert(part:run("reference", o))
          assert.equal(part.useful_flops, counters.useful_flops)
          assert.is_true(same_elements(picked, o.out))
          assert.is_true(same_elements(whole.lse:slice(1, range[1], 12, range[2]), o.lse))
          assert.untouched(o)
          part:free()
        end
        assert(p:run("reference", whole)) -- what was freed was the part alone
      end
    end)

    it("outlive the whole", function()
      local p = assert(small():problem(dev))
      local part = assert(p:rows(2, 3))
      p:free()
      assert.equal(4, assert(part:run("reference", assert(part:outputs()))).rows)
    end)

    it("are refused outside the problem", function()
      local p = assert(small():problem(dev))
      refused("problem:rows: first: got 0, wanted a whole number in 1 .. 12", function() p:rows(0) end)
      refused("problem:rows: first: got 13, wanted a whole number in 1 .. 12", function() p:rows(13) end)
      refused("problem:rows: step: got 0, wanted a whole number >= 1", function() p:rows(1, 0) end)
    end)
  end)

  describe("on memory that is there", function()
    -- The lists of one problem, q and kv of another: a layer that shares its lists.
    local function layer_of(lists, values, workspace)
      local inputs = {}
      for key, from in pairs { q = values, kv = values, indices = lists, topk_length = lists, attn_sink = values } do
        inputs[key] = from[key]:slice(1, 1, from[key].shape[1])
      end
      return problem.wrap(lists.case, dev, inputs, lists.keys, workspace)
    end

    it("computes what its tensors say, in every layout", function()
      for _, name in ipairs(layout.names) do
        local lists, values = small { layout = name }, small { layout = name, seed = 5 }
        lists, values = assert(lists:problem(dev)), assert(values:problem(dev))
        local p = layer_of(lists, values)
        assert.same({ lists.valid_keys, lists.useful_flops }, { p.valid_keys, p.useful_flops })
        local wanted, o = attention_of(p), assert(p:outputs { float32 = true })
        assert(p:run("reference", o))
        for s = 0, p.s_q - 1 do
          local out, lse = wanted(s, 2)
          assert.is_true(math.abs(o.lse:get(s + 1, 3) - lse) < CLOSE.lse)
          for d = 1, 512, 73 do assert.is_true(math.abs(o.out:get(s + 1, 3, d) - out[d]) < CLOSE.out) end
        end
        assert.untouched(o)
      end
    end)

    it("leaves what it shares to its owner", function()
      local lists, values = assert(small():problem(dev)), assert(small { seed = 5 }:problem(dev))
      local before, o = assert(lists:outputs()), assert(lists:outputs())
      assert(lists:run("gather", before))
      local p = layer_of(lists, values)
      p:free()
      assert(lists:run("gather", o))
      assert.is_true(same_elements(before.out, o.out))
    end)

    it("uses another problem's workspace as far as it goes", function()
      local lists, values = assert(small():problem(dev)), assert(small { seed = 5 }:problem(dev))
      assert(lists:call("auto", assert(lists:outputs())))
      local p = layer_of(lists, values, lists)
      local call = assert(p:call("auto", assert(p:outputs())))
      assert.is_true(call.workspace_bytes == 0 or call.workspace == lists.workspace:data())
    end)
  end)

  describe("free", function()
    it("gives all memory back, and is safe twice", function()
      collectgarbage()
      collectgarbage()
      local before = tensor.live_bytes()
      local p = assert(small { layout = "vllm" }:problem(dev))
      local o = assert(p:outputs())
      assert(p:run("reference", o))
      o:free()
      p:free()
      p:free()
      assert.equal(before, tensor.live_bytes())
      refused("problem:run: used after free()", function() p:run("reference", o) end)
      refused("problem:outputs: used after free()", function() p:outputs() end)
      refused("problem:rows: used after free()", function() p:rows(1) end)
    end)
  end)

  describe("refuses", function()
    it("what the library refuses, in its words", function()
      local p = assert(small():problem(dev))
      local ran, err = p:run("gather", assert(p:outputs { float32 = true }))
      assert.is_nil(ran)
      assert.equal(ffi.string(F.C.fh_error()), err)
      assert.matches("^out_dtype: ", err)
      ran, err = p:run("packed", assert(p:outputs()), { group = 64 }) -- 3 heads * 64 rows do not fit a tile
      assert.is_nil(ran)
      assert.matches("^group: ", err)
      local o = assert(p:outputs())
      o.out = p.q -- in place over the input
      ran, err = p:run("reference", o)
      assert.is_nil(ran)
      assert.matches("overlap", err)
    end)

    it("paths, options and outputs that are none, on the caller's line", function()
      local p = assert(small():problem(dev))
      local o = assert(p:outputs())
      refused('problem:run: path: got "gathr", wanted one of ' .. table.concat(paths_of.names(), ", ")
        .. '; did you mean "gather"?',
        function() p:run("gathr", o) end)
      refused('problem:call: unknown option "groups"; did you mean "group"? known: plan, row_invariant, group, costs',
        function() p:call("packed", o, { groups = 3 }) end)
      refused("problem:run: row_invariant: got 1, wanted true or false",
        function() p:run("auto", o, { row_invariant = 1 }) end)
      refused("problem:run: plan: got {}, wanted a plan, such as plan.build gives",
        function() p:run("packed", o, { plan = {} }) end)
      refused("problem:runner: outputs: got nil, wanted outputs, such as problem:outputs() gives",
        function() p:runner("gather") end)
      refused("problem:run: outputs.out: got nil, wanted a tensor", function() p:run("gather", {}) end)
      refused('problem:outputs: unknown option "float"; did you mean "float32"? known: float32',
        function() p:outputs { float = true } end)
      refused("problem:run: got nil, wanted a problem: a method is called with a colon", function() p.run() end)
    end)

    it("outputs of another size or dtype before anything is written", function()
      local p, q = assert(small():problem(dev)), assert(small { s_q = 11 }:problem(dev))
      local o = assert(q:outputs())
      refused("problem:run: outputs.out: got bf16 [11, 3, 512] stride [1536, 512, 1], wanted bf16 or f32 [12, 3, 512], " ..
        "the last dimension contiguous", function() p:run("gather", o) end)
      o = assert(p:outputs())
      o.lse = assert(tensor.new(dev, "bf16", { 12, 3 }, { fill = 0 }))
      refused("problem:run: outputs.lse: got bf16 [12, 3] stride [3, 1], wanted f32 [12, 3], the last dimension contiguous",
        function() p:run("gather", o) end)
      o.lse = assert(tensor.new(dev, "f32", { 12, 3 }, { stride = { 1, 12 } }))
      refused("problem:run: outputs.lse: got f32 [12, 3] stride [1, 12], wanted f32 [12, 3], the last dimension contiguous",
        function() p:run("gather", o) end)
      o.lse = 5
      refused("problem:run: outputs.lse: got 5, wanted f32 [12, 3], the last dimension contiguous",
        function() p:run("gather", o) end)
    end)

    it("a plan that was freed", function()
      if not dev:has_path("packed") then pending("the device does not pack") end
      local p = assert(small():problem(dev))
      local made = assert(plan.build(p))
      made:free()
      refused("problem:run: plan: used after free()", function() p:run("packed", assert(p:outputs()), { plan = made }) end)
    end)
  end)
end)

describe("a problem's inputs", function()
  local function made(dev, sink)
    local c = case { s_q = 4, pattern = "csa", window = 8, index_topk = 24, prior = 40, layout = "vllm", sink = sink }
    return assert(c:problem(dev))
  end

  it("have checksums that any written byte changes, around the elements too", function()
    local dev = helper.device()
    local p = made(dev, "normal")
    local before = p:checksums()
    for _, key in ipairs { "q", "kv", "indices", "topk_length", "attn_sink" } do
      assert.matches("^%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x%x$", before[key])
      local last = p[key].storage.bytes - 1
      for _, at in ipairs { 0, tonumber(last) } do
        local cell = ffi.new("uint8_t[1]")
        assert(p[key]:read_bytes(at, 1, cell))
        helper.poke(p[key], at, (cell[0] + 1) % 256)
        local after = p:checksums()
        for _, other in ipairs { "q", "kv", "indices", "topk_length", "attn_sink" } do
          assert.equal(other ~= key, before[other] == after[other])
        end
        helper.poke(p[key], at, cell[0])
      end
    end
    assert.same(before, p:checksums())
    p:free()
    assert.equal("problem:checksums: used after free()", helper.refusal(function() p:checksums() end))
  end)

  it("are made anew as they were, and calls that are there keep the old ones", function()
    local dev = helper.device()
    local p = made(dev, "none")
    local before, outputs = p:checksums(), assert(p:outputs())
    local run = assert(p:runner("gather", outputs))
    p.kv:fill(7)
    assert.is_true(p:renew())
    assert.same(before, p:checksums())
    collectgarbage()
    collectgarbage()
    assert.equal(0, run()) -- on the KV of sevens
    assert(dev:synchronize())
    assert.equal(7, outputs.out:get(1, 1, 1))
    assert(p:run("gather", outputs))
    assert.are_not.equal(7, outputs.out:get(1, 1, 1))
    local rows = assert(p:rows(2))
    assert.equal("problem:renew: got a problem on memory of others, wanted one of case:problem()",
      helper.refusal(function() rows:renew() end))
  end)
end)
