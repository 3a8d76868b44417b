local json = require "fewhead.base.json"
local machine = require "fewhead.decide.machine"
local helper = require "spec.helper"

-- Records of a machine whose costs are known: us = call + unit * units + flop * GFLOP.
local COSTS = {
  padded = { 9, 0.01, 1.5 }, gather = { 7, 0.02, 8 }, packed = { 10, 0.03, 1.75 }, plan = { 6, 0.004, 0.5 },
}
local function us(path, units, gflop) return COSTS[path][1] + COSTS[path][2] * units + COSTS[path][3] * gflop end

local PAIR = 2 * (512 + 512) * 1e-9

local function records(change)
  local lines = {}
  for i, s_q in ipairs { 64, 256, 1024, 8192 } do
    for _, dedup in ipairs { 1.5, 3, 6 } do
      local keys, groups = s_q * (400 + 60 * i), s_q / 8
      local entries = math.floor(keys / dedup)
      local shared = { group = 8, groups = groups, entries = entries, keys = keys, dedup = keys / entries, union_per_group = 1 }
      local times = {
        padded = us("padded", s_q, PAIR * 64 * keys), gather = us("gather", s_q, PAIR * 8 * keys),
        packed = us("packed", groups, PAIR * 64 * entries),
      }
      for path, median in pairs(times) do
        local record = {
          path = path, provider = "fewhead", case = { s_q = s_q, h_q = 8, d_qk = 512 }, parity = { status = "pass" },
          plan = shared, run = { device = "Known GPU", commit = "0123456789abcdef" },
          work = { useful_flops = keys },
          time = { median_us = median, p05_us = median, p95_us = median, n = 6, l2 = "hot",
            plan_us = path == "packed" and us("plan", groups, PAIR * 8 * keys) or nil },
        }
        if change then change(record) end
        lines[#lines + 1] = json.encode(record) .. "\n"
      end
    end
  end
  return table.concat(lines)
end

local function opened(text, use)
  local path = helper.folder() .. "packed.jsonl"
  helper.write(path, text)
  local made, err = machine.open(path)
  os.remove(path)
  return use(made, err, path)
end

local WORK = { rows = 4096, keys = 4096 * 600, group = 8, groups = 512, entries = 512 * 1000 }

local function near(wanted, got) assert.is_true(math.abs(got / wanted - 1) < 1e-6, ("got %g, wanted %g"):format(got, wanted)) end

describe("machine", function()
  it("finds the costs that its evidence was made with, and predicts with them", function()
    opened(records(), function(m, err, path)
      assert(m, err)
      local costs = assert(m:costs(8, 512, 64))
      for name, cost in pairs(COSTS) do
        near(cost[1], costs[name].call_us)
        near(cost[2], costs[name].unit_us)
        near(cost[3], costs[name].gflop_us)
      end
      local choice, found = m:predict(WORK, 8)
      near(us("padded", 4096, PAIR * 64 * WORK.keys), found.padded)
      near(us("gather", 4096, PAIR * 8 * WORK.keys), found.gather)
      near(us("packed", 512, PAIR * 64 * WORK.entries), found.packed)
      near(us("plan", 512, PAIR * 8 * WORK.keys), found.plan)
      assert.equal("packed", choice)
      assert.is_true(m:error(8, 512, 4096) < 1e-6)
      assert.equal(("Known GPU, costs fitted to %s of commit 0123456789ab"):format(path), tostring(m))
    end)
  end)

  it("takes for other heads the costs of the next more that were measured, whose tiles they fill in part", function()
    opened(records(), function(m)
      local work = { rows = 4096, keys = WORK.keys, group = 16, groups = 256, entries = 256 * 1500 }
      local _, at4 = m:predict(work, 4)
      local _, at8 = m:predict(WORK, 8)
      near(at8.padded, at4.padded)
      near(at8.gather, at4.gather)
      near(us("packed", 256, PAIR * 64 * work.entries), at4.packed)
      near(us("plan", 256, PAIR * 8 * work.keys), at4.plan)
      local choice, reason = m:predict(work, 16)
      assert.is_nil(choice)
      assert.equal("nothing measured with 16 heads or more and 4096 rows or fewer, d 512", reason)
      assert.equal("nothing measured with 8 heads or more and 4096 rows or fewer, d 576", (select(2, m:predict(WORK, 8, 576))))
    end)
  end)

  it("does not say what smaller chunks than were measured cost", function()
    opened(records(), function(m)
      assert.is_string((m:predict({ rows = 64, keys = 64 * 600, group = 8, groups = 8, entries = 8000 }, 8)))
      local choice, reason = m:predict({ rows = 63, keys = 63 * 600, group = 8, groups = 8, entries = 8000 }, 8)
      assert.is_nil(choice)
      assert.equal("nothing measured with 8 heads or more and 63 rows or fewer, d 512", reason)
    end)
  end)

  it("lets packing pay for the plan, or for its share of it", function()
    opened(records(), function(m)
      local _, found = m:predict(WORK, 8)
      -- as many entries as make packed, plan aside, 1 us cheaper than the better of the others
      local others = math.min(found.padded, found.gather)
      local entries = (others - 1 - 10 - 0.03 * 512) / 1.75 / (PAIR * 64)
      local work = { rows = 4096, keys = WORK.keys, group = 8, groups = 512, entries = math.floor(entries) }
      assert.are_not.equal("packed", (m:predict(work, 8, 512, 1)))
      assert.equal("packed", (m:predict(work, 8, 512, 1000)))
    end)
  end)

  it("learns only from what passed parity and has a time, and not from providers", function()
    local function spoil(record)
      if record.case.s_q ~= 64 then return end
      record.time.median_us = 1e6
      if record.path == "padded" then record.parity.status, record.time = "fail", nil
      elseif record.path == "gather" then record.provider = "flashmla"
      else record.time = nil end
    end
    opened(records(spoil), function(m, err)
      assert(m, err)
      for name, cost in pairs(COSTS) do near(cost[3], m:costs(8, 512, 256)[name].gflop_us) end
    end)
  end)

  it("is also a device that is here, by the library's built-in costs", function()
    local m = assert(machine.open("cpu"))
    local choice, found = m:predict(WORK, 8)
    assert.is_string(choice)
    assert.is_true(found.padded > found.gather and found.gather > 0)
    assert.is_nil(m:error(8, 512, 4096))
    assert.matches(", the library's built%-in costs %(good for choosing, not for predicting%)$", tostring(m))
  end)

  it("is the H200 of the committed evidence", function()
    local m = assert(machine.open("nvidia-h200"))
    local _, found = m:predict({ rows = 8192, keys = 8192 * 570, group = 8, groups = 1024, entries = 1024 * 850 }, 8)
    assert.is_true(found.packed < found.gather and found.gather < found.padded)
  end)

  it("refuses what is none", function()
    opened("{}\n", function(m, err, path)
      assert.is_nil(m)
      assert.equal(path .. ":1: path: got nil, wanted a string", err)
    end)
    opened("", function(_, err, path) assert.equal(path .. ": no record in it", err) end)
    opened("{", function(m, err, path)
      assert.is_nil(m)
      assert.equal(path .. ":1: ", err:sub(1, #path + 4))
    end)
    local m, err = machine.open("h300")
    assert.is_nil(m)
    assert.matches('^machine: got "h300", wanted cpu, cuda:N, a FILE.jsonl, or a folder of results/ ', err)
  end)
end)
