-- The house: which module may know which. The rooms of lua/fewhead and their order stand in fewhead's _rooms.
local fh = require "fewhead"
local F = require "fewhead.base.ffi"
local helper = require "spec.helper"

local MODULES = helper.root .. "lua/fewhead/"

-- Modules whose behaviour the spec of another one states, and which.
local STATED_ELSEWHERE = {
  ["cli.main"] = "spec/launcher_spec.lua", ["cli.cli"] = "spec/launcher_spec.lua", ["cli.parity"] = "spec/measure/grid_spec.lua",
  ["decide.cost"] = "spec/decide/gate_spec.lua", ["decide.curve"] = "spec/decide/gate_spec.lua",
  ["cli.bundle"] = "spec/report/bundle_spec.lua", ["cli.merge"] = "spec/record/merge_spec.lua",
  ["cli.worker"] = "spec/measure/worker_spec.lua", ["cli.race"] = "spec/peers_spec.lua",
  ["report.race_report"] = "spec/peers_spec.lua", ["cli.serving"] = "spec/serve/serve_spec.lua",
  ["decide.rate"] = "spec/decide/cells_spec.lua",
  ["decide.score"] = "spec/decide/gate_spec.lua", ["measure.chunk"] = "spec/decide/layers_spec.lua",
  ["cli.page"] = "spec/cli/records_spec.lua", ["cli.plot"] = "spec/cli/records_spec.lua",
  ["cli.export"] = "spec/cli/records_spec.lua",
  ["serve.calibrate"] = "spec/serve/engine_spec.lua", ["serve.engine_preset"] = "spec/serve/engine_spec.lua",
  ["serve.published"] = "spec/serve/serve_spec.lua",
}

local rank = {}
for i, room in ipairs(fh._rooms) do rank[room[1]] = i end

-- The modules as { name = "room.module", room =, path =, code = lines without comments }.
local function modules()
  local list = {}
  for path in helper.shell("ls " .. MODULES .. "*/*.lua"):gmatch("[^\n]+") do
    local room, name = path:match("([%w_]+)/([%w_]+)%.lua$")
    local code = {}
    for line in helper.read(path):gmatch("[^\n]*") do code[#code + 1] = (line:gsub("%-%-.*$", "")) end
    list[#list + 1] = { name = room .. "." .. name, room = room, path = path, code = table.concat(code, "\n") }
  end
  return list
end

-- The modules that a module requires, now or later.
local function required(module)
  local list = {}
  for name in module.code:gmatch('require[ (]*"fewhead%.([%w_]+%.[%w_]+)"') do list[#list + 1] = name end
  return list
end

local function sorted_text(list)
  table.sort(list)
  return table.concat(list, "\n")
end

-- The circles of a graph { node = { nodes it leads to } }, a line each.
local function circles_of(targets)
  local above, done, circles = {}, {}, {}
  local function visit(node, path)
    if above[node] then
      circles[#circles + 1] = path
      return
    end
    if done[node] then return end
    above[node] = true
    for _, to in ipairs(assert(targets[node], node)) do visit(to, path .. " -> " .. to) end
    above[node], done[node] = nil, true
  end
  for node in pairs(targets) do visit(node, node) end
  return sorted_text(circles)
end

-- What the object files of the library take from each other: { ["lib/call"] = { "lib/plan", .. } }, by their symbols. The
-- kernels' own program is left out.
local function objects()
  local folder, defined, wanted, targets = F.path:match("^(.*/)[^/]*$") .. "obj/", {}, {}, {}
  local nm = ([[for o in $(cd %s && find lib kernels -name '*.o'); do
    for source in %s${o%%.o}.c*; do [ -f $source ] && echo %s$o; done; done | xargs nm -A]]):format(folder, helper.root, folder)
  for line in helper.shell(nm):gmatch("[^\n]+") do
    local name, kind, symbol = line:match("obj/([lk].-)%.o:.*(%a) (%S+)$")
    if name and not name:find("/test/", 1, true) and not name:match("/cases$") then
      targets[name], wanted[name] = targets[name] or {}, wanted[name] or {}
      if kind == "U" then table.insert(wanted[name], symbol)
      elseif kind:match("[TDRB]") then defined[symbol] = name end
    end
  end
  for name, symbols in pairs(wanted) do
    for _, symbol in ipairs(symbols) do
      local to = defined[symbol]
      if to and to ~= name then table.insert(targets[name], to) end
    end
  end
  return targets
end

describe("the C side", function()
  it("has no two files that need each other", function()
    local targets = objects()
    assert.is_table(targets["lib/call"])
    assert.equal("", circles_of(targets))
  end)

  it("has no arrow from kernels/ to lib/", function()
    local up = {}
    for name, list in pairs(objects()) do
      for _, to in ipairs(list) do
        if name:match("^kernels/") and to:match("^lib/") then up[#up + 1] = name .. " -> " .. to end
      end
    end
    assert.equal("", sorted_text(up))
  end)
end)

describe("the house", function()
  it("has every module in one of its rooms, and every name of the facade there", function()
    local there = {}
    for _, module in ipairs(modules()) do
      assert.is_truthy(rank[module.room], module.path)
      there[module.name] = true
    end
    for _, name in ipairs(fh._names) do assert.is_true(there[fh._room[name] .. "." .. name], name) end
  end)

  it("has arrows to the same room or a lower one alone", function()
    local up = {}
    for _, module in ipairs(modules()) do
      local seen = {}
      for _, name in ipairs(required(module)) do
        if rank[name:match("^[%w_]+")] > rank[module.room] and not seen[name] then
          up[#up + 1], seen[name] = module.name .. " -> " .. name, true
        end
      end
    end
    assert.equal("", sorted_text(up))
  end)

  it("has no circles", function()
    local targets = {}
    for _, module in ipairs(modules()) do targets[module.name] = required(module) end
    assert.equal("", circles_of(targets))
  end)

  it("reaches the facade from cli alone", function()
    for _, module in ipairs(modules()) do
      if module.room ~= "cli" then assert.is_nil(module.code:find('require[ (]*"fewhead"'), module.name) end
    end
  end)

  it("asks in one module where it lies", function()
    for _, module in ipairs(modules()) do
      if module.name ~= "base.checkout" then assert.is_nil(module.code:find("debug.getinfo", 1, true), module.name) end
    end
  end)

  it("lets experiments require the facade and LuaJIT's own modules alone", function()
    local count = 0
    for path in helper.shell("ls " .. helper.root .. "experiments/*.lua"):gmatch("[^\n]+") do
      count = count + 1
      for name in helper.read(path):gmatch('require[ (]*"([^"]*)"') do
        assert.is_true(name == "fewhead" or name == "ffi" or name == "bit", path .. " requires " .. name)
      end
    end
    assert.is_true(count > 10)
  end)

  it("has a spec for every module, in the room of the same name", function()
    local without = {}
    for _, module in ipairs(modules()) do
      local path = "spec/" .. module.name:gsub("%.", "/") .. "_spec.lua"
      local file = io.open(helper.root .. (STATED_ELSEWHERE[module.name] or path))
      if file then file:close() else without[#without + 1] = path end
    end
    assert.equal("", sorted_text(without))
  end)
end)
