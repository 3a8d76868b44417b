local device = require "fewhead.device.device"
local helper = require "spec.helper"
local tensor = require "fewhead.device.tensor"

local refusal = helper.refusal

local MIB = 2^20

-- The memory that tensor.lua lets garbage hold before it collects: its SLACK.
local SLACK = 256 * MIB

local function collect()
  collectgarbage()
  collectgarbage()
end

-- Pages of this process that are in memory, bytes.
local function resident()
  local file = assert(io.open("/proc/self/statm"))
  local _, pages = file:read("*n", "*n")
  file:close()
  return pages * tonumber((helper.shell("getconf PAGESIZE")))
end

describe("the memory of tensors", function()
  local dev = assert(device.open("cpu", { threads = 2 }))
  local before

  before_each(function()
    collect()
    before = tensor.live_bytes()
  end)

  it("is counted while a view of it is alive, and given back with the last one", function()
    local t = tensor(dev, "f32", { 1000 })
    assert.equal(before + 4000, tensor.live_bytes())
    local part = t[{ { 1, 10 } }]
    assert.equal(before + 4000, tensor.live_bytes())
    t:free()
    assert.equal(before + 4000, tensor.live_bytes())
    part:free()
    assert.equal(before, tensor.live_bytes())
  end)

  it("goes back to the system", function()
    local t = tensor(dev, "f32", { 64 * MIB / 4 }, { fill = 1 })
    local held = resident()
    t:free()
    assert.is_true(resident() < held - 60 * MIB)
    t = tensor(dev, "f32", { 64 * MIB / 4 }, { fill = 1 })
    held = resident()
    t = t[{ { 1, 2 } }] -- luacheck: ignore
    collect()
    assert.is_true(resident() > held - 4 * MIB)
    t = nil -- luacheck: ignore
    collect()
    assert.is_true(resident() < held - 60 * MIB)
  end)

  it("is freed once, whether by free() or the collector or both", function()
    for _ = 1, 1000 do
      local t = tensor(dev, "bf16", { 64 })
      local a, b = t:slice(1, 1, 32), t:slice(1, 33, 64)
      a:free()
      a:free()
      t:free()
      b = b:slice(1, 1, 1) -- luacheck: ignore
    end
    collect()
    assert.equal(before, tensor.live_bytes())
  end)

  it("is kept by views of views, whatever is freed or dropped before them", function()
    local function run(first, second, how_first, how_second)
      local held = { parent = tensor(dev, "i32", { 100, 100 }):random { low = 0, high = 1000 } }
      held.rows = held.parent[{ { 51, 100 } }]
      local part = held.rows[{ {}, { 41, 80 } }]
      local want = held.parent:get(61, 41)
      for _, step in ipairs { { first, how_first }, { second, how_second } } do
        if step[2] == "free" then held[step[1]]:free() end
        held[step[1]] = nil
        collect()
        -- What was given back would be handed out again here, and written over.
        for _ = 1, 5 do tensor(dev, "i32", { 100, 100 }, { fill = -1 }) end
        assert.equal(want, part:get(11, 1))
      end
    end
    for _, how_first in ipairs { "free", "drop" } do
      for _, how_second in ipairs { "free", "drop" } do
        run("parent", "rows", how_first, how_second)
        run("rows", "parent", how_first, how_second)
      end
    end
    collect()
    assert.equal(before, tensor.live_bytes())
  end)

  it("is kept by a view of a device that was closed and dropped", function()
    local other = assert(device.open("cpu", { threads = 1 }))
    local part = tensor(other, "f32", { 4, 4 }, { fill = 3 })[{ 2 }]
    other:close()
    other = nil -- luacheck: ignore
    collect()
    assert.same({ 3, 3, 3, 3 }, part:to_table())
    part:free()
    collect()
    assert.equal(before, tensor.live_bytes())
  end)

  it("stays bounded while tensors are dropped, though the collector sees none of it", function()
    -- The collector is all but stopped, so that it is tensor.lua that runs it.
    local pause = collectgarbage("setpause", 100000)
    local most = 0
    for _ = 1, 100 do
      tensor(dev, "f32", { 16 * MIB / 4 })
      most = math.max(most, tensor.live_bytes() - before)
    end
    collectgarbage("setpause", pause)
    assert.is_true(most > 16 * MIB and most <= SLACK + 16 * MIB)
    collect()
    assert.equal(before, tensor.live_bytes())
  end)

  it("survives many views with the collector always at work", function()
    local pause, work = collectgarbage("setpause", 0), collectgarbage("setstepmul", 10000)
    local kept, sum, want = {}, 0, 0
    for i = 1, 300 do
      local t = tensor(dev, "i32", { 8, 16 }, { fill = i })
      local views = { t[{ { 1, 4 } }], t:slice(2, 16, 1, -3), t[{ 8 }], t[{ {}, 3 }] }
      if i % 3 == 0 then t:free() end
      if i % 5 == 0 then views[1]:free() end
      kept[i % 50 + 1] = views[i % 4 + 1]
      local seen = kept[(i * 7) % 50 + 1]
      if seen and seen.handle then
        local list = seen:to_table()
        while type(list) == "table" do list = list[#list] end
        sum, want = sum + list, want + seen:read()[0]
      end
    end
    collectgarbage("setpause", pause)
    collectgarbage("setstepmul", work)
    assert.is_true(want > 0)
    assert.equal(want, sum)
    kept = nil -- luacheck: ignore
    collect()
    assert.equal(before, tensor.live_bytes())
  end)
end)

describe("a freed tensor", function()
  local dev = assert(device.open("cpu", { threads = 1 }))

  it("is refused by every method, on the caller's line, and says so when printed", function()
    local t = tensor(dev, "f32", { 2, 2 }, { fill = 0 })
    t:free()
    assert.is_nil(t.handle)
    assert.equal("f32 [2, 2], freed", tostring(t))
    local uses = {
      slice = function() t:slice(1, 1, 1) end, get = function() t:get(1, 1) end, set = function() t:set(1, 1, 0) end,
      fill = function() t:fill(0) end, fill_bytes = function() t:fill_bytes(0) end, random = function() t:random() end,
      copy_from = function() t:copy_from(t) end, from_table = function() t:from_table({}) end, write = function() t:write({}) end,
      read = function() t:read() end, to_table = function() t:to_table() end, data = function() t:data() end,
      pointer = function() t:pointer() end, evict = function() t:evict() end, is_contiguous = function() t:is_contiguous() end,
    }
    for name, use in pairs(uses) do
      assert.equal(("tensor:%s: got a tensor that was freed"):format(name), refusal(use))
    end
    assert.equal("tensor: index: got a tensor that was freed", refusal(function() return t[{ 1 }] end))
    assert.equal("tensor: index: got a tensor that was freed", refusal(function() t[{ 1 }] = 0 end))
  end)
end)

describe("a process", function()
  -- Exits with tensors, views and devices alive, in whatever order LuaJIT then finalizes them.
  local ALIVE = [[
    local fh = require "fewhead"
    kept = {}
    for i = 1, 50 do
      local dev = fh.open("cpu", { threads = 2 })
      local t = fh.tensor(dev, "bf16", { 100, 100 }):random()
      kept[i] = i % 2 == 0 and t or t[{ { 1, 3 } }]
      if i % 7 == 0 then t:free() end
    end
    ]]

  it("ends cleanly with all of it alive", function()
    local output, status = helper.luajit(ALIVE .. "print 'done'")
    assert.equal("done", output)
    assert.equal(0, status)
    output, status = helper.luajit(ALIVE .. "print 'done' os.exit(3, true)")
    assert.equal("done", output)
    assert.equal(3, status)
  end)

  it("ends as usual after an error", function()
    local output, status = helper.luajit(ALIVE .. "error('on purpose', 0)")
    assert.matches("^luajit: on purpose\n", output)
    assert.equal(1, status)
  end)
end)
