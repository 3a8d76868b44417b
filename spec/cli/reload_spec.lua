-- A reload is tried on a copy of the modules, whose files the spec edits.
local helper = require "spec.helper"
local process = require "spec.process"

describe("reload", function()
  local folder
  before_each(function()
    folder = helper.folder()
    local copy = "cd %s && cp -r lua lib %s && mkdir %sbuild && ln -s $PWD/build/*.so %sbuild/"
    helper.shell(copy:format(process.root, folder, folder, folder))
  end)
  after_each(function() process.remove(folder) end)

  -- Runs Lua with that copy; edit(module, from, to) changes a file of it there.
  local function run(text)
    process.write(folder .. "try.lua", ([[
package.path = %q .. package.path
local fh, reload = require "fewhead", require "fewhead.cli.reload"
local function edit(module, from, to)
  local file = io.open(%q .. module, "r")
  local text = file:read "*a"
  file:close()
  local at, last = text:find(from, 1, true)
  assert(at, from)
  file = io.open(%q .. module, "w")
  file:write(text:sub(1, at - 1), to, text:sub(last + 1))
  file:close()
end
]]):format(folder .. "lua/?.lua;" .. folder .. "lua/?/init.lua;", folder .. "lua/fewhead/", folder .. "lua/fewhead/") .. text)
    local status, out, err = process.run({ "luajit", folder .. "try.lua" }, { env = { FEWHEAD_DEVICE = "cpu" } })
    assert.same({ 0, "" }, { status, err })
    return out
  end

  it("gives objects made before the new methods, and takes them in new functions", function()
    assert.equal("gate: native from 5 rows up\ntrue\n2\t3\n0\n", run [[
local gate, tensor = fh.gate.new { min_sq = 5 }, fh.tensor(fh.device.default(), "f32", { 2 }, { fill = 2 })
local module, device = fh.gate, fh.device.default()
edit("decide/gate.lua", "gate: native from s_q %s up", "gate: native from %s rows up")
assert(reload.run())
print(gate)
print(module == fh.gate and module == require "fewhead.decide.gate" and device == fh.device.default())
local other = fh.tensor(device, "f32", { 2 }, { fill = 3 })
print(tensor:get(1), other:get(1))
tensor:free() other:free()
print(fh.tensor.live_bytes())
]])
  end)

  it("changes constants, and runs what was made before as often as one likes", function()
    assert.equal("12\t12\npass\n", run [[
local case = fh.case { s_q = 4 }
local problem = assert(case:problem(fh.device.default()))
edit("serve/trace.lua", "M.max_tokens = 8192", "M.max_tokens = 12")
local trace = fh.trace
for _ = 1, 3 do assert(reload.run()) end
print(trace.max_tokens, fh.trace.max_tokens)
print(fh.parity.check(problem, "gather").status)
]])
  end)

  it("leaves all as it was where a file is wrong", function()
    assert.matches("^%S*gate.lua:%d+: .*\ngate: native from s_q 5 up\n$", run [[
local gate = fh.gate.new { min_sq = 5 }
edit("decide/gate.lua", "function Gate:threshold()", "function Gate:threshold( oops")
local count, err = reload.run()
assert(count == nil)
print(err)
print(gate)
assert(fh.gate.new { min_sq = 5 }:threshold() == "5")
]])
  end)
end)
