local axis = require "fewhead.decide.axis"
local cells = require "fewhead.decide.cells"
local helper = require "spec.helper"

local function texts(options)
  local list = {}
  for i, cell in ipairs(cells.plan(options).cells) do list[i] = cell.options end
  return list
end

describe("cells.plan", function()
  it("multiplies the axes, s_q slowest, whatever order they are written in", function()
    assert.same({ { s_q = 2, heads = 8 }, { s_q = 2, heads = 16 }, { s_q = 4, heads = 8 }, { s_q = 4, heads = 16 } },
      texts { heads = "8,16", s_q = "2:4:*2" })
  end)

  it("takes every option of a case as an axis", function()
    for key, spec in pairs {
      ratio = "1,2,4", prior = "0,64", keep = "0.5:0.9:0.2", topk = "160,192", heads = "4,8,16", holes = "0,0.1", seed = "1:3:1",
      lengths = "natural,none,7", repeats = "true,false", boundaries = "true,false", sink = "normal,none,flashmla",
      scale_q = "0,1", sm_scale = "0.1,0.2", lse = "true,false", max_logits = "true,false", values = "normal,flashmla",
      d_qk = "512,576", h_pad = "64,128", requests = "1,2", window = "0,16", index_topk = "32,64", invalid_rows = "0,0.5",
      layout = "vllm,strided", preset = "v4.1-flash tp8,glm-5 tp8", s_kv = "9000,10000",
    } do
      local options = { s_q = 4, pattern = "local", [key] = spec }
      if key == "repeats" then options.pattern, options.s_kv = "uniform", 64 end
      local plan = cells.plan(options)
      local _, commas = spec:gsub(",", "")
      local count = key == "keep" and 3 or key == "seed" and 3 or commas + 1
      assert.equal(count, #plan.cells, key)
      assert.equal(0, plan.duplicates, key)
      for _, cell in ipairs(plan.cells) do assert.is_nil(cell.reason, key) end
    end
  end)

  it("gives one cell one hash: order of axes, 64.0 and a preset's own sizes do not count", function()
    local function one(options) return cells.plan(options).cells[1].config end
    local config = one { s_q = 64, heads = 8, layout = "vllm" }
    assert.equal(config, one { layout = "vllm", heads = 8, s_q = "64.0" })
    assert.equal(config, one { s_q = "64", layout = "vllm", h_q = 8 })
    assert.equal(config, one { s_q = 64, layout = "vllm", preset = "v4.1-flash tp8" })
    assert.equal(config, one { s_q = 64, heads = 8, layout = "vllm", prior = 8192 - 64 })
    for _, other in ipairs { { s_q = 65 }, { s_q = 64, seed = 1 }, { s_q = 64, heads = 4 } } do
      other.layout = "vllm"
      assert.not_equal(config, one(other))
    end
  end)

  it("counts what is there twice once, and says how many there were", function()
    local plan = cells.plan { s_q = "64,128,64,64.0", heads = 8 }
    assert.same({ 2, 2 }, { #plan.cells, plan.duplicates })
  end)

  it("has one hash for the plan whatever the order of its cells", function()
    assert.equal(cells.plan({ s_q = "64,128" }).config, cells.plan({ s_q = "128,64" }).config)
    assert.not_equal(cells.plan({ s_q = "64,128" }).config, cells.plan({ s_q = "64,129" }).config)
  end)

  it("keeps illegal cells, with the reason of the case", function()
    local plan = cells.plan { s_q = "64,-1,1.5", heads = "8,200" }
    local reasons = {}
    for i, cell in ipairs(plan.cells) do reasons[i] = cell.reason or "good" end
    local heads = "case: heads: got 200, wanted a whole number in 1 .. 128"
    local rows = "case: s_q: got %s, wanted a whole number in 0 .. 2147483647"
    assert.same({ "good", heads, rows:format("-1"), rows:format("-1"), rows:format("1.5"), rows:format("1.5") }, reasons)
  end)

  it("takes functions, which see the axes before their own", function()
    assert.same({ { s_q = 2, heads = 8, prior = 8190 }, { s_q = 4, heads = 8, prior = 8188 } },
      texts { s_q = "2,4", heads = 8, prior = function(cell) return 8192 - cell.s_q end })
  end)

  it("takes a space of cells beside its own axes", function()
    local space = axis.grid { heads = "8,16" }:zip { ratio = { 1, 2 }, topk = { 640, 384 } }
      :derive("prior", function(cell) return cell.s_q * cell.ratio end)
      :where(function(cell) return cell.heads * cell.ratio < 32 end)
    assert.same({
      { heads = 8, ratio = 1, topk = 640, s_q = 4, prior = 4 }, { heads = 8, ratio = 2, topk = 384, s_q = 4, prior = 8 },
      { heads = 16, ratio = 1, topk = 640, s_q = 4, prior = 4 },
    }, texts { s_q = 4, axes = space })
  end)

  it("refuses two names of one axis, and what is no space", function()
    assert.equal("sweep: heads and h_q: got both, wanted one: two names of one axis",
      helper.refusal(function() local p = cells.plan { s_q = 4, heads = 8, h_q = 8 } return p end))
    assert.equal("sweep: axes: got 5, wanted what fh.axis.grid and its like make",
      helper.refusal(function() local p = cells.plan { s_q = 4, axes = 5 } return p end))
  end)

  it("knows the bytes of a cell", function()
    local cell = cells.plan({ s_q = 4, s_kv = 64, topk = 16, heads = 8, pattern = "uniform" }).cells[1]
    -- q, kv, lists with their lengths, out with lse and max_logits, the reference's fp32
    assert.equal(4 * 8 * 512 * 2 + 64 * 512 * 2 + 4 * 17 * 4 + 4 * 8 * (512 * 2 + 8) + 4 * 8 * 512 * 4, cell.bytes)
    assert.same({ padded = 2 * 4 * 64 * 16 * 1024, native = 2 * 4 * 8 * 16 * 1024 }, cell.flops)
  end)

  it("tells files of one name apart by their bytes", function()
    local header = "{'descr': '<i4', 'fortran_order': False, 'shape': (1, 2), }"
    header = "\147NUMPY\1\0" .. "\118\0" .. header .. (" "):rep(118 - #header - 1) .. "\n"
    local folder = helper.folder()
    local path = helper.write(folder .. "lists.npy", header .. ("\0"):rep(8))
    local before = cells.plan({ s_q = 1, indices = path }).cells[1]
    helper.write(path, header .. ("\0"):rep(4) .. "\1\0\0\0")
    local after = cells.plan({ s_q = 1, indices = path }).cells[1]
    helper.shell("rm -rf " .. folder)
    assert.same({ nil, nil }, { before.reason, after.reason })
    assert.not_equal(before.config, after.config)
  end)
end)

describe("cells.shard", function()
  it("puts every cell into exactly one part, whatever the order", function()
    local list = cells.plan({ s_q = "1:50:1", heads = 8 }).cells
    for _, n in ipairs { 1, 2, 3, 7, 60 } do
      local seen, count = {}, 0
      for i = 1, n do
        for _, cell in ipairs(cells.shard(list, i, n)) do
          assert.is_nil(seen[cell.config])
          seen[cell.config], count = true, count + 1
        end
      end
      assert.equal(50, count)
    end
  end)
end)

describe("an estimate", function()
  it("grows with samples and rows, and counts set-up", function()
    local rates = { padded = 1e9, native = 1e9, bytes = 1e9 }
    local list = cells.plan({ s_q = "64,128", heads = 8 }).cells
    local paths = { "padded", "gather" }
    local few = cells.seconds(list[1], paths, 6, rates)
    assert.is_true(few < cells.seconds(list[1], paths, 12, rates))
    assert.is_true(cells.seconds(list[2], paths, 6, rates) > 1.5 * few)
    local padded, native = list[1].flops.padded / 1e9, list[1].flops.native / 1e9
    assert.is_true(padded > 0.02 and native > 0.02) -- no run is repeated before a sample
    assert.is_true(math.abs(few - (0.05 + list[1].bytes / 1e9 + 8 * padded + 14 * native)) < 1e-9)
  end)

  it("comes from rates that the device is measured for", function()
    local rates = assert(require("fewhead.decide.rate").measure(helper.device()))
    for _, key in ipairs { "padded", "native", "bytes" } do assert.is_true(rates[key] > 1e6 and rates[key] < 1e16, key) end
  end)
end)
