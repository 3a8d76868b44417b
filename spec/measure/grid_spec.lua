local case = require "fewhead.case.case"
local device = require "fewhead.device.device"
local grid = require "fewhead.measure.grid"
local json = require "fewhead.base.json"
local helper = require "spec.helper"

local dev = device.default()

-- What `fewhead parity ARGS` prints, its stderr too where `both`, and its exit status.
local function parity(words, both)
  local pipe = io.popen(("FEWHEAD_DEVICE=cpu '%sfewhead' parity %s 2>%s; echo status $?"):format(helper.root, words,
    both and "&1" or "/dev/null"))
  local text = pipe:read("*a")
  pipe:close()
  local out, status = text:match("^(.*)status (%d+)\n$")
  return out, tonumber(status)
end

local with_file = helper.with_file

-- How often each value of a field of the cases occurs.
local function census(cases, key)
  local count = {}
  for _, entry in ipairs(cases) do
    local value = entry.case[key]
    if value ~= nil then count[value] = (count[value] or 0) + 1 end
  end
  return count
end

local LINE = '{"group":"regular","d_qk":576,"h_q":128,"s_q":62,"s_kv":95,"topk":128,"attn_sink":true,"topk_length":false,'
  .. '"some_rows_all_invalid":true,"check":true}'

describe("grid.own", function()
  local own = grid.own()

  it("has every head count, both widths, all layouts, sinks and patterns", function()
    local heads = census(own, "h_q")
    for _, h_q in ipairs { 1, 2, 4, 5, 8, 12, 16, 20, 32, 48, 63, 64, 65, 66, 80, 96, 100, 127, 128 } do
      assert.is_true((heads[h_q] or 0) >= 2, h_q)
    end
    for key, values in pairs {
      d_qk = { 512, 576 }, layout = { "contiguous", "vllm", "strided", "offset" }, sink = { "normal", "none", "flashmla" },
      pattern = { "uniform", "window", "csa", "local", "dense_prefix" }, ratio = { 1, 2, 4, 128 }, repeats = { true },
      lengths = { "natural", "none", "uniform", 0 }, invalid_rows = { 0, 0.3, 1 }, lse = { false }, max_logits = { false },
      topk = { 0, 1, 63, 64, 65, 128 }, s_q = { 1, 7, 8, 9, 62, 63, 64, 65 }, s_kv = { 0, 1, 95, 592 },
    } do
      local seen = census(own, key)
      for _, value in ipairs(values) do assert.is_true((seen[value] or 0) >= 1, key .. " " .. tostring(value)) end
    end
  end)

  it("has lists longer than the KV rows, holes, several requests and every place of a group", function()
    local longer, holes, requests, groups = 0, 0, 0, {}
    for _, entry in ipairs(own) do
      local c = entry.case
      if c.topk > c.s_kv then longer = longer + 1 end
      if (c.holes or 0) > 0 then holes = holes + 1 end
      if (c.requests or 1) ~= 1 then requests = requests + 1 end
      if entry.call.group then groups[entry.call.group] = true end
    end
    assert.is_true(longer > 20 and holes > 20 and requests > 2)
    for _, group in ipairs { 1, 2, 3, 7, 8, 33, 64 } do assert.is_true(groups[group]) end
  end)

  it("has no case twice", function()
    local seen = {}
    for _, entry in ipairs(own) do
      local key = ("%s %s %s"):format(entry.case:id(), entry.call.group or 0, tostring(entry.call.row_invariant))
      assert.is_nil(seen[key], key)
      seen[key] = true
    end
  end)
end)

describe("grid.production", function()
  it("is the published kernel's: 8 of 64 heads, topk 640, length 512, sink, in vLLM's buffers", function()
    local cases = grid.production()
    for i, s_q in ipairs { 64, 2048, 8192 } do
      local c = cases[i].case
      assert.same({ s_q, 8, 64, 512, 640, 512, "normal", "vllm" },
        { c.s_q, c.h_q, c.h_pad, c.d_qk, c.topk, c.lengths, c.sink, c.layout })
    end
  end)
end)

describe("grid.file", function()
  it("makes cases as FlashMLA's generator does, each line at native heads too", function()
    with_file(LINE .. "\n" .. LINE .. "\n", function(path)
      local cases = assert(grid.file(path))
      local heads = {}
      for i, entry in ipairs(cases) do heads[i] = entry.case.h_q end
      local once = { 128, 1, 2, 4, 5, 8, 12, 16, 20, 32, 48, 63 }
      for i = 1, 12 do once[12 + i] = once[i] end
      assert.same(once, heads)
      local c = cases[1].case
      assert.same({ 576, 62, 95, 128 }, { c.d_qk, c.s_q, c.s_kv, c.topk })
      assert.same({ "uniform", "strided", "flashmla", 0.5, "flashmla", "none", 0.02, false },
        { c.pattern, c.layout, c.values, c.sm_scale, c.sink, c.lengths, c.invalid_rows, c.repeats })
      assert.matches("/regular$", cases[1].group)
    end)
  end)

  it("names file and line of what it cannot take", function()
    local function why(text)
      local message
      with_file(LINE .. "\n" .. text, function(path)
        local cases, err = grid.file(path)
        assert.is_nil(cases)
        message = err:gsub("^.*/", ""):gsub("^[^:]*:", "FILE:")
      end)
      return message
    end
    assert.matches("^FILE:2: json: expected comma or object end but found T_END at character", why("{\"group\":1"))
    assert.equal("FILE:2: got 3, wanted an object", why("3"))
    assert.equal("FILE:2: h_q: got nil, wanted a number", why((LINE:gsub('"h_q":128,', ""))))
    assert.equal('FILE:2: attn_sink: got "yes", wanted a boolean', why((LINE:gsub('"attn_sink":true', '"attn_sink":"yes"'))))
    assert.equal("FILE:2: case: h_q: got 200, wanted a whole number in 1 .. 128", why((LINE:gsub('"h_q":128', '"h_q":200'))))
    assert.equal("FILE:2: case: d_qk: got 500, wanted one of 512, 576", why((LINE:gsub('"d_qk":576', '"d_qk":500'))))
  end)

  it("does not take an empty file for a grid", function()
    with_file("\n", function(path)
      local cases, err = grid.file(path)
      assert.is_nil(cases)
      assert.equal(path .. ": no cases", err)
    end)
  end)
end)

describe("grid.run", function()
  local function entry(options, more)
    local e = { group = "spec", options = options, case = case(options), call = {} }
    for key, value in pairs(more or {}) do e[key] = value end
    return e
  end
  local small = { h_q = 8, s_q = 9, pattern = "uniform", s_kv = 50, topk = 20 }

  it("checks every path of every case and counts", function()
    local seen = {}
    local totals = grid.run {
      device = dev, cases = { entry(small), entry(small, { paths = { "packed" }, call = { group = 2 } }) },
      on_result = function(e, c, result)
        assert.equal("spec", e.group)
        assert.equal(9, c.s_q)
        seen[#seen + 1] = result.path .. " " .. result.status
      end,
    }
    local wanted, packs = {}, dev:has_path("packed")
    for i, path in ipairs(helper.paths(dev)) do wanted[i] = path .. " pass" end
    if packs then wanted[#wanted + 1] = "packed pass" end
    assert.same(wanted, seen)
    assert.same({
      passed = #wanted, failed = 0, invalid = 0, refused = 0, sampled = 0, checks = #wanted, cases = packs and 2 or 1,
    }, totals)
    assert.is_true(grid.ok(totals))
  end)

  it("runs only the paths that were asked for", function()
    local totals = grid.run { device = dev, cases = { entry(small), entry(small, { paths = { "auto" } }) }, paths = { "gather" } }
    assert.same({ 1, 1 }, { totals.checks, totals.cases })
  end)

  it("runs fewer rows of what is too large and says so", function()
    local large = entry { h_q = 128, s_q = 70000, pattern = "uniform", s_kv = 256, topk = 256, sink = "none" }
    local rows, sampled
    local totals = grid.run {
      device = dev, cases = { large }, paths = { "gather" },
      on_result = function(e, c, result) rows, sampled = { e.case.s_q, c.s_q }, result.sampled end,
    }
    assert.equal(1, totals.passed)
    assert.equal(1, totals.sampled)
    assert.equal(70000, rows[1])
    assert.is_true(rows[2] < 1000 and sampled <= rows[2] and sampled >= 1)
  end)

  it("is not content with nothing, a failure or something undecided", function()
    assert.is_false(grid.ok(grid.run { device = dev, cases = {} }))
    -- A group that the library refuses: nothing was compared.
    local refused = entry(small, { paths = { "packed" }, call = { group = 9 } })
    local totals = grid.run { device = dev, cases = { refused, entry(small) }, paths = { "gather", "packed" } }
    local wanted = dev:has_path("packed") and { 2, 0, 1 } or { 1, 0, 2 }
    assert.same(wanted, { totals.passed, totals.failed, totals.invalid })
    assert.is_false(grid.ok(totals))
    assert.is_false(grid.ok { passed = 5, failed = 1, invalid = 0 })
  end)

  it("finds a wrong kernel", function()
    local wrong = entry(small)
    local real = assert(wrong.case:problem(dev))
    local broken = setmetatable({
      run = function(_, path, outputs, opts)
        local counters = real:run(path, outputs, opts)
        if path == "gather" then outputs.lse:set(9, 8, 0) end
        return counters
      end,
    }, {
      __index = function(_, key)
        local value = real[key]
        if type(value) ~= "function" then return value end
        return function(_, ...) return value(real, ...) end
      end,
    })
    wrong.case = setmetatable({ problem = function() return broken end, free = function() end }, { __index = wrong.case })
    local reason
    local totals = grid.run {
      device = dev, cases = { wrong }, on_result = function(_, _, result) reason = result.reason or reason end,
    }
    assert.same({ #helper.paths(dev) - 1, 1, 0 }, { totals.passed, totals.failed, totals.invalid })
    assert.matches("^lse: got 0, wanted %-?[%d.]+ at row 8, head 7; 1 of 72 values", reason)
  end)
end)

describe("fewhead parity", function()
  it("prints a line a check, the counts, and exits 0 when all passed", function()
    local out, status = parity "--filter 'own/empty: uniform s_q=11 s_kv=10 '"
    assert.equal(0, status)
    local lines = {}
    for line in out:gmatch("(.-)\n") do lines[#lines + 1] = line end
    local checks = 4 * #helper.paths(dev)
    assert.equal(checks + 1, #lines)
    assert.matches("^pass    padded own/empty: uniform s_q=11 s_kv=10 h_q=8/64 .* max_abs 0.0e%+00 rel 0.0e%+00 cos", lines[1])
    assert.equal(("%d passed, 0 failed, 0 invalid (0 on a sample of rows) of %d checks, 4 cases"):format(checks, checks),
      lines[checks + 1])
  end)

  it("writes records with --json, and only those to stdout", function()
    local out, status = parity "--json --path gather --filter 'own/models'"
    assert.equal(0, status)
    local count = 0
    for line in out:gmatch("(.-)\n") do
      local r = assert(json.decode(line))
      assert.same({ "gather", "fewhead", "own/models", "pass", "reference" },
        { r.path, r.provider, r.set, r.parity.status, r.parity.against })
      assert.equal(12, r.rows)
      assert.is_true(r.parity.compared > 0)
      assert.matches("^%d+T", r.run.id)
      assert.is_nil(r.time)
      count = count + 1
    end
    assert.equal(5, count)
  end)

  it("runs the cases of a file alone with --grid", function()
    with_file(LINE .. "\n", function(path)
      local out, status = parity(("--grid '%s' --path gather"):format(path))
      assert.equal(0, status)
      assert.matches("12 passed, 0 failed, 0 invalid %(%d on a sample of rows%) of 12 checks, 12 cases\n$", out)
    end)
  end)

  it("exits 1 when nothing ran", function()
    local out, status = parity("--filter 'no such case'", true)
    assert.equal(1, status)
    assert.equal("0 passed, 0 failed, 0 invalid (0 on a sample of rows) of 0 checks, 0 cases\n"
      .. "fewhead: parity: nothing ran\n", out)
  end)

  it("exits 1 on a bad line of a grid and names it", function()
    with_file("{}\n", function(path)
      local out, status = parity(("--grid '%s'"):format(path), true)
      assert.equal(1, status)
      assert.equal(("fewhead: parity: %s:1: group: got nil, wanted a string\n"):format(path), out)
    end)
  end)

  it("exits 2 on wrong options", function()
    local out, status = parity("--pth gather", true)
    assert.equal(2, status)
    assert.equal("fewhead: parity: unknown option --pth; did you mean --path? (--help lists the options)\n", out)
    out, status = parity("--path gathr", true)
    assert.equal(2, status)
    assert.matches("--path: got \"gathr\", wanted one of auto, padded, gather, packed", out, 1, true)
    assert.equal(2, select(2, parity "--grid /no/such/file"))
    out, status = parity("--device cup", true)
    assert.equal(2, status)
    assert.matches('fewhead: parity: .*"cup"', out)
    assert.equal(0, select(2, parity "--help"))
  end)
end)
