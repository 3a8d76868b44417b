local device = require "fewhead.device.device"
local process = require "spec.process"

-- Standard output of `fewhead info` with these words and environment.
local function info(words, env)
  local command = { "./fewhead", "info" }
  for _, word in ipairs(words or {}) do command[#command + 1] = word end
  env = env or {}
  for _, name in ipairs { "VLLM_DSV41_FEWHEAD_PREFILL", "VLLM_DSV41_FEWHEAD_MIN_SQ", "FEWHEAD_THREADS", "FEWHEAD_ISA" } do
    if env[name] == nil then env[name] = false end
  end
  local status, out, err = process.run(command, { env = env })
  return out, status, err
end

-- The lines of a row, whose name stands at the start of the first.
local function row(out, name)
  local lines, inside = {}, false
  for line in out:gmatch("[^\n]+") do
    if line:match("^(%S*)") ~= "" then inside = line:match("^(%S+)") == name end
    if inside then lines[#lines + 1] = line:sub(13) end
  end
  return table.concat(lines, "\n")
end

describe("fewhead info", function()
  it("names version, library and Lua", function()
    local out, status = info()
    assert.equal(0, status)
    local _, version = process.run { "./fewhead", "--version" }
    assert.equal(version:gsub("\n", ""), row(out, "version"))
    assert.equal(process.root .. "/build/libfewhead.so", row(out, "library"))
    assert.equal(("%s, %s"):format(jit.version, jit.arch), row(out, "Lua"))
  end)

  it("describes the CPU as the device module does, settings included", function()
    local out = info({}, { FEWHEAD_THREADS = "1", FEWHEAD_ISA = "generic" })
    assert.matches(", 1 threads, generic, last%-level cache [^,]+, memory [^,]+$", row(out, "cpu"))
    assert.is_truthy(row(out, "settings"):find("FEWHEAD_THREADS=1 (threads of the CPU device)", 1, true))
    assert.is_truthy(row(out, "settings"):find("FEWHEAD_ISA=generic (instruction set of the CPU device)", 1, true))
  end)

  it("says what is missing for AMX, where the CPU could have it", function()
    local dev, err = device.open("cpu", { isa = "amx" })
    if dev then dev:close() end
    local said = row(info(), "cpu"):match("no amx: (.*)")
    assert.equal(not dev and err:match("^options%.isa: got amx, wanted one that works here, up to [%w_]+: (.*)$") or nil, said)
    assert.is_nil(row(info({}, { FEWHEAD_ISA = "generic" }), "cpu"):match("no amx"))
  end)

  it("keeps control characters of a setting off the terminal", function()
    local out = info({}, { VLLM_DSV41_FEWHEAD_MIN_SQ = "a\27[2Jb" })
    assert.is_truthy(out:find("VLLM_DSV41_FEWHEAD_MIN_SQ=a?[2Jb (native heads from this s_q up)", 1, true), out)
  end)

  it("says whether there are FlashMLA and FlashAttention 3, and where it looked", function()
    local out = info({}, { FEWHEAD_FLASHMLA = "/no/where", FEWHEAD_FA3 = "/not/there" })
    assert.matches("^not found: FEWHEAD_FLASHMLA: got \"/no/where\", wanted ", row(out, "FlashMLA"))
    assert.matches("^not found: FEWHEAD_FA3: got \"/not/there\", wanted ", row(out, "FA3"))
  end)

  it("says that no setting is set", function()
    assert.equal("none of fewhead's variables is set", row(info({}, { FEWHEAD_TRACE = false, FEWHEAD_LIB = false,
      FEWHEAD_DEVICE = false, FEWHEAD_FLASHMLA = false, FEWHEAD_FA3 = false }), "settings"))
  end)

  it("shows the gate in force", function()
    assert.equal("native from s_q 2048 up", row(info(), "gate"))
    assert.equal("native from s_q 512 up", row(info({}, { VLLM_DSV41_FEWHEAD_MIN_SQ = "512" }), "gate"))
    assert.equal("off, always padded", row(info({}, { VLLM_DSV41_FEWHEAD_PREFILL = "No" }), "gate"))
  end)

  it("warns of a gate setting that cannot be read, and keeps the default", function()
    local warning = 'warning: VLLM_DSV41_FEWHEAD_MIN_SQ: got "2k", wanted a whole number >= 0; using 2048'
    assert.equal("native from s_q 2048 up\n" .. warning, row(info({}, { VLLM_DSV41_FEWHEAD_MIN_SQ = "2k" }), "gate"))
  end)

  it("opens one device on request and fails when it is not there", function()
    local out, status = info { "--device", "cpu" }
    assert.equal(0, status)
    assert.matches("^cpu         [^\n]+\n$", out)
    local _, missing, err = info { "--device", "abacus" }
    assert.equal(1, missing)
    assert.matches('^info: device abacus: [^\n]*got "abacus"[^\n]*\n$', err)
  end)

  it("says whether the prompt has line editing", function()
    local installed = require("fewhead.cli.readline").is_installed()
    assert.matches(installed and "^found" or "^not found", row(info(), "readline"))
  end)
end)

describe("fh.info", function()
  local fh = require "fewhead"

  it("is what fewhead info prints, as rows", function()
    local found = assert(fh.info())
    assert.same({ "version", fh.info.version() }, { found.rows[1].name, found.rows[1].value })
    local names = {} -- the same rows; the library's path may be spelt otherwise
    for line in (info()):gmatch("[^\n]+") do names[#names + 1] = (line:sub(1, 12):gsub(" +$", "")) end
    for i, one in ipairs(found.rows) do assert.equal(names[i], one.name) end
    assert.equal(#names, #found.rows)
    assert.equal(("%-12s%s"):format("version", fh.info.version()), tostring(found):match("^[^\n]+"))
    assert.is_nil(found.wrong)
    assert.is_nil(found.compare)
  end)

  it("describes one device alone", function()
    local found = assert(fh.info { device = "cpu" })
    assert.same({ 1, "cpu" }, { #found.rows, found.rows[1].name })
    local none, err = fh.info { device = "gpu7" }
    assert.is_nil(none)
    assert.matches('^name: got "gpu7", ', err)
  end)
end)
