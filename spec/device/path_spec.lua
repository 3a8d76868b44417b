local helper = require "spec.helper"
local path = require "fewhead.device.path"
local F = require "fewhead.base.ffi"

local refusal = helper.refusal

describe("path", function()
  it("names what the library has, in its order, the contract's five first", function()
    assert.same({ "auto", "reference", "padded", "gather", "packed" }, { unpack(path.names(), 1, 5) })
    for number, name in ipairs(path.names()) do
      assert.equal(number - 1, path.get(name).number)
      assert.equal(F.paths[name], path.get(name).number)
      assert.equal(name, F.ffi.string(F.C.fh_path_name(number - 1)))
    end
  end)

  it("says which of them have costs", function()
    assert.same({ "padded", "gather", "packed" }, path.costed())
  end)

  it("says which ones auto chooses among, and which of them are native", function()
    assert.same({ "padded", "gather", "packed" }, path.candidates())
    assert.same({ "gather", "packed" }, path.native())
  end)

  it("says what a path is", function()
    local both = { cpu = true, cuda = not F.ffi.string(F.C.fh_build_info()):find("without CUDA", 1, true) }
    assert.same({
      name = "packed", number = 4, candidate = true, native = true, wants_plan = true, shares_tile = true, writes_f32 = false,
      max_heads = 128, devices = both,
    }, path.get("packed"))
    assert.same({
      name = "padded", number = 2, candidate = true, native = false, wants_plan = false, shares_tile = false, writes_f32 = false,
      max_heads = 128, devices = both,
    }, path.get("padded"))
    assert.same({
      name = "auto", number = 0, candidate = false, native = false, wants_plan = false, shares_tile = false, writes_f32 = false,
      max_heads = 128, devices = both,
    }, path.get("auto"))
    assert.is_true(path.get("reference").writes_f32)
  end)

  it("hands out copies", function()
    path.names()[1], path.get("packed").native, path.get("packed").devices.cpu = "other", false, false
    assert.equal("auto", path.names()[1])
    assert.is_true(path.get("packed").native)
    assert.is_true(path.get("packed").devices.cpu)
  end)

  it("refuses a name that is not in the table with the names that are", function()
    local wanted = "wanted one of " .. table.concat(path.names(), ", ")
    assert.equal(('bench: path: got "gathr", %s; did you mean "gather"?'):format(wanted),
      refusal(function() path.check("bench: path", "gathr", 1) end))
    assert.equal(("path.get: name: got nil, %s"):format(wanted), refusal(function() path.get(nil) end))
    assert.equal("packed", path.check("path", "packed"))
  end)
end)

describe("the names of paths", function()
  it("are found by property", function()
    assert.same({ "padded", "gather", "packed" }, path.candidates())
    assert.same({ "gather", "packed" }, path.native())
    assert.same({ "packed" }, path.planned())
    assert.same({ unpack(path.names(), 3) }, path.computing())
  end)

  it("are typed in no module: who needs them reads the table", function()
    local typed = {}
    for file in helper.shell(("find %slua/fewhead -name '*.lua'"):format(helper.root)):gmatch("[^\n]+") do
      for line in (helper.read(file) .. "\n"):gmatch("(.-)\n") do
        -- a layout was called packed once: old records say so
        local code = line:gsub("%-%-.*$", ""):gsub('case%.layout == "packed"', "")
        if code:find('"gather"', 1, true) or code:find('"packed"', 1, true) then typed[#typed + 1] = file .. ": " .. line end
      end
    end
    assert.same({}, typed)
  end)

  it("of a path that the table gains appear in comparisons, sweeps, the grid, curves and gates by themselves", function()
    local output = helper.luajit [[
      local path = require "fewhead.device.path"
      local names, candidates, native, get = path.names(), path.candidates(), path.native(), path.get
      local computing = path.computing()
      for _, list in ipairs { names, candidates, native, computing } do list[#list + 1] = "future" end
      local function copied(list) return function() return { unpack(list) } end end
      path.names, path.candidates, path.native = copied(names), copied(candidates), copied(native)
      path.computing = copied(computing)
      function path.get(name)
        if name ~= "future" then return get(name) end
        local row = get "gather"
        row.name = name
        return row
      end
      local fh = require "fewhead"
      local records = {}
      for i, name in ipairs { "padded", "gather", "packed", "future" } do
        records[i] = fh.record.new {
          path = name, case = { s_q = 64, h_q = 8, h_pad = 64, d_qk = 512, d_v = 512, pattern = "csa", layout = "vllm" },
          parity = { status = "pass" }, work = { useful_flops = 1e9, executed_flops = 1e9, kernel = "new " .. name },
          time = { median_us = 100 / i, p05_us = 100 / i, p95_us = 100 / i, n = 9, l2 = "hot" },
        }
      end
      local file = os.tmpname()
      assert(fh.record.write(file, records))
      local sweep = assert(fh.sweep.read(file))
      os.remove(file)
      print(sweep)
      print(fh.gate.fit(sweep).curves[1].points[1].native.path, fh.gate.fit(sweep, { native = "future" }).min_sq)
      print(table.concat(fh.compare.expand("paths", { "future" }, fh.device.default(), 1), " "))
      print(fh.gate.fit(sweep).cost:at("future", 64))
      print(pcall(fh.grid.run, { cases = {}, paths = { "gather", "fture" } }))]]
    assert.matches("^s_q +padded +gather +packed +future +ratio ", output)
    assert.matches("\n +64 +100.0 us +50.0 us +33.3 us +25.0 us ", output)
    assert.matches("\nkernels: new padded, new gather, new packed, new future\nfuture\t0\nfuture\n25\nfalse\t", output)
    assert.matches('grid.run: paths%[2%]: got "fture", wanted one of auto, reference, padded, gather, packed', output)
  end)
end)
