-- Errors name the option or the setting that was wrong, and no error value ends the prompt.
local helper = require "spec.helper"
local process = require "spec.process"

local function run(words, env)
  local command = { "./fewhead", "run" }
  for _, word in ipairs(words) do command[#command + 1] = word end
  return process.run(command, { env = env })
end

-- Calls use(path) with an int32 .npy of this shape whose values are value(i).
local function with_npy(shape, value, use)
  local count, numbers = 1, {}
  for _, n in ipairs(shape) do count = count * n end
  for i = 1, count do
    local v = value(i - 1) % 2 ^ 32
    numbers[i] = string.char(v % 256, math.floor(v / 256) % 256, math.floor(v / 65536) % 256, math.floor(v / 16777216))
  end
  local header = ("{'descr': '<i4', 'fortran_order': False, 'shape': (%s,), }"):format(table.concat(shape, ", "))
  header = header .. (" "):rep(63 - (10 + #header) % 64) .. "\n"
  local path = os.tmpname()
  os.remove(path)
  path = path .. ".npy"
  process.write(path, "\147NUMPY\1\0" .. string.char(#header % 256, math.floor(#header / 256)) .. header .. table.concat(numbers))
  local ok, err = pcall(use, path)
  os.remove(path)
  assert(ok, err)
end

local function mixed(i) return i % 100 end
local function invalid() return -1 end

describe("a wrong option is named as the option #robustness", function()
  it("overlap --s-q past the file's rows", function()
    with_npy({ 256, 8 }, mixed, function(path)
      assert.same({ 2, "", "overlap: --s-q: got 257, wanted a whole number in 0 .. 256\n" },
        { run { "experiments/overlap.lua", "--indices", path, "--s-q", "257" } })
      assert.equal(0, (run { "experiments/overlap.lua", "--indices", path, "--s-q", "256" }))
    end)
  end)

  it("gate_traffic --decode-rows that leave no row", function()
    helper.with_file("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n", function(trace)
      local status, _, err = run { "experiments/gate_traffic.lua", "--sweep", "results/nvidia-h200/gate_sweep.jsonl",
        "--max-tokens", "100", "--decode-rows", "100", "--traffic", trace }
      assert.same({ 2, "gate_traffic: --decode-rows: got 100, wanted a whole number in 0 .. 99\n" }, { status, err })
    end)
  end)

  it("values that only the case behind the option refuses", function()
    for _, one in ipairs {
      { { "overlap.lua", "--pattern", "csa", "--prior", "2000000000", "--ratio", "2" },
        "overlap: --prior: got 2000000000, 1000001024 compressed rows at ratio 2, wanted at most 268435456" },
      { { "layers.lua", "--prior", "2000000000" }, "layers: --prior: got 2000000000, " },
      { { "gate_sweep.lua", "--s-q", "16", "--keep", "0.5" },
        "gate_sweep: --keep: has no effect with pattern csa; patterns that take it: local" },
    } do
      local words, wanted = one[1], one[2]
      words[1] = "experiments/" .. words[1]
      local status, _, err = run(words, { FEWHEAD_DEVICE = "cpu" })
      assert.equal(2, status)
      assert.equal(wanted, err:sub(1, #wanted))
      assert.equal(1, select(2, err:gsub("\n", "")))
    end
  end)

  it("a script's own mistake still names its line", function()
    local parser = 'local o = require("fewhead.cli.options").new { name = "x", options = { { "--rows", "INTEGER", "rows" } } }'
    helper.with_file(parser .. "\no:read(arg)\nrequire('fewhead').case { s_q = 1.5 }\n", function(path)
        local status, _, err = run { path, "--rows", "3" }
        assert.same({ 1, ("fewhead: %s:3: case: s_q: got 1.5, wanted a whole number in 0 .. 2147483647\n"):format(path) },
          { status, err })
      end)
  end)
end)

describe("a wrong setting in the environment #robustness", function()
  for name, one in pairs {
    FEWHEAD_DEVICE = { "gpu", 'info: FEWHEAD_DEVICE: got "gpu", wanted cpu, cuda or cuda:N\n' },
    FEWHEAD_ISA = { "foo", 'info: FEWHEAD_ISA: got "foo", wanted generic, ' },
    FEWHEAD_THREADS = { "0", 'info: FEWHEAD_THREADS: got "0", wanted a whole number in 1 .. 1024\n' },
  } do
    it(name .. ": info ends with status 1 and one line", function()
      local status, out, err = process.run({ "./fewhead", "info" }, { env = { [name] = one[1] } })
      assert.equal(1, status)
      assert.equal(one[2], err:sub(1, #one[2]))
      assert.equal(1, select(2, err:gsub("\n", "")))
      assert.matches("\nreadline ", out) -- what could be said was said
    end)
  end

  it("info is content without any", function()
    local env = { FEWHEAD_DEVICE = false, FEWHEAD_ISA = false, FEWHEAD_THREADS = false }
    local status, _, err = process.run({ "./fewhead", "info" }, { env = env })
    assert.same({ 0, "" }, { status, err })
  end)
end)

describe("lists without one valid key #robustness", function()
  it("overlap says so, and prints no table", function()
    with_npy({ 64, 8 }, invalid, function(path)
      assert.same({ 1, "", ("overlap: %s: no list names a valid KV row, so there is nothing to share\n"):format(path) },
        { run { "experiments/overlap.lua", "--indices", path } })
    end)
  end)

  it("gate_sweep measures them, and concludes nothing; gate_traffic reads the file and concludes nothing", function()
    local folder = helper.folder()
    local nothing = "gate.fit: got 4 records (4 without a time, parity or a valid key), wanted padded and a native path of "
      .. "one s_q"
    with_npy({ 64, 8 }, invalid, function(path)
      local status, out = run({ "experiments/gate_sweep.lua", "--indices", path, "--s-q", "16", "--seconds", "0", "--layout",
        "vllm", "--out", folder }, { FEWHEAD_DEVICE = "cpu" })
      assert.equal(1, status)
      assert.is_truthy(out:find("\nGate\n" .. nothing .. "\n", 1, true), out)
      assert.is_nil(out:find("recommended", 1, true))
    end)
    helper.with_file("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n", function(trace)
      local status, _, err = run { "experiments/gate_traffic.lua", "--sweep", folder, "--traffic", trace }
      assert.same({ 1, nothing .. "\n" }, { status, err })
    end)
    process.remove(folder)
  end)

  it("--topk-length must have a number for each row of the file", function()
    with_npy({ 256, 8 }, mixed, function(lists)
      for _, rows in ipairs { 255, 257 } do
        with_npy({ rows }, function() return 4 end, function(lengths)
          local status, out, err = run { "experiments/overlap.lua", "--indices", lists, "--topk-length", lengths }
          local wanted = "overlap: --topk-length: got %s of shape {%d}, wanted {256}: one number for each row of indices\n"
          assert.same({ 1, "", wanted:format(lengths, rows) }, { status, out, err })
        end)
      end
      with_npy({ 256 }, function() return 4 end, function(lengths)
        for _, rows in ipairs { "256", "100" } do
          assert.equal(0, (run { "experiments/overlap.lua", "--indices", lists, "--topk-length", lengths, "--s-q", rows }))
        end
      end)
    end)
  end)
end)

describe("the prompt #robustness", function()
  it("goes on after error values and results that cannot be shown", function()
    local status, out, err = process.run({ "./fewhead", "repl" }, { stdin = [[
error(setmetatable({}, { __tostring = function() error("no") end }))
print(1)
=setmetatable({}, { __tostring = function() error("no", 0) end })
={ setmetatable({}, { __tostring = function() return 5 end }) }
error(setmetatable({}, { __tostring = function() return 5 end }))
error(setmetatable({}, { __metatable = false, __tostring = function() error({}) end }))
error()
={ [setmetatable({}, { __tostring = function() error("no") end })] = 1 }
print(2)
]] })
    local unshown = "an error value that cannot be shown (a table whose __tostring fails)\n"
    assert.equal("1\na table whose __tostring fails: no\n{ a table whose __tostring fails: 5 }\n{ [{}] = 1 }\n2\n", out)
    assert.equal(unshown:rep(3) .. "nil\n", err)
    assert.equal(1, status)
  end)

  it("a script's error value that cannot be shown is one line", function()
    helper.with_file('error(setmetatable({}, { __tostring = function() error("no") end }))', function(path)
      local status, _, err = run { path }
      assert.same({ 1, "fewhead: an error value that cannot be shown (a table whose __tostring fails)\n" }, { status, err })
    end)
  end)
end)
