local fh = require "fewhead"
local helper = require "spec.helper"

fh.assert.register()

local refusal = helper.refusal

-- What a failed assertion says, without the place.
local function failure(f)
  local ok, err = pcall(f)
  assert.is_false(ok)
  return type(err) == "table" and tostring(err.message) or tostring(err)
end

describe("assert", function()
  local dev, case, problem, want
  lazy_setup(function()
    dev = helper.device()
    case = fh.case { heads = 8, s_q = 5, pattern = "csa", prior = 64, layout = "vllm" }
    problem = assert(case:problem(dev))
    want = assert(fh.parity.expected(problem))
  end)
  lazy_teardown(function()
    want.free()
    case:free()
    dev:close()
  end)

  local outputs
  before_each(function() outputs = assert(problem:outputs()) end)
  after_each(function() outputs:free() end)

  describe(".matches_reference", function()
    it("holds for what a path wrote, whole or out alone, and for a sample of the rows", function()
      assert(problem:run("gather", outputs))
      assert.matches_reference(outputs, want)
      assert.matches_reference(outputs.out, want.out)
      local sample = assert(fh.parity.expected(problem, { sample = 2 }))
      assert.matches_reference(outputs, sample)
      sample.free()
    end)

    it("fails with the place that is wrong, and its opposite holds then", function()
      assert(problem:run("gather", outputs))
      outputs.out:set(4, 3, 2, 100)
      assert.is_not.matches_reference(outputs, want)
      assert.matches("matches_reference: out: got 100, wanted %-?%d[%d%.e-]* at row 3, head 2, dim 1; 1 of 20480 values differ",
        failure(function() assert.matches_reference(outputs, want) end))
      assert.matches("matches_reference: out: got 100,", failure(function() assert.matches_reference(outputs.out, want.out) end))
    end)

    it("fails for rows that were never written, those outside a sample too", function()
      assert.matches("out: never written", failure(function() assert.matches_reference(outputs, want) end))
    end)

    it("takes another tolerance", function()
      assert(problem:run("gather", outputs))
      outputs.out:set(4, 3, 2, outputs.out:get(4, 3, 2) + 0.5)
      assert.is_not.matches_reference(outputs, want)
      assert.matches_reference(outputs, want, { out = { abs = 1, cos = 1 } })
    end)

    it("raises where nothing can be compared: neither it nor its opposite holds", function()
      local zero = assert(fh.tensor(dev, "f32", { 5, 8, 512 }, { fill = 0 }))
      outputs.out:fill(0)
      for _, assertion in ipairs { assert.matches_reference, assert.is_not.matches_reference } do
        assert.matches("the reference is all zero", failure(function() assertion(outputs, { out = zero }) end))
      end
      assert.equal("assert.matches_reference: out: got 1, wanted a tensor or outputs { out =, lse =, max_logits = }",
        refusal(function() fh.assert.matches_reference(1, want) end))
      assert.matches("assert.matches_reference: ref: got nil, wanted a tensor",
        failure(function() assert.matches_reference(outputs) end))
    end)
  end)

  describe(".path", function()
    -- One row has no neighbour to be packed with.
    local one
    lazy_setup(function() one = fh.case { heads = 8, s_q = 1, pattern = "csa", prior = 64 } end)
    lazy_teardown(function() one:free() end)

    it("holds for the path that auto runs", function()
      local work = assert(assert(one:problem(dev)):run("auto", assert(one:problem(dev):outputs())))
      assert.path(one, work.path, dev)
      for _, path in ipairs(fh.path.candidates()) do
        if path ~= work.path then
          assert.is_not.path(one, path, dev)
          assert.matches(("path: auto ran %s, wanted %s"):format(work.path, path),
            failure(function() assert.path(one, path, dev) end), 1, true)
        end
      end
    end)

    it("refuses what is no case and no path", function()
      assert.equal("assert.path: case: got 1, wanted a case, such as fh.case{..} gives",
        refusal(function() fh.assert.path(1, "packed") end))
      assert.equal('assert.path: path: got "pack", wanted one of padded, gather, packed; did you mean "packed"?',
        refusal(function() fh.assert.path(one, "pack") end))
    end)
  end)

  describe(".untouched", function()
    it("holds after a run, and fails with the place after a write beside the heads", function()
      assert(problem:run("gather", outputs))
      assert.untouched(outputs)
      -- A row of the engine's buffer has 64 heads; the byte behind the eight real ones of the first row belongs to nobody.
      helper.poke(outputs.out, (outputs.out.offset + 8 * 512) * 2, 0)
      assert.is_not.untouched(outputs)
      assert.matches("untouched: out: written outside its elements, at row 0, head 8, column 0",
        failure(function() assert.untouched(outputs) end), 1, true)
    end)

    it("refuses what has no canaries", function()
      assert.equal("assert.untouched: got {}, wanted outputs, such as problem:outputs() gives",
        refusal(function() fh.assert.untouched({}) end))
    end)
  end)

  it("says what to install where there is no luassert", function()
    local out = helper.luajit [[
      package.path = package.path:match("^(.-;.-;)")
      package.preload.luassert = function() error("no such module", 0) end
      print(pcall(require("fewhead").assert.register))]]
    assert.equal("false\tassert.register: got no Lua module luassert, wanted busted's (Debian and Ubuntu: apt-get install "
      .. "lua-busted)", (out:gsub("%(command line%):%d+: ", "")))
  end)
end)
