local helper = require "spec.helper"
local process = require "spec.process"

-- What the prompt prints when these lines come through a pipe.
local function piped(text)
  local status, out, err = process.run({ "./fewhead", "repl" }, { stdin = text, env = { FEWHEAD_DEVICE = "cpu" } })
  return { out, err, status }
end

describe(":save", function()
  local folder
  before_each(function() folder = helper.folder() end)
  after_each(function() process.remove(folder) end)

  it("writes the statements that succeeded as a script that runs", function()
    local path = folder .. "first.lua"
    local saved = piped("local a = 2\nerror 'x'\na + 1\nfoo bar\n_ * 2\n:time print 'timed'\n:save " .. path .. "\n")
    assert.equal("In[2]:1: x\nIn[4]:1: '=' expected near 'bar'\n", saved[2])
    assert.is_truthy(saved[1]:find(("saved 4 statements: fewhead run %s\n"):format(path), 1, true), saved[1])
    assert.same({ 0, "3\n6\ntimed\n", "" }, { process.run { "./fewhead", "run", path } })
  end)

  it("keeps what :load, :run and :set did", function()
    local path, other = folder .. "first.lua", folder .. "other.lua"
    process.write(other, "found = 41")
    local typed = ":set device cpu\n:load results/nvidia-h200/gate_sweep.jsonl\n:run %s\n#_.records > 0, found\n:save %s\n"
    piped(typed:format(other, path))
    local status, out, err = process.run { "./fewhead", "run", path }
    assert.matches("verdict.*\ntrue\t41\n$", out)
    assert.same({ 0, "" }, { status, err })
  end)

  it("replaces a file only where it is told so", function()
    local path = folder .. "first.lua"
    process.write(path, "mine")
    local found = piped("x = 1\n:save " .. path .. "\n")
    assert.same({ "", (":save: %s is there already; `:save %s overwrite` replaces the file\n"):format(path, path), 1 }, found)
    assert.equal("mine", process.read(path))
    assert.equal(0, piped("x = 1\n:save " .. path .. " overwrite\n")[3])
    assert.is_truthy(process.read(path):find("\nx = 1\n", 1, true))
  end)

  it("says what is missing", function()
    assert.same({ "", ":save: got nothing, wanted a file name, such as first_try.lua\n"
      .. ":save: no statement has succeeded yet\n", 1 }, piped ":save\n:save x.lua\n")
    assert.same({ "", ":save: /dev/null/x.lua: Not a directory\n", 1 }, piped "x = 1\n:save /dev/null/x.lua\n")
  end)
end)

describe(":set", function()
  it("lists the settings, shows one and changes one", function()
    local out, err, status = unpack(piped(":set\n:set items\n:set items 2\n{ 1, 2, 3 }\n:set device cpu\n"
      .. "fh.device.default_name()\n"))
    assert.same({ "", 0 }, { err, status })
    assert.matches("^device   cpu      where cases run that name no device\ncolour   auto .*\nitems    32 .*\n"
      .. "items is 32\nitems is 2\n{ 1, 2, %.%. 1 more }\ndevice is cpu\n\"cpu\"\n$", out)
  end)

  it("refuses what there is not, and the setting stays", function()
    assert.same({ "items is 32\ndevice is cpu\n",
      ':set: no setting "devize"; did you mean device? there are: device, colour, items, depth, width\n'
      .. ':set items: got "-1", wanted a whole number in 1 .. 1000000\n'
      .. ':set device: got "gpu7", wanted cpu, cuda or cuda:N; there are: '
      .. table.concat(require("fewhead").device.names(), ", ") .. "\n", 1 },
      piped ":set devize cpu\n:set items -1\n:set items\n:set device gpu7\n:set device\n")
  end)
end)

describe(":reload", function()
  it("goes on with what was made before", function()
    local out, err, status = unpack(piped [[
local t = fh.tensor(fh.device.default(), "f32", { 2 }, { fill = 2 })
g = fh.gate.new { min_sq = 5 }
:reload
t:get(1), g:native(8, 5), fh.case { s_q = 1 }.s_q
]])
    assert.same({ "", 0 }, { err, status })
    assert.matches("^%d+ modules loaded anew; the C library stays as it was loaded\n2\ntrue\n1\n$", out)
  end)
end)

describe(":load", function()
  it("brings every stored file of records back as a sweep", function()
    local lines, count = {}, 0
    for path in helper.shell(("cd %s && ls results/*/*sweep*.jsonl"):format(process.root)):gmatch("[^\n]+") do
      count = count + 1
      lines[#lines + 1] = (":load %s\n#_:filter{ path = 'padded' }.records > 0 and fh.gate.fit(_).min_sq >= 0\n"):format(path)
    end
    assert.is_true(count > 1)
    local out, err, status = unpack(piped(table.concat(lines)))
    assert.same({ "", 0, count }, { err, status, select(2, out:gsub("\ntrue\n", "")) })
  end)
end)
