local fh = require "fewhead"
local helper = require "spec.helper"

local refusal = helper.refusal

describe("fewhead", function()
  it("loads every module it names when it is first used, and none before", function()
    local output = helper.luajit [[
      local fh = require "fewhead"
      local loaded = {}
      for name in pairs(package.loaded) do if name:find("^fewhead%.") then loaded[#loaded + 1] = name end end
      print(table.concat(loaded, " "))
      for _, name in ipairs(fh._names) do assert(fh[name] == require(("fewhead.%s.%s"):format(fh._room[name], name)), name) end
      print("all")]]
    assert.equal("fewhead.base.arguments\nall", output)
  end)

  it("refuses a name that is none, on the caller's line, with the likely one", function()
    local list = table.concat(fh._names, ", ")
    assert.equal('fewhead: no module "tensr"; did you mean "tensor"? there are: ' .. list,
      refusal(function() return fh.tensr end))
    assert.equal('fewhead: no module "qqqq"; there are: ' .. list, refusal(function() return fh.qqqq end))
    assert.equal("fewhead: no module 1; there are: " .. list, refusal(function() return fh[1] end))
  end)

  it("has the version of the header, spelt out", function()
    local v = fh.ffi.C.fh_version()
    assert.equal(("%d.%d.%d"):format(math.floor(v / 10000), math.floor(v / 100) % 100, v % 100), fh.VERSION)
    assert.equal("0.2.0", fh.VERSION)
  end)
end)

describe("every command, and the experiments that come with the library,", function()
  -- What stands for it in Lua, on the facade: a function, or a module that is called. An experiment is itself Lua and need not
  -- stand here.
  local CALLS = {
    parity = "conformance", compare = "results", merge = "results.merge", bundle = "bundle", page = "results", plot = "results",
    export = "results", info = "info",
    ["experiments/bench"] = "timing.measure", ["experiments/bench_gpu"] = "bench.open",
    ["experiments/bench_packed"] = "bench.open",
    ["experiments/auto_regret"] = "regret.of", ["experiments/engine_ab"] = "engine_ab.read",
    ["experiments/flips"] = "flips.compare", ["experiments/gate_sweep"] = "sweep",
    ["experiments/gate_traffic"] = "traffic", ["experiments/layers"] = "layers", ["experiments/layouts"] = "sweep",
    ["experiments/overlap"] = "overlap", ["experiments/parity"] = "compare", ["experiments/peers"] = "compare",
    ["experiments/serving_ab"] = "serve", ["experiments/serving_engine"] = "prediction.of",
    ["experiments/serving_workloads"] = "serve",
  }
  -- Commands about the checkout or the prompt itself: there is no result to hold.
  local NONE = { run = true, experiments = true, repl = true, doctor = true, completion = true }

  it("are one Lua call each", function()
    local names = {}
    for name in helper.shell(helper.root .. "fewhead --help"):gmatch("\n  (%l+) ") do names[#names + 1] = name end
    assert.is_true(#names >= 11)
    for name in pairs(CALLS) do
      if name:find("/", 1, true) then
        names[#names + 1] = name
        assert(io.open(helper.root .. name .. ".lua")):close()
      end
    end
    for _, name in ipairs(names) do
      local value = not NONE[name] and assert(CALLS[name], name .. ": no Lua call is named") and fh
      for field in (value and CALLS[name] or ""):gmatch("[%w_]+") do value = value[field] end
      local meta = type(value) == "table" and getmetatable(value)
      assert.is_true(NONE[name] or type(value) == "function" or type(meta) == "table" and meta.__call ~= nil, name)
    end
  end)

  it("that returns an object gives it print; save, plot and compare where they make sense", function()
    for name, methods in pairs {
      compare = "print save compare", sweep = "print save compare plot", layers = "print save compare",
      conformance = "print save compare", results = "print save compare plot", diff = "print save",
      gate = "print save compare plot", serve = "print save compare", gate_report = "print save", flips = "print",
      overlap = "print", traffic = "print", bundle = "print", info = "print",
    } do
      local found = {}
      for _, method in ipairs { "print", "save", "compare", "plot" } do
        if rawget(fh[name].class, method) then found[#found + 1] = method end
      end
      assert.equal(methods, table.concat(found, " "), name)
    end
  end)
end)
