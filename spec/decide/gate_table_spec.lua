local fh = require "fewhead"
local gate_table = require "fewhead.decide.gate_table"
local helper = require "spec.helper"
local json = require "fewhead.base.json"

local dev = assert(fh.open("cpu", { threads = 2 }))
local header = fh.run.header(dev, { "--seconds", "5" })
local folder = helper.folder()
teardown(function() helper.shell("rm -rf " .. folder) end)

local function curve(crossover, min_sq, more)
  local case = { h_q = 8, d_qk = 512, topk = 640 }
  for key, value in pairs(more or {}) do case[key] = value end
  return { crossover = crossover, min_sq = min_sq, pattern = "csa", layout = "vllm", points = { { padded = { case = case } } } }
end

local function made(curves) return (gate_table.from(curves, { run = header, noise_floor = 0.0125 })) end

local function written(text)
  local path = folder .. "gates.json"
  helper.write(path, type(text) == "string" and text or json.encode(text))
  return path
end

local SHAPE = { h_q = 8, d_qk = 512, topk = 640 }

describe("gate_table", function()
  it("holds min_sq, never and always, with the interval of the crossover, and says what it leaves out", function()
    local curves = {
      curve({ at = 180.5, lo = 160.2, hi = 205.1 }, 256), curve("never", nil, { h_q = 16 }), curve("always", 0, { h_q = 4 }),
      curve("undecided", nil, { h_q = 2 }),
    }
    local one, left_out = gate_table.from(curves, { run = header, noise_floor = 0.0125 })
    assert.same({
      { h_q = 8, d_qk = 512, topk = 640, layout = "vllm", pattern = "csa", min_sq = 256, lo = 160, hi = 206 },
      { h_q = 16, d_qk = 512, topk = 640, layout = "vllm", pattern = "csa", min_sq = "never" },
      { h_q = 4, d_qk = 512, topk = 640, layout = "vllm", pattern = "csa", min_sq = 0 },
    }, json.decode(json.encode(one)).gates)
    assert.same({ "csa vllm, 2 heads: noise hides the crossover" }, left_out)
    assert.same({ 1, tonumber(fh.ffi.C.FH_VERSION), 12500 }, { one.schema, one.library, one.provenance.noise_floor_ppm })
    assert.same({ kind = "cpu", name = header.device, threads = 2, isa = fh.ffi.isas[header.isa] },
      json.decode(json.encode(one)).device)
    assert.equal("# 8 heads, d_qk 512, topk 640, csa vllm\nexport VLLM_DSV41_FEWHEAD_MIN_SQ=256\n"
      .. "# 16 heads, d_qk 512, topk 640, csa vllm\nexport VLLM_DSV41_FEWHEAD_PREFILL=0\n"
      .. "# 4 heads, d_qk 512, topk 640, csa vllm\nexport VLLM_DSV41_FEWHEAD_MIN_SQ=0", gate_table.env_lines(one))
  end)

  it("knows a GPU by its multiprocessors and compute capability", function()
    local run = { kind = "cuda", device = "NVIDIA H200", multiprocessors = 132, capability = "9.0" }
    local one = gate_table.from({}, { run = run })
    assert.equal('{"kind":"cuda","name":"NVIDIA H200","multiprocessors":132,"capability":90}', json.encode(one.device))
  end)

  it("is read back by the library, the strictest gate of a shape", function()
    local path = folder .. "gates.json"
    local curves = { curve("always", 0), curve({ at = 1, lo = 1, hi = 2 }, 512), curve("never", nil, { h_q = 16 }) }
    assert(gate_table.write(path, made(curves)))
    local gate = assert(gate_table.load(path, dev, SHAPE))
    assert.same({ 512, true }, { gate.min_sq, gate.enabled })
    assert.is_false(assert(gate_table.load(path, dev, { h_q = 16, d_qk = 512, topk = 640 })).enabled)
    local none, err = gate_table.load(path, dev, { h_q = 8, d_qk = 576, topk = 640 })
    assert.same({ nil, path .. ": gates: none for h_q 8, d_qk 576, topk 640" }, { none, err })
  end)

  it("of another device, build or schema is refused with both values", function()
    local function refusal(change)
      local one = json.decode(json.encode(made { curve("always", 0) }))
      change(one)
      local gate, err = gate_table.load(written(one), dev, SHAPE)
      assert.is_nil(gate)
      return (err:gsub("^.-gates%.json:? ?", ""))
    end
    local own = "; measure this device and load its own table"
    assert.equal("device.threads: measured with 3, here it is 2" .. own, refusal(function(t) t.device.threads = 3 end))
    assert.equal(('device.name: measured on "abacus", here it is "%s"'):format(header.device) .. own,
      refusal(function(t) t.device.name = "abacus" end))
    assert.equal("library: measured with version 0.1, this is 0.2; measure again", refusal(function(t) t.library = 100 end))
    assert.equal("schema: got 2, wanted 1", refusal(function(t) t.schema = 2 end))
  end)

  it("that is cut off or empty is refused by file and line; the order of keys does not matter", function()
    local text = json.encode(made { curve("always", 0) })
    for _, bytes in ipairs { 0, 1, #text / 2, #text - 1 } do
      local gate, err = gate_table.load(written(text:sub(1, bytes)), dev, SHAPE)
      assert.is_nil(gate)
      assert.matches("gates%.json:1: ", err)
    end
    local one = json.decode(text)
    local turned = ('{"gates":%s,"device":%s,"library":%d,"schema":1}'):format(json.encode(one.gates), json.encode(one.device),
      one.library)
    assert.is_true(assert(gate_table.load(written(turned), dev, SHAPE)).enabled)
  end)

  it("says which file is not there", function()
    local gate, err = gate_table.load(folder .. "none.json", dev, SHAPE)
    assert.is_nil(gate)
    assert.is_truthy(err:find(folder .. "none.json", 1, true))
  end)
end)
