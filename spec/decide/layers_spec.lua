-- A chunk through a model's layers: fh.chunk and fewhead.layers.
local chunk = require "fewhead.measure.chunk"
local json = require "fewhead.base.json"
local layers = require "fewhead.decide.layers"
local plan = require "fewhead.device.plan"
local preset = require "fewhead.case.preset"
local tensor = require "fewhead.device.tensor"
local helper = require "spec.helper"

require("fewhead.measure.assert").register()

-- A few rows late in a prompt that is long enough for full lists.
local function small(changes)
  local o = { preset = "v4.1-flash tp8", s_q = 3, prior = 1400, pattern = "local", layout = "contiguous", seed = 3 }
  for key, v in pairs(changes or {}) do o[key] = v end
  return o
end

local function count_layers(c)
  local counts = {}
  for i, list in ipairs(c.lists) do counts[i] = #list.layers end
  return counts
end

-- The bits of a tensor of outputs, as one list of words.
local function bits(t)
  local host, n = assert(t:read())
  local list = {}
  for i = 0, n - 1 do list[i + 1] = host[i] end
  return list
end

describe("a chunk of V4.1-Flash", function()
  local dev, c, paths
  setup(function()
    dev = helper.device()
    paths = helper.paths(dev)
    paths[#paths + 1] = "auto"
    c = assert(chunk.build(dev, small()))
  end)
  teardown(function()
    c:free()
    dev:close()
  end)

  it("is 40 layers on 9 lists: 2 window-only, then 3 lists for 6 layers at ratio 2, then 5 for 4 at ratio 1", function()
    assert.equal(40, #c.layers)
    assert.same({ 2, 6, 6, 6, 4, 4, 4, 4, 4 }, count_layers(c))
    local ratios, widths, rows = {}, {}, {}
    for i, list in ipairs(c.lists) do ratios[i], widths[i], rows[i] = list.ratio, list.case.topk, list.case.s_kv end
    assert.same({ 0, 2, 2, 2, 1, 1, 1, 1, 1 }, ratios)
    assert.same({ 128, 640, 640, 640, 640, 640, 640, 640, 640 }, widths)
    -- 3 rows and the 127 before them; 1403 tokens by twos and by ones
    assert.same({ 130, 831, 831, 831, 1533, 1533, 1533, 1533, 1533 }, rows)
    assert.equal(40, #c.buffers)
  end)

  it("gives layers of one list the same indices, and nothing else in common", function()
    local first, second, other = c.layers[3].problem, c.layers[4].problem, c.layers[9].problem
    assert.same(bits(first.indices), bits(second.indices))
    assert.are_not.same(bits(first.indices), bits(other.indices))
    assert.are_not.same(bits(first.q), bits(second.q))
    assert.are_not.same(bits(first.kv), bits(second.kv))
    assert.equal(first.indices:data(), second.indices:data())
  end)

  it("is 40 calls on a path without plans, and 9 plans more on one with them, each before the first layer of its list", function()
    local packs = c:has_plans("packed")
    assert.equal(40, #c:steps("padded"))
    assert.equal(40, #c:steps("gather"))
    assert.equal(packs and 49 or 40, #c:steps("auto"))
    assert.equal(packs and 9 or 0, #c:steps("plans"))
    if not packs then return end
    assert.equal(49, #c:steps("packed"))
    assert.equal(7, #c:steps("packed", 2))
    assert.equal(c.lists[2].rebuild.packed, c:steps("packed", 2)[1])
    assert.equal(c.lists[5].rebuild.packed, c:steps("packed")[1 + 2 + 3 * 7 + 1])
  end)

  it("gives every layer what its call gives alone, bit for bit", function()
    for _, path in ipairs(paths) do
      for _, layer in ipairs(c.layers) do layer.outputs:poison() end
      assert.equal(0, assert(c:runner(path))())
      assert(dev:synchronize())
      for i, list in ipairs(c.lists) do
        for _, layer in ipairs(list.layers) do
          local alone = assert(layer.problem:outputs())
          assert(layer.problem:run(path, alone, { plan = c:has_plans(path) and list.plan or nil }))
          for _, name in ipairs { "out", "lse", "max_logits" } do
            assert.same(bits(alone[name]), bits(layer.outputs[name]), ("%s, list %d, layer %d"):format(path, i, layer.number))
          end
          assert.untouched(layer.outputs)
          alone:free()
        end
      end
    end
  end)

  it("builds its plans anew from the lists of the next chunk", function()
    if not c:has_plans("packed") then pending("no plans where the device does not pack") end
    local next_one = assert(chunk.build(dev, small { seed = 3 }))
    local run = assert(next_one:runner("packed"))
    assert.equal(0, run())
    local list = next_one.lists[4]
    local other = c.lists[6].indices:read() -- of ratio 1: rows past those of ratio 2 are left out
    assert(list.indices:write(other))
    assert.equal(0, run())
    assert(dev:synchronize())
    local last = list.layers[6]
    local want = assert(last.problem:outputs())
    assert(last.problem:run("gather", want))
    local result = require("fewhead.measure.parity").compare(last.outputs, want)
    assert.equal("pass", result.status, result.reason)
    next_one:free()
  end)

  it("is checked layer by layer against the oracle, also where layers take turns on buffers", function()
    for _, buffers in ipairs { 40, 7, 1 } do
      local turns = assert(chunk.build(dev, small { buffers = buffers }))
      assert.equal(buffers, #turns.buffers)
      assert.equal(turns.layers[1].outputs, (turns.layers[1 + buffers] or turns.layers[1]).outputs)
      local wants = assert(turns:answers(1e12))
      for _, path in ipairs(paths) do
        local results = assert(turns:check(path, assert(turns:runner(path)), wants))
        assert.equal(9, #results)
        for i, r in ipairs(results) do
          assert.equal("pass", r.status, ("%d buffers, %s, list %d: %s"):format(buffers, path, i, tostring(r.reason)))
          assert.equal(3 * 8 * 512, r.compared)
        end
      end
      -- an answer of another list is no answer
      wants[9], wants[8] = wants[8], wants[9]
      local results = assert(turns:check("gather", assert(turns:runner("gather")), wants))
      assert.same({ "pass", "fail", "fail" }, { results[7].status, results[8].status, results[9].status })
      turns:free()
    end
  end)

  it("gives all memory back, and is safe twice", function()
    collectgarbage()
    collectgarbage()
    local before = tensor.live_bytes()
    local one = assert(chunk.build(dev, small()))
    assert.equal(0, assert(one:runner("auto"))())
    assert(dev:synchronize())
    one:free()
    one:free()
    assert.equal(before, tensor.live_bytes())
  end)
end)

describe("chunks of other models", function()
  local dev
  setup(function() dev = helper.device() end)
  teardown(function() dev:close() end)

  it("have the lists of their layers", function()
    local glm = assert(chunk.build(dev, small { preset = "glm-5.2 tp16", s_q = 1, prior = 40, pattern = "csa" }))
    assert.equal(78, #glm.layers)
    assert.equal(21, #glm.lists)
    assert.same({ 1, 1, 4, 4 }, { unpack(count_layers(glm), 1, 4) })
    local p = glm.layers[78].problem
    assert.same({ 4, 576, 2048, 41 }, { p.case.h_q, p.case.d_qk, p.case.topk, p.case.s_kv })
    assert.is_nil(p.attn_sink)
    glm:free()
  end)
end)

describe("layers", function()
  local function every_run_takes_a_millisecond(run) return 1000, run() end

  it("compares a model's chunk path by path", function()
    local dev = helper.device()
    local o = small { s_q = 2, prior = 30, paths = { "padded", "native", "auto" }, device = dev, max_samples = 6 }
    o.stopwatch = every_run_takes_a_millisecond
    local result = assert(layers(o))
    assert.equal(dev:has_path("packed") and 4 or 3, #result.records)
    for _, record in ipairs(result.records) do
      assert.same({ "pass", "reference" }, { record.parity.status, record.parity.against }, record.parity.reason)
      assert.equal(9 * 2 * 8 * 512, record.parity.compared)
      assert.equal(1000, record.time.median_us)
      assert.equal(80, record.work.rows)
      assert.matches("%w+ %w+", record.kernel)
      assert.is_truthy(json.encode(record))
    end
    local described = result:record("padded").case
    assert.same({ "v4.1-flash tp8", 40, 9, 40, 2, 30, 8, 64, 512, "local", 0.9 }, {
      described.preset, described.layers, described.lists, described.buffers, described.s_q, described.prior,
      described.h_q, described.h_pad, described.d_qk, described.pattern, described.keep,
    })
    local steps = result:record("padded").timeline
    assert.equal(40, #steps)
    assert.same({ { list = 1, layer = 1, ratio = 0, us = 1000 }, { list = 2, layer = 3, ratio = 2, us = 1000 } },
      { steps[1], steps[3] })
    assert.is_nil(result:record("padded").plans)
    assert.equal(1, result:record("gather").verdict.ratio)
    if dev:has_path("packed") then
      assert.same({ built = 9, us = 1000, share = 1, packed = 9, groups = 9 }, result:record("packed").plans)
      steps = result:record("packed").timeline
      assert.equal(49, #steps) -- a plan before the layers that share it
      assert.same({ { list = 1, ratio = 0, us = 1000 }, { list = 2, ratio = 2, us = 1000 } }, { steps[1], steps[4] })
      local auto = result:record("auto").plans
      -- auto packs the groups that a plan built for auto says, list by list
      local c, packed = assert(chunk.build(dev, small { s_q = 2, prior = 30 })), 0
      for _, list in ipairs(c.lists) do
        local made = assert(plan.build(list.problem, { path = "auto" }))
        packed = packed + made.groups - made:unpacked()
        made:free()
      end
      c:free()
      assert.same({ 9, packed }, { auto.groups, auto.packed })
      -- two rows at 30 and 31: all tokens up to them, once as compressed rows and once as the window
      assert.same({ ratio = 1, layers = 4, lists = 5, topk = 640, s_kv = 64, union_per_group = 64, dedup = 126 / 64 },
        described.kinds[3])
    end
    local text = tostring(result)
    assert.matches("^v4%.1%-flash tp8 on [^\n]+: 2 rows after 30 through 40 attention layers, lists local %(0%.9 kept%)", text)
    assert.matches("\n  3 lists for 6 layers each, ratio 2: topk 640, 48 KV rows", text)
    assert.matches("\npadded +1%.00 ", text)
    assert.equal(dev:has_path("packed"), text:match("\nauto packs %d of the plans' 9 groups") ~= nil)
    dev:close()
  end)

  it("times nothing that is wrong", function()
    local dev = helper.device()
    local check = chunk.build
    local result
    -- padded is led astray: its layers are asked for another list's answer
    finally(function() chunk.build = check end)
    chunk.build = function(...)
      local c, err = check(...)
      local answers = c.answers
      function c:answers(flops)
        local wants = answers(self, flops)
        wants[1], wants[2] = wants[2], wants[1]
        return wants
      end
      return c, err
    end
    result = assert(layers(small { s_q = 2, prior = 30, paths = { "padded", "gather" }, device = dev }))
    for _, record in ipairs(result.records) do
      assert.equal("fail", record.parity.status)
      assert.matches("^list 1: out: got ", record.parity.reason)
      assert.is_nil(record.time)
      assert.is_nil(record.verdict)
    end
    assert.matches("\npadded: list 1: out: got ", tostring(result))
    dev:close()
  end)

  it("refuses what it cannot run, on the caller's line", function()
    local function refused(message, o) assert.equal(message, helper.refusal(function() layers(o) end)) end
    refused('layers: preset: got "v4.1", wanted one of ' .. #preset.names()
      .. ' names (fewhead run gate_sweep --list lists them); did you mean '
      .. '"v4.1-flash tp1", "v4.1-flash tp16" or "v4.1-flash tp2"?', { preset = "v4.1" })
    refused("layers: s_q: got 0, wanted a whole number in 1 .. 2147483647", { s_q = 0 })
    refused("layers: s_q: got {8, 16}, wanted a whole number in 1 .. 2147483647", { s_q = { 8, 16 } })
    refused("layers: prior: got -1, wanted a whole number in 0 .. 2147483647", { prior = -1 })
    refused("layers: keep: has no effect without pattern local", { pattern = "csa", keep = 0.5 })
    local option = require "fewhead.base.option"
    refused('layers: unknown option "noise"; known: ' .. table.concat(option.keys(layers.rows), ", "), { noise = false })
    for _, key in ipairs { "noise", "cold", "stopped" } do assert.is_nil(layers.rows.by_key[key]) end -- they have no effect here
    refused("layers: buffers: got 0, wanted a whole number >= 1", { buffers = 0 })
    refused('layers: pattern: got "uniform", wanted one of local, csa', { pattern = "uniform" })
    refused('layers: paths[2]: got "reference", wanted one of native, auto, padded, gather, packed',
      { paths = { "padded", "reference" } })
    local err = helper.refusal(function() layers { heads = 8 } end)
    assert.matches('^layers: unknown option "heads"; known: preset, s_q, prior, pattern, ', err)
  end)
end)

describe("experiments/layers.lua", function()
  local process = require "spec.process"

  it("prints and writes the comparison of each model, prompt and pattern", function()
    local folder = helper.folder()
    local status, out, err = process.run {
      "./fewhead", "run", "experiments/layers.lua", "--s-q", "1", "--prior", "20,30", "--pattern", "local,csa", "--seconds", "0",
      "--preset", "v4.1-flash tp8", "--out", folder,
    }
    assert.same({ 0, "" }, { status, err })
    assert.matches("^v4%.1%-flash tp8 on .-: 1 rows after 20 .-, lists local %(0%.9 kept%), layout vllm\n", out)
    assert.matches("\n\nv4%.1%-flash tp8 on .-: 1 rows after 30 .-, lists csa, layout vllm\n", out)
    local _, tables = out:gsub("\npath +ms a chunk ", "")
    assert.equal(4, tables)
    local records = 0
    for record in json.lines(folder .. "latest/records.jsonl") do
      assert.same({ "pass", 40, 9 }, { record.parity.status, record.case.layers, record.case.lists })
      records = records + 1
    end
    local _, rows = out:gsub("\n%l+ +%d+%.%d+ ", "")
    assert.equal(rows, records)
    local text = helper.read(folder .. "latest/report.md")
    assert.matches("^# One chunk through all attention layers on .-\n\n%- command: .-\n\n```\nv4%.1%-flash tp8 on ", text)
    local words = "--pattern local,csa --seconds 0 --preset 'v4.1-flash tp8' --out " .. folder
    local command = ("`./fewhead run experiments/layers.lua --s-q 1 --prior 20,30 %s`\n"):format(words)
    assert.is_truthy(text:find(command, 1, true), text)
    process.remove(folder)
  end)

  it("refuses wrong options with status 2", function()
    local status, out, err = process.run { "./fewhead", "run", "experiments/layers.lua", "--preset", "v3.2 tp3" }
    assert.same({ 2, "" }, { status, out })
    assert.equal('layers: --preset: got "v3.2 tp3", wanted one of ' .. #preset.names()
      .. ' names (fewhead run gate_sweep --list lists them); did you '
      .. 'mean '
      .. '"v3.2 tp1"? (--help lists the options)\n', err)
  end)
end)
