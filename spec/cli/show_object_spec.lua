local fh = require "fewhead"
local helper = require "spec.helper"
local show = require "fewhead.cli.show"
local speedups = require "spec.decide.speedups"

describe("show.text of objects", function()
  it("shows a fitted gate as a table of its curves, every field that varies in a column", function()
    local list = speedups { [64] = 0.5, [128] = 2 }
    for _, record in ipairs(speedups({ [64] = 2, [128] = 2 }, { layout = "contiguous" })) do
      record.case.topk = 128
      list[#list + 1] = record
    end
    assert.equal([[
pattern  layout      topk        s_q  points  native from  interval
csa      vllm         640  64 to 128       2           91  90 to 91  decides
csa      contiguous   128  64 to 128       2       always         -
recommended MIN_SQ: 128
export VLLM_DSV41_FEWHEAD_MIN_SQ=128]], show.text(assert(fh.gate.fit(list))))
    assert.equal("gate: native from s_q 5 up", show.text(fh.gate.new { min_sq = 5 }))
  end)

  it("shows records as a table with the fields that vary", function()
    assert.equal([[
4 records: cpu, csa lists, layout vllm, 8 heads, h_pad 64, d_qk 512, topk 640, s_kv 8192, hot caches, seed 1
s_q  path      median  parity
 64  padded   6.40 ms  pass
 64  gather   3.20 ms  pass
128  padded  12.80 ms  pass
128  gather   6.40 ms  pass]], show.text(speedups { [64] = 2, [128] = 2 }))
    local many = {}
    for i = 1, 50 do many[i] = speedups { [i] = 2 } [1] end
    assert.matches("^50 records: .*\n%.%. 10 more$", show.text(many))
  end)

  it("shows what a plan packs", function()
    local dev = helper.device()
    local problem = assert(fh.case { s_q = 16, s_kv = 640, pattern = "uniform", holes = 0 }:problem(dev))
    local plan = assert(fh.plan.build(problem))
    local lines = {}
    for line in show.text(plan):gmatch("[^\n]+") do lines[#lines + 1] = line end
    assert.equal("plan for path packed on " .. dev.name, lines[1])
    assert.equal("rows groups rows a group keys fetched rows a row keys a fetch a group: least median most row by row",
      (lines[2]:gsub("%s+", " ")))
    assert.matches("^%s*16%s+2%s+8%s+%d+%s+%d+%s+[%d.]+%s+[%d.]+%s+%d+%s+%d+%s+%d+%s+%d+$", lines[3])
    plan:free()
    assert.equal("plan (freed)", show.text(plan))
    problem:free()
    dev:close()
  end)

  it("shows a module by what it is for, a function by its signature and place", function()
    assert.matches("^module fh.gate: the published rule .*\nfunctions: fit, from_env, .*\nfh.gate%? says more$",
      show.text(fh.gate))
    assert.matches("^fewhead 0%.%d+%.%d+\nmodules: arguments, .*\n:doc says what each is for$", show.text(fh))
    assert.matches("^function gate%.new%(options%), lua/fewhead/decide/gate%.lua:%d+$", show.text(fh.gate.new))
    assert.equal("{ f = function }", show.text { f = fh.gate.new })
    assert.matches("^function: builtin", show.text(print))
  end)
end)
