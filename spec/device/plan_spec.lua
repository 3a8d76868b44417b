local ffi = require "ffi"
local case = require "fewhead.case.case"
local device = require "fewhead.device.device"
local parity = require "fewhead.measure.parity"
local plan = require "fewhead.device.plan"
local tensor = require "fewhead.device.tensor"
local F = require "fewhead.base.ffi"

-- Where groups begin, by their definition: a list of rows from 1, and one past the last. Requests end where the problem says.
local function starts(p, group)
  local list, row = {}, 1
  for r = 2, p.cu_seqlens_q and p.cu_seqlens_q.numel or 2 do
    local last = p.cu_seqlens_q and p.cu_seqlens_q:get(r) or p.s_q
    while row <= last do
      list[#list + 1] = row
      row = math.min(row + group, last + 1)
    end
  end
  list[#list + 1] = p.s_q + 1
  return list
end

-- The unions by their definition, from the lists in the problem's tensors: for each group a list of { token, member }.
local function unions(p, group)
  local c, groups, first = p.case, {}, starts(p, group)
  for g = 1, #first - 1 do
    local rows = first[g + 1] - first[g]
    local copies = {} -- copies[token][k] = the rows that list it at least k times
    for r = 1, rows do
      local s = first[g] + r - 1
      local length = p.topk_length and math.max(0, math.min(p.topk_length:get(s), c.topk)) or c.topk
      local times = {}
      for j = 1, length do
        local t = p.indices:get(s, j)
        if t >= 0 and t < c.s_kv then
          times[t] = (times[t] or 0) + 1
          copies[t] = copies[t] or {}
          copies[t][times[t]] = copies[t][times[t]] or {}
          copies[t][times[t]][r] = true
        end
      end
    end
    local tokens, entries = {}, { token = {}, member = {} }
    for t in pairs(copies) do tokens[#tokens + 1] = t end
    table.sort(tokens)
    for _, t in ipairs(tokens) do
      for _, chosen in ipairs(copies[t]) do
        local text = {}
        for r = 1, rows do text[r] = chosen[r] and "1" or "0" end
        entries.token[#entries.token + 1] = t
        entries.member[#entries.member + 1] = table.concat(text)
      end
    end
    groups[g] = entries
  end
  return groups
end

describe("plan", function()
  local dev
  setup(function() -- what FEWHEAD_DEVICE names, else a CPU
    local name = device.default_name()
    dev = assert(device.open(name, name == "cpu" and { threads = 2 } or nil))
  end)
  teardown(function() dev:close() end)

  -- A problem whose lists are these. options.requests: the rows of its requests, which no group crosses.
  local function problem_of(lists, options)
    if options and options.requests then
      local p = assert(case { pattern = "window", s_q = #lists, topk = #lists[1], window = 1, requests = options.requests,
        s_kv = 10 * #options.requests, prior = 0, lengths = "none", h_q = 8, boundaries = true }:problem(dev))
      assert(p.indices:from_table(lists))
      return p
    end
    local o = { pattern = "uniform", s_q = #lists, topk = #lists[1], s_kv = 10, h_q = 8 }
    for key, v in pairs(options or {}) do o[key] = v end
    local p = assert(case(o):problem(dev))
    assert(p.indices:from_table(lists))
    return p
  end

  it("holds the union of each group, in order, with who chose what", function()
    local p = problem_of { { 3, 1, -1, 7 }, { 7, 3, 12, 5 }, { 9, 0, 2, 4 } }
    local made = assert(plan.build(p, { group = 2 }))
    assert.same({ 3, 2, 2, 8 }, { made.s_q, made.groups, made.group, made.capacity })
    assert.same({ 4, 4 }, made:entries())
    assert.same({ token = { 1, 3, 5, 7 }, member = { "10", "11", "01", "11" } }, made:group_entries(1))
    assert.same({ token = { 0, 2, 4, 9 }, member = { "1", "1", "1", "1" } }, made:group_entries(2))
    assert.same({ entries = 8, keys = 10, union_per_row = 8 / 3, dedup = 10 / 8, groups = 2, unpacked = 0 }, made:stats())
    assert.same({ 1, 3, 4 }, made:first())
    assert.equal("plan of 3 rows in 2 groups of 2: 10 keys in 8 entries", tostring(made))
  end)

  it("never puts rows of two requests into a group", function()
    -- a request of three rows, one without any, one of two, one of one; groups of two
    local p = problem_of({ { 3, 1 }, { 1, 5 }, { 1, 1 }, { 1, 7 }, { 8, 7 }, { 7, 1 } }, { requests = { 3, 0, 2, 1 } })
    local made = assert(plan.build(p, { group = 2 }))
    assert.equal(5, made.groups) -- four requests might have made as many
    assert.same({ 1, 3, 4, 6, 7, 7 }, made:first())
    assert.same({ 3, 2, 3, 2, 0 }, made:entries())
    assert.same({ token = { 1, 3, 5 }, member = { "11", "10", "01" } }, made:group_entries(1))
    assert.same({ token = { 1, 1 }, member = { "1", "1" } }, made:group_entries(2))
    assert.same({ token = { 1, 7, 8 }, member = { "10", "11", "01" } }, made:group_entries(3))
    assert.same({ token = { 1, 7 }, member = { "1", "1" } }, made:group_entries(4))
    assert.same({ token = {}, member = {} }, made:group_entries(5))
    assert.same({ entries = 10, keys = 12, union_per_row = 10 / 6, dedup = 12 / 10, groups = 4, unpacked = 0 }, made:stats())
  end)

  it("takes offsets that fall or leave the chunk for boundaries inside it", function()
    local p = problem_of({ { 0 }, { 1 }, { 2 }, { 3 }, { 4 }, { 5 } }, { requests = { 1, 1, 1, 1, 1, 1 } })
    for _, try in ipairs {
      { offsets = { 0, 2, 2, 4, 4, 6, 6 }, first = { 1, 3, 5, 7, 7, 7, 7 } },
      { offsets = { 9, 2, 1, 4, -5, 99, 3 }, first = { 1, 3, 5, 7, 7, 7, 7 } }, -- the same
      { offsets = { 0, 0, 0, 0, 0, 0, 0 }, first = { 1, 5, 7, 7, 7, 7, 7 } }, -- all rows are the last request's
      { offsets = { 6, 7, 6, 6, 6, 6, 6 }, first = { 1, 5, 7, 7, 7, 7, 7 } }, -- the first one's
    } do
      assert(p.cu_seqlens_q:from_table(try.offsets))
      assert.same(try.first, assert(plan.build(p, { group = 4 })):first())
    end
  end)

  it("computes every request of a chunk as if it stood alone, at any number of heads", function()
    local rows = { 5, 1, 0, 14, 7 }
    for _, heads in ipairs { 1, 2, 4, 5, 8, 12, 16, 20, 32 } do
      local p = assert(case { s_q = 27, pattern = "local", window = 8, index_topk = 70, ratio = 2, prior = 300, requests = rows,
        h_q = heads, boundaries = true, holes = 0.1, seed = heads, layout = "vllm" }:problem(dev))
      if not dev:has_path("packed") then return pending("packed is not on this device") end
      local together, alone = assert(p:outputs()), assert(p:outputs())
      assert(p:run("packed", together))
      local first = 0
      for _, count in ipairs(rows) do
        local whole, call = assert(p:call("packed", alone)), ffi.new("fh_call")
        ffi.copy(call, whole, ffi.sizeof("fh_call"))
        call.s_q, call.requests, call.cu_seqlens_q = count, 0, nil
        call.q, call.indices = call.q + first * call.q_stride_s, call.indices + first * call.indices_stride
        call.topk_length = call.topk_length + first
        call.out = ffi.cast("uint16_t *", call.out) + first * call.out_stride_s
        call.lse, call.max_logits = call.lse + first * call.lse_stride, call.max_logits + first * call.max_logits_stride
        assert(F.check(F.C.fh_sparse_fwd(dev.handle, call)))
        assert(dev:synchronize())
        first = first + count
      end
      local result = parity.compare(together, alone, { tolerance = parity.tolerance_of(p) })
      assert.equal("pass", result.status, ("%d heads: %s"):format(heads, tostring(result.reason)))
      assert.equal("pass", parity.check(p, "packed").status)
      if dev.kind == "cpu" then assert.equal(0, result.max_abs) end -- each row by itself, in the same order
      for _, outputs in ipairs { together, alone } do outputs:free() end
      p:free()
    end
  end)

  it("counts a repeated key as often as it stands", function()
    local p = problem_of { { 4, 4, 4, 1 }, { 4, 2, 4, 2 } }
    local made = assert(plan.build(p))
    assert.same({ token = { 1, 2, 2, 4, 4, 4 }, member = { "10", "01", "01", "11", "11", "10" } }, made:group_entries(1))
    assert.equal(8, made:stats().keys)
  end)

  it("reads no further than topk_length", function()
    local p = problem_of({ { 1, 2, 3 }, { 3, 4, 5 } }, { lengths = 2 })
    assert.same({ token = { 1, 2, 3, 4 }, member = { "10", "10", "01", "01" } }, assert(plan.build(p)):group_entries(1))
  end)

  it("agrees with unions made by definition, on lists of every kind and layout", function()
    for i, options in ipairs {
      { pattern = "uniform", s_q = 21, s_kv = 40, topk = 30, repeats = true, holes = 0.2, lengths = "uniform" },
      { pattern = "uniform", s_q = 9, s_kv = 3, topk = 50, repeats = true },
      { pattern = "uniform", s_q = 17, s_kv = 5, topk = 12, invalid_rows = 0.3 },
      { pattern = "csa", s_q = 33, topk = 48, window = 16, ratio = 2, prior = 100, requests = 2 },
      { pattern = "local", s_q = 64, topk = 40, window = 8, prior = 500, lengths = "none" },
      { pattern = "window", s_q = 70, window = 12, prior = 0 },
      { pattern = "dense_prefix", s_q = 10, topk = 20, prior = 5 },
      { pattern = "csa", s_q = 90, topk = 48, window = 16, ratio = 2, prior = 100, requests = { 7, 0, 0, 13, 1, 64, 5 },
        boundaries = true },
      { pattern = "local", s_q = 50, topk = 30, window = 8, ratio = 1, prior = 70, requests = 50, boundaries = true },
    } do
      for k, group in ipairs { 1, 3, 8, 64 } do
        options.h_q, options.seed = 1, i * 10 + k
        options.layout = ({ "contiguous", "vllm", "strided", "offset" })[k]
        local p = assert(case(options):problem(dev))
        local made, wanted = assert(plan.build(p, { group = group })), unions(p, group)
        local first = made:first()
        assert.equal(#wanted, made:stats().groups)
        for g, row in ipairs(starts(p, group)) do assert.equal(row, first[g]) end
        for g = #wanted + 1, made.groups do assert.equal(p.s_q + 1, first[g]) end
        local entries = 0
        for g, union in ipairs(wanted) do
          assert.same(union, made:group_entries(g))
          assert.equal(#union.token, made:entries()[g])
          entries = entries + #union.token
        end
        assert.same({ entries, p.valid_keys }, { made:stats().entries, made:stats().keys })
      end
    end
  end)

  it("fills a tile of 64 with heads where no group is named", function()
    for heads, group in pairs { [1] = 64, [5] = 12, [8] = 8, [20] = 3, [63] = 1, [128] = 1 } do
      local p = assert(case({ s_q = 2, topk = 4, s_kv = 9, pattern = "uniform", h_q = heads }):problem(dev))
      assert.equal(group, assert(plan.build(p)).group)
    end
  end)

  it("shows what eight rows of V4.1 share", function()
    -- 90 % of 512 picks kept from row to row and a window of 128 that moves by one: 8 rows need 135 tokens and at most
    -- 512 + 7 * 51 picks
    local p = assert(case({ s_q = 64, pattern = "local", holes = 0 }):problem(dev))
    local made = assert(plan.build(p))
    for g = 1, 8 do
      local entries = made:entries()[g]
      assert.is_true(entries <= 135 + 512 + 7 * 51 and entries > 135 + 512 + 6 * 51)
    end
    assert.equal(64 * 640, made:stats().keys)
    assert.is_true(math.abs(made:stats().dedup - 5.15) < 0.1)
  end)

  it("may have nothing in it", function()
    local made = assert(plan.build(assert(case({ s_q = 0, pattern = "uniform" }):problem(dev))))
    assert.same({ entries = 0, keys = 0, union_per_row = 0, dedup = 1, groups = 0, unpacked = 0 }, made:stats())
    assert.same({}, made:entries())
    made = assert(plan.build(assert(case({ s_q = 3, topk = 0, pattern = "uniform" }):problem(dev))))
    assert.same({ token = {}, member = {} }, made:group_entries(1))
    assert.equal(0, made:stats().entries)
  end)

  it("is built again in place when the lists have changed", function()
    local p = problem_of { { 1, 2 }, { 2, 3 } }
    local made = assert(plan.build(p))
    local rebuild = assert(made:rebuilder(p))
    assert(p.indices:from_table { { 5, 6 }, { 5, 6 } })
    assert.same({ token = { 1, 2, 3 }, member = { "10", "11", "01" } }, made:group_entries(1))
    assert.equal(0, rebuild())
    assert(dev:synchronize())
    assert.same({ token = { 5, 6 }, member = { "11", "11" } }, made:group_entries(1))
  end)

  it("says for calls with path auto which groups they pack: those that share", function()
    -- eight rows that list the same 200 keys, and eight that list keys of their own
    local lists = {}
    for row = 1, 16 do
      lists[row] = {}
      for k = 1, 200 do lists[row][k] = row <= 8 and k - 1 or row * 200 + k end
    end
    local p = assert(case({ s_q = 16, topk = 200, s_kv = 4000, pattern = "uniform", h_q = 8 }):problem(dev))
    assert(p.indices:from_table(lists))
    -- at these costs 8 rows of 8 heads cost 8 * 8 * 200, packed ones 64 / 2 for each entry of whole blocks of 64
    local costs = ffi.new("fh_costs", { struct_size = ffi.sizeof("fh_costs") })
    costs.padded.gflop_us, costs.gather.gflop_us, costs.packed.gflop_us = 1, 1, 0.5
    local priced = setmetatable({}, { __index = p })
    function priced:bare_call(...) -- luacheck: ignore self
      local call = p:bare_call(...)
      call.costs = costs
      return call
    end
    assert.equal(0, assert(plan.build(priced)):unpacked())
    local auto = assert(plan.build(priced, { path = "auto" }))
    assert.same({ 200, 1600 }, auto:entries())
    assert.equal(1, auto:unpacked())
    assert.same({ 2, 1 }, auto:order())
    assert.equal(0, assert(auto:rebuilder(priced, "packed"))())
    assert(dev:synchronize())
    assert.equal(0, auto:unpacked())
  end)

  it("is not built again from lists that do not fit its memory", function()
    local made = assert(plan.build(problem_of { { 1, 2 } }))
    local build, err = made:rebuilder(problem_of { { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 } })
    assert.is_nil(build)
    assert.matches("^memory_bytes: got %d+, wanted at least %d+$", err)
    assert.same({ token = { 1, 2 }, member = { "1", "1" } }, made:group_entries(1))
  end)

  it("lives without its problem, and goes when it is freed", function()
    collectgarbage()
    collectgarbage()
    local before = tensor.live_bytes()
    local p = problem_of { { 1, 2 }, { 2, 3 } }
    local made = assert(plan.build(p))
    p:free()
    assert.same({ token = { 1, 2, 3 }, member = { "10", "11", "01" } }, made:group_entries(1))
    assert.is_true(ffi.istype("fh_plan", made.struct))
    made:free()
    made:free()
    assert.equal(before, tensor.live_bytes())
    assert.equal("plan (freed)", tostring(made))
    local ok, err = pcall(function() made:stats() end)
    assert.is_false(ok)
    assert.matches("plan_spec%.lua:%d+: plan:stats: used after free%(%)$", err)
  end)

  it("refuses what it cannot plan", function()
    local p = problem_of { { 1, 2 } }
    local made, err = plan.build(p, { group = 9 }) -- 9 * 8 heads do not fit 64 rows
    assert.is_nil(made)
    assert.matches("^group: got 9", err)
    local function refused(message, f)
      local ok, why = pcall(f)
      assert.is_false(ok)
      assert.matches("plan_spec%.lua:%d+: ", why)
      assert.equal(message, (why:gsub("^.*plan_spec%.lua:%d+: ", "")))
    end
    refused("plan.build: problem: got nil, wanted a problem, such as case:problem(dev) gives", function() plan.build() end)
    refused("plan.build: group: got 65, wanted a whole number in 0 .. 64", function() plan.build(p, { group = 65 }) end)
    refused('plan.build: unknown option "groups"; did you mean "group"? known: group, path',
      function() plan.build(p, { groups = 1 }) end)
    made = assert(plan.build(p))
    refused("plan:group_entries: g: got 2, wanted a whole number in 1 .. 1", function() made:group_entries(2) end)
  end)
end)
