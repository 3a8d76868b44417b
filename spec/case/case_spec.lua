local case = require "fewhead.case.case"
local helper = require "spec.helper"

local NAMES = table.concat(require("fewhead.case.pattern").names, ", ")

local function refused(message, options)
  local ok, err = pcall(function() case(options) end)
  assert.is_false(ok)
  assert.matches("case_spec%.lua:%d+: ", err)
  assert.equal(message, (err:gsub("^.*case_spec%.lua:%d+: ", "")))
end

describe("case", function()
  it("draws its lists on the host, the same each time and as a problem has them", function()
    local c = case { s_q = 5, topk = 24, window = 8, ratio = 2, prior = 30, seed = 4 }
    local lists, again = c:lists(), c:lists()
    local indices = assert(c:problem(require("fewhead.device.device").default())).indices:read()
    assert.same({ 5, c.s_kv, 24 }, { lists.s_q, lists.s_kv, lists.topk })
    for i = 0, 5 * 24 - 1 do
      assert.equal(lists.indices[i], again.indices[i])
      assert.equal(lists.indices[i], indices[i])
    end
    c:free()
  end)

  it("takes every size from the default preset, a rank of V4.1 at TP8", function()
    local c = case { s_q = 2048 }
    assert.same({
      s_q = 2048, s_kv = 8192 + 2048 + 127, h_q = 8, h_pad = 64, d_qk = 512, d_v = 512, topk = 640, pattern = "csa",
      layout = "contiguous", seed = 0, window = 128, index_topk = 512, ratio = 1, holes = 0.01, requests = 1, prior = 6144,
      lengths = "natural", invalid_rows = 0, values = "normal", scale_q = 1, sink = "normal", sm_scale = 512^-0.5, lse = true,
      max_logits = true,
    }, c:describe())
    assert.equal(640, c.topk)
    assert.is_nil(c.keep)
  end)

  it("takes them from the preset that is named", function()
    local c = case { preset = "v3.2 tp8", s_q = 64 }
    assert.same({ 16, 64, 576, 2048, 0, 1, "none" }, { c.h_q, c.h_pad, c.d_qk, c.topk, c.window, c.ratio, c.sink })
    assert.equal(576^-0.5, c.sm_scale)
    assert.equal(8192, c.s_kv) -- an index over tokens: nothing but the prompt
    c = case { preset = "v4-pro tp1", s_q = 64, ratio = 128, layout = "vllm" }
    assert.same({ 128, 128, 1152, 128 }, { c.h_q, c.h_pad, c.topk, c.ratio })
    assert.equal(64 + 64 + 127, c.s_kv)
    assert.equal("glm-5 tp8", case({ preset = "glm-5 tp8", s_q = 1 }):describe().preset)
  end)

  it("lets every option override the preset", function()
    local c = case {
      preset = "v4.1-flash tp8", heads = 5, s_q = 10, d_qk = 576, topk = 200, h_pad = 128, ratio = 4, sink = false,
    }
    assert.same({ 5, 128, 576, 200, 72, 128, 4, "none" },
      { c.h_q, c.h_pad, c.d_qk, c.topk, c.index_topk, c.window, c.ratio, c.sink })
    assert.equal(448, case({ s_q = 1, window = 64, index_topk = 384 }).topk)
    assert.equal(576, case({ s_q = 1, window = 64 }).topk)
    assert.equal(128, case({ s_q = 1, pattern = "window" }).topk)
    assert.equal(128, case({ s_q = 1, pattern = "window", topk = 640 }).window)
    assert.equal(128, case({ heads = 65, s_q = 1 }).h_pad)
    assert.equal("normal", case({ s_q = 1, sink = true }).sink)
  end)

  it("takes a short chunk for the end of an 8192-token prompt, unless prior says otherwise", function()
    assert.equal(8128, case({ s_q = 64 }).prior)
    assert.equal(0, case({ s_q = 16384 }).prior)
    assert.equal(0, case({ s_q = 64, prior = 0 }).prior)
    assert.same({ 7692, 8092 }, case({ s_q = 600, requests = { 500, 100 } }).prior)
    assert.equal(7892, case({ s_q = 600, requests = 2 }).prior)
    assert.is_nil(case({ s_q = 64, pattern = "uniform" }).prior)
  end)

  it("describes itself so that the same case can be made of it", function()
    for _, options in ipairs {
      { s_q = 2048, layout = "vllm", seed = 7 },
      { preset = "glm-5 tp8", s_q = 100, pattern = "local", keep = 0.8, ratio = 4, holes = 0 },
      { s_q = 600, requests = { 500, 100 }, prior = { 3, 4 }, lengths = "uniform", sink = "flashmla" },
      { s_q = 600, requests = 3, pattern = "window", lengths = "none" },
      { s_q = 62, s_kv = 95, topk = 128, pattern = "uniform", repeats = true, holes = 0.1, values = "flashmla", sm_scale = 0.5 },
      { s_q = 5, pattern = "dense_prefix", topk = 8, lse = false, max_logits = false, scale_q = 3, lengths = 4 },
    } do
      local c = case(options)
      local again = case(c:describe())
      assert.same(c:describe(), again:describe())
      assert.equal(c:id(), again:id())
    end
  end)

  it("has one line for an identity, that every option which changes it changes", function()
    assert.equal("csa s_q=2048 s_kv=10367 h_q=8/64 d_qk=512 topk=640 window=128 ratio=1 holes=0.01 prior=6144 layout=vllm " ..
      "sink=normal seed=0", case({ heads = 8, s_q = 2048, pattern = "csa", layout = "vllm" }):id())
    assert.equal("uniform s_q=62 s_kv=95 h_q=8/64 d_qk=576 topk=128 holes=0.1 repeats=true lengths=100 layout=contiguous " ..
      "values=flashmla sink=flashmla sm_scale=0.5 seed=0", case {
        s_q = 62, s_kv = 95, d_qk = 576, topk = 128, pattern = "uniform", repeats = true, holes = 0.1, values = "flashmla",
        sink = "flashmla", sm_scale = 0.5, lengths = 100,
      }:id())
    local seen = {}
    for _, change in ipairs {
      {}, { s_q = 301 }, { s_kv = 20000 }, { h_q = 9 }, { h_pad = 128 }, { d_qk = 576 }, { topk = 641 }, { window = 127 },
      { index_topk = 511 }, { ratio = 2 }, { holes = 0 }, { lengths = "none" }, { lengths = 3 }, { requests = 2 },
      { requests = { 100, 200 } }, { prior = 9 }, { prior = { 9 } }, { invalid_rows = 0.5 }, { layout = "offset" },
      { values = "flashmla" }, { scale_q = 2 }, { sink = "none" }, { sm_scale = 1 }, { lse = false }, { max_logits = false },
      { seed = 1 }, { pattern = "local" }, { pattern = "local", keep = 0.5 }, { seed = 2^53 - 1 },
    } do
      change.s_q = change.s_q or 300
      local id = case(change):id()
      assert.is_nil(id:find("\n"))
      seen[id] = (seen[id] or 0) + 1
    end
    local same = case({ s_q = 300, prior = 9 }):id() -- { 9 } says what 9 says
    for id, n in pairs(seen) do assert.equal(id == same and 2 or 1, n, id) end
    assert.equal(case({ s_q = 3 }):id(), tostring(case { s_q = 3 }))
  end)

  it("cannot be changed, nor through what it hands out", function()
    local c = case { s_q = 600, requests = { 500, 100 } }
    local ok, err = pcall(function() c.s_q = 3 end)
    assert.is_false(ok)
    assert.matches("case_spec%.lua:%d+: case: s_q: a case cannot be changed; fh%.case makes another$", err)
    c:describe().requests[1] = 0
    c:describe().s_q = 0
    assert.same({ 500, 100 }, c:describe().requests)
    assert.equal(600, c.s_q)
  end)

  it("expresses a line of FlashMLA's grid", function()
    local c = case {
      pattern = "uniform", d_qk = 576, h_q = 128, s_q = 62, s_kv = 114, topk = 384, sink = "flashmla", lengths = "uniform",
      invalid_rows = 0.02, values = "flashmla", sm_scale = 0.5, layout = "strided",
    }
    assert.same({ 128, 128, 62, 114, 384, 0.5 }, { c.h_q, c.h_pad, c.s_q, c.s_kv, c.topk, c.sm_scale })
  end)

  describe("of a file", function()
    local name = os.tmpname()
    after_each(function()
      os.remove(name)
      os.remove(name .. ".json")
    end)

    it("has the file's sizes", function()
      local f = assert(io.open(name, "wb"))
      f:write("\5\0\0\0\0\0\0\0\1\0\0\0")
      f:close()
      f = assert(io.open(name .. ".json", "w"))
      f:write('{"dtype": "int32", "shape": [3, 1]}')
      f:close()
      local c = assert(case { indices = name }) -- pattern "file" goes without saying
      assert.equal("file", c.pattern)
      assert.same({ 3, 6, 1, name }, { c.s_q, c.s_kv, c.topk, c.indices })
      assert.same(c:describe(), case(c:describe()):describe())
    end)

    it("has the requests that its header tells of, in calls and groups", function()
      helper.write(name, ("\1\0\0\0"):rep(8))
      helper.write(name .. ".json", '{"dtype": "int32", "shape": [8, 1], "cu_seqlens_q": [0, 3, 8]}')
      local dev = require("fewhead.device.device").default()
      local function of(options)
        options.indices = name
        local c = assert(case(options))
        assert.same(c:describe(), case(c:describe()):describe())
        local p = assert(c:problem(dev))
        local offsets = p.cu_seqlens_q and p.cu_seqlens_q:read()
        local found = { c.boundaries, assert(require("fewhead.device.plan").build(p, { group = 4 })).groups }
        for i = 0, offsets and p.cu_seqlens_q.numel - 1 or -1 do found[#found + 1] = offsets[i] end
        return found
      end
      assert.same({ true, 3, 0, 3, 8 }, of {})
      assert.same({ true, 2, 0, 3, 5 }, of { s_q = 5 })
      assert.same({ true, 1, 0, 2 }, of { s_q = 2 })
      assert.same({ false, 2 }, of { boundaries = false })
    end)

    it("is nil and the reason when the file is bad", function()
      local c, err = case { pattern = "file", indices = name .. ".none.npy" }
      assert.is_nil(c)
      assert.equal(name .. ".none.npy: No such file or directory", err)
    end)
  end)

  describe("problem", function()
    it("is made once for a device, until it is freed", function()
      local dev = helper.device()
      local c = case { s_q = 4, topk = 16, window = 8 }
      local p = assert(c:problem(dev))
      assert.equal(p, c:problem(dev))
      assert.equal(c, p.case)
      c:free()
      c:free()
      assert.is_true(p.freed)
      local again = assert(c:problem(dev))
      assert.is_not.equal(p, again)
      again:free()
      assert.is_not.equal(again, c:problem(dev))
      local other = helper.device()
      assert.is_not.equal(c:problem(dev), c:problem(other))
      c:free()
    end)

    it("goes with its case when both are dropped", function()
      local dev = helper.device()
      local tensor = require "fewhead.device.tensor"
      collectgarbage()
      collectgarbage()
      local before = tensor.live_bytes()
      for _ = 1, 3 do assert(case({ s_q = 4, topk = 16, window = 8 }):problem(dev)) end
      assert.is_true(tensor.live_bytes() > before)
      collectgarbage()
      collectgarbage()
      assert.equal(before, tensor.live_bytes())
    end)
  end)

  describe("refuses, on the caller's line,", function()
    it("what it does not know", function()
      refused('case: unknown option "s_k"; did you mean "s_kv"? known: ' .. table.concat(case.options, ", "),
        { s_q = 1, s_k = 1 })
      refused("case: s_q: got nil, wanted a whole number in 0 .. 2147483647", {})
      refused('case: pattern: got "csaa", wanted one of '
        .. NAMES .. '; did you mean "csa"?',
        { s_q = 1, pattern = "csaa" })
      refused('case: layout: got "vlm", wanted one of contiguous, vllm, strided, offset; did you mean "vllm"?',
        { s_q = 1, layout = "vlm" })
      refused('case: sink: got "on", wanted one of normal, none, flashmla', { s_q = 1, sink = "on" })
      refused('case: values: got "zero", wanted one of normal, flashmla', { s_q = 1, values = "zero" })
    end)

    it("lists: every option of a case is one value", function()
      for key, message in pairs {
        s_q = "case: s_q: got {1, 2}, wanted a whole number in 0 .. 2147483647",
        layout = "case: layout: got {1, 2}, wanted one of contiguous, vllm, strided, offset",
        lse = "case: lse: got {1, 2}, wanted true or false",
        keep = "case: keep: got {1, 2}, wanted a finite number in 0 .. 1",
        lengths = "case: lengths: got {1, 2}, wanted natural, none, uniform or a whole number >= 0",
        sink = "case: sink: got {1, 2}, wanted one of normal, none, flashmla",
      } do
        refused(message, { s_q = key ~= "s_q" and 4 or { 1, 2 }, [key] = { 1, 2 } })
      end
    end)

    it("sizes outside the call's", function()
      refused("case: h_q: got 129, wanted a whole number in 1 .. 128", { s_q = 1, h_q = 129 })
      refused("case: heads: got 0, wanted a whole number in 1 .. 128", { s_q = 1, heads = 0 })
      refused("case: heads: got 8, but h_q is 9", { s_q = 1, heads = 8, h_q = 9 })
      refused("case: h_pad: got 96, wanted one of 64, 128", { s_q = 1, h_pad = 96 })
      refused("case: h_pad: got 64, wanted at least h_q = 65", { s_q = 1, h_q = 65, h_pad = 64 })
      refused("case: d_qk: got 256, wanted one of 512, 576", { s_q = 1, d_qk = 256 })
      refused("case: d_v: got 256, wanted 512", { s_q = 1, d_v = 256 })
      refused("case: sm_scale: got 0, wanted a number > 0", { s_q = 1, sm_scale = 0 })
      refused("case: sm_scale: got NaN, wanted a finite number", { s_q = 1, sm_scale = 0 / 0 })
      refused('case: keep: has no effect with pattern "uniform"; patterns that take it: local, blocks, pools',
        { s_q = 1, pattern = "uniform", keep = 0.9 })
      refused('case: pattern: got "cas", wanted one of '
        .. NAMES .. '; did you mean "csa"?',
        { s_q = 1, pattern = "cas" })
      refused("case: scale_q: got -1, wanted a finite number >= 0", { s_q = 1, scale_q = -1 })
      refused("case: lse: got 1, wanted true or false", { s_q = 1, lse = 1 })
      refused("case: s_q: got true, wanted a whole number in 0 .. 2147483647", { s_q = true })
    end)

    it("what its pattern refuses", function()
      refused("case: topk: got 64, wanted at least the window, 128", { s_q = 1, topk = 64 })
      refused("case: s_kv: got 100, wanted 1 * M with M >= 8320: requests * (8192 compressed + 128 token rows)",
        { s_q = 1, s_kv = 100 })
      refused("case: prior[1]: got -1, wanted a whole number in 0 .. 2147483647", { s_q = 2, requests = 2, prior = { -1, 3 } })
      refused("case: indices: got nil, wanted a string", { pattern = "file" })
    end)

    it("methods without a case", function()
      local ok, err = pcall(function() case({ s_q = 1 }).describe() end)
      assert.is_false(ok)
      assert.matches("case_spec%.lua:%d+: case:describe: got nil, wanted a case: a method is called with a colon$", err)
    end)
  end)
end)

describe("case.has_default_prior", function()
  local function told(options) return (case.has_default_prior(case(options):describe())) end

  it("is whether the prior is that of a case to which none was given", function()
    assert.is_true(told { s_q = 64 })
    assert.is_true(told { s_q = 64, prior = 8128 })
    assert.is_true(told { s_q = 9000, prior = 0 })
    assert.is_true(told { s_q = 65, requests = 2 }) -- of 33 and 32 rows
    assert.is_true(told { s_q = 64, requests = { 60, 4 } })
    assert.is_false(told { s_q = 64, prior = 0 })
    assert.is_false(told { s_q = 65, requests = 2, prior = 8159 })
    assert.is_nil(told { s_q = 64, pattern = "uniform" })
  end)
end)

describe("the id of a case", function()
  it("changes with every option", function()
    -- Two values of each option that make different cases, beside options that the first one needs.
    local uniform, window = { pattern = "uniform", s_kv = 64, topk = 16 }, { pattern = "window" }
    local OTHER = {
      s_q = { 5 }, heads = { 16 }, h_q = { 16 }, pattern = { "local" }, layout = { "vllm" }, s_kv = { 100, uniform },
      topk = { 17, uniform }, window = { 64, window }, index_topk = { 100 }, ratio = { 2 }, prior = { 7 }, requests = { 2 },
      keep = { 0.5, { pattern = "local" } }, block = { 4, { pattern = "blocks" } },
      holes = { 0.5 }, repeats = { true, uniform }, lengths = { "none" },
      invalid_rows = { 0.5 }, boundaries = { true }, h_pad = { 128 }, d_qk = { 576 }, values = { "flashmla" }, scale_q = { 2 },
      sink = { "none" }, sm_scale = { 0.5 }, lse = { false }, max_logits = { false }, seed = { 1 },
    }
    local SAME = { preset = true, d_v = true, indices = true } -- a name for sizes; one value; a file
    for _, key in ipairs(case.options) do
      local one = OTHER[key]
      assert.is_true(SAME[key] or one ~= nil, key)
      if one then
        local options = { s_q = 4 }
        for name, value in pairs(one[2] or {}) do options[name] = value end
        local before = case(options):id()
        options[key] = one[1]
        assert.not_equal(before, case(options):id(), key)
      end
    end
  end)
end)

describe("a case whose pattern is a function", function()
  local function three(row) return { row, row + 1, -1 } end

  it("asks row by row: topk is the longest list, s_kv the largest KV row + 1, topk_length the list's length", function()
    local asked = {}
    local c = case { s_q = 3, seed = 5, pattern = function(row, sizes)
      asked[#asked + 1] = { row, sizes.s_q, sizes.seed, sizes.topk or "no topk" }
      return row == 1 and {} or { 2 * row, -1, 7 }
    end }
    assert.same({ { 0, 3, 5, "no topk" }, { 1, 3, 5, "no topk" }, { 2, 3, 5, "no topk" } }, asked)
    assert.same({ "function", 3, 8 }, { c.pattern, c.topk, c.s_kv })
    local lists, got = c:lists(), {}
    for i = 0, 8 do got[i + 1] = lists.indices[i] end
    assert.same({ 0, -1, 7, -1, -1, -1, 4, -1, 7 }, got)
    assert.same({ 3, 0, 3 }, { lists.topk_length[0], lists.topk_length[1], lists.topk_length[2] })
    assert.same({ 2, 0, 2 }, { lists.keys[0], lists.keys[1], lists.keys[2] })
  end)

  it("pads lists to topk, and takes s_kv", function()
    local c = case { s_q = 2, topk = 5, s_kv = 100, pattern = three }
    assert.same({ 5, 100 }, { c.topk, c.s_kv })
    assert.equal(-1, c:lists().indices[4])
  end)

  it("or fills an int32 tensor", function()
    local c = case { s_q = 2, topk = 3, pattern = { name = "mine", fill = function(indices, sizes)
      assert.same({ "i32", 2, 3, -1 }, { indices.dtype, indices.shape[1], indices.shape[2], indices:get(2, 3) })
      assert.equal(3, sizes.topk)
      indices:set(1, 1, 9)
      indices:set(2, 3, 4)
    end } }
    assert.same({ "function", "mine", 10 }, { c.pattern, c.pattern_name, c.s_kv })
    local lists, got = c:lists(), {}
    for i = 0, 5 do got[i + 1] = lists.indices[i] end
    assert.same({ 9, -1, -1, -1, -1, 4 }, got)
    assert.is_nil(lists.topk_length)
  end)

  it("says in its id what the lists are, and is no table of options any more", function()
    local a, b = case { s_q = 2, pattern = three }, case { s_q = 2, pattern = function(row) return { row, row + 1, -1 } end }
    assert.equal(a:id(), b:id())
    assert.not_equal(a:id(), case({ s_q = 2, s_kv = 3, topk = 3, pattern = function(row) return { row } end }):id())
    assert.matches("^function s_q=2 s_kv=3 .* lists=%x+$", a:id())
    assert.matches("^function%(mine%) s_q=2 ", case({ s_q = 2, pattern = { row = three, name = "mine" } }):id())
    assert.same({ false, true }, { a:portable(), case({ s_q = 2 }):portable() })
    refused('case: pattern: got "function", wanted one of '
      .. NAMES, a:describe())
  end)

  it("is compared like any other, and the record says what made the lists and that it ran in this process", function()
    local c = case { s_q = 4, pattern = { row = three, name = "mine" } }
    local compare = require "fewhead.measure.compare"
    local found = assert(compare(c, { "padded", "gather" }, { max_seconds = 0, device = helper.device() }))
    for _, record in ipairs(found.records) do
      assert.same({ "pass", "function", "mine", "script" }, { record.parity.status, record.case.pattern, record.case.pattern_name,
        record.run.process })
      require("fewhead.base.json").encode(record)
    end
    c:free()
  end)

  it("refuses lists that are none, with the row and the entry, on the caller's line", function()
    refused("case: pattern: row 0: got 5, wanted a list of KV rows", { s_q = 2, pattern = function() return 5 end })
    refused("case: pattern: row 1: got nil, wanted a list of KV rows",
      { s_q = 2, pattern = function(row) return row == 0 and {} or nil end })
    refused("case: pattern: row 0, entry 2: got 10, wanted a KV row in 0 .. 9, or -1",
      { s_q = 2, s_kv = 10, pattern = function() return { 3, 10 } end })
    refused("case: pattern: row 0, entry 1: got -2, wanted a KV row in 0 .. 2147483646, or -1",
      { s_q = 2, pattern = function() return { -2 } end })
    refused("case: pattern: row 0, entry 1: got 1.5, wanted a KV row in 0 .. 9, or -1",
      { s_q = 2, s_kv = 10, pattern = function() return { 1.5 } end })
    refused('case: pattern: row 0, entry 1: got "3", wanted a KV row in 0 .. 9, or -1',
      { s_q = 2, s_kv = 10, pattern = function() return { "3" } end })
    refused("case: pattern: row 0: got 2 entries, wanted at most topk = 1",
      { s_q = 2, topk = 1, pattern = function() return { 3, 10 } end })
    refused("case: pattern: row 1, entry 2: got 10, wanted a KV row in 0 .. 9, or -1",
      { s_q = 2, s_kv = 10, topk = 2, pattern = { fill = function(t) t:set(2, 2, 10) end } })
    refused("case: topk: got nil, wanted the width of the lists that the function fills",
      { s_q = 2, pattern = { fill = function() end } })
    refused('case: ratio: has no effect with pattern "function"; patterns that take it: csa, local, blocks, all',
      { s_q = 2, ratio = 2, pattern = three })
    refused("case: pattern: got a table, wanted one of "
      .. NAMES .. ", a function(row), "
      .. "{ row = function } or { fill = function }", { s_q = 2, pattern = { row = three, fill = three } })
  end)

  it("shows the line of the function that raises, below the caller's", function()
    local line = debug.getinfo(1, "l").currentline
    local function bad(row) return row == 1 and { row.x.y } or {} end
    local ok, err = pcall(function() local c = case { s_q = 3, pattern = bad } return c end)
    assert.is_false(ok)
    local wanted = "case_spec%%.lua:%d: case: pattern: row 1: [^:]*case_spec%%.lua:%d: attempt to index "
    assert.matches(wanted:format(line + 2, line + 1), err)
    ok, err = pcall(function() local c = case { s_q = 3, topk = 1, pattern = { fill = bad } } return c end)
    assert.is_true(ok, err) -- a tensor is no 1: the function writes nothing
  end)
end)
