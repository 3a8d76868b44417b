-- fewhead.measure.blas on a stand-in for OpenBLAS, and experiments/bench.lua with it.
local blas = require "fewhead.measure.blas"
local helper = require "spec.helper"
local json = require "fewhead.base.json"
local process = require "spec.process"

local folder = helper.folder()
teardown(function() process.remove(folder) end)

local STAND_IN = require "spec.blas"(folder)

describe("blas", function()
  it("multiplies with the threads of the device, its kernels chosen by the instruction set", function()
    local code = ([[
      local sgemm = assert(require("fewhead.measure.blas").open(%q, { threads = 3, isa = "amx" }))
      sgemm.run()
      local n, want = sgemm.n, 0
      for p = 0, n - 1 do want = want + ((p %% 7) / 7) * (((p * n) %% 5) / 5) end
      print(sgemm, sgemm.flops, math.abs(sgemm.c[0] / want - 1) < 1e-5)]]):format(STAND_IN)
    local function kernels(env)
      local out, status = helper.luajit(code, { cd = helper.root .. ".", env = env })
      assert.equal(0, status)
      return out
    end
    local printed = "sgemm 512 x 512 x 512 (BLAS 3, %s kernels)\t2147483648\ttrue"
    assert.equal(printed:format "Cooperlake", kernels "env -u OPENBLAS_CORETYPE")
    assert.equal(printed:format "Zen", kernels "OPENBLAS_CORETYPE=Zen") -- a setting of the environment stays
  end)

  it("says why a library cannot be loaded", function()
    local sgemm, err = blas.open("/no/such/blas.so", { threads = 1, isa = "generic" })
    assert.is_nil(sgemm)
    assert.matches("/no/such/blas%.so", err)
  end)
end)

describe("experiments/bench.lua", function()
  local function run(...)
    return process.run({ "./fewhead", "run", "bench", "--s-q", "4", "--seconds", "0", "--out", folder .. "out", ... },
      { env = { FEWHEAD_DEVICE = "cpu" } })
  end

  it("puts every path beside the product, and keeps its records", function()
    local status, out, err = run("--blas", STAND_IN)
    assert.same({ 0, "" }, { status, err })
    assert.matches("^[^\n]+; v4%.1%-flash tp8, s_q 4, csa, vllm; plan built outside\nsgemm 512 x 512 x 512 %(BLAS [^\n]+: ", out)
    local paths = {}
    for record in json.lines(folder .. "out/latest/records.jsonl") do
      paths[#paths + 1] = record.path
      assert.same({ "pass", 2 ^ 31 }, { record.parity.status, record.sgemm.flops })
      assert.is_true(record.time.median_us > 0 and record.sgemm.median_us > 0)
      assert.matches("\n" .. record.path .. " +[%d.]+ %S+ +6 +pass ", out)
    end
    assert.same({ "padded", "gather", "packed" }, paths)
    assert.matches("\n| packed | ", helper.read(folder .. "out/latest/report.md"), 1, true)
  end)

  it("says what is missing", function()
    local status, _, err = run("--blas", folder .. "none.so")
    assert.equal(1, status)
    assert.matches("^bench: [^\n]*none%.so[^\n]*: make bench installs OpenBLAS, %-%-blas names another\n$", err)
  end)
end)
