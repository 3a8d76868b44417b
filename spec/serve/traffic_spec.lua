local fh = require "fewhead"
local helper = require "spec.helper"
local json = require "fewhead.base.json"
local speedups = require "spec.decide.speedups"

local folder, sweep, trace

before_each(function()
  folder = helper.folder()
  local lines = {}
  for i, record in ipairs(speedups { [64] = 0.5, [128] = 2, [256] = 2, [512] = 2 }) do lines[i] = json.encode(record) end
  for _, record in ipairs(speedups({ [64] = 4, [512] = 4 }, { layout = "contiguous" })) do
    lines[#lines + 1] = json.encode(record)
  end
  sweep = helper.write(folder .. "sweep.jsonl", table.concat(lines, "\n") .. "\n")
  trace = helper.write(folder .. "trace.jsonl", '{"timestamp": 0, "input_length": 64, "output_length": 1, "hash_ids": [1]}\n'
    .. '{"timestamp": 1000, "input_length": 256, "output_length": 1, "hash_ids": [2]}\n')
end)
after_each(function() helper.shell("rm -rf " .. folder) end)

describe("fh.traffic", function()
  it("scores gates on a trace by the times of a sweep, in one call", function()
    local found = assert(fh.traffic { traffic = trace, sweep = sweep, layout = "vllm", min_sq = "0,128", pack = false })
    assert.same({ 128, 1 }, { found.gate.min_sq, #found.parts })
    local part = found.parts[1]
    assert.same({ 2, 320 }, { part.chunks.chunks, part.chunks.rows })
    local names, us = {}, {}
    for i, row in ipairs(part.rows) do names[i], us[i] = row.name, row.us end
    assert.same({ "off", "0 (always)", "128", "fitted (128)" }, names)
    -- 64 rows: padded 6400 us, native 12800; 256 rows: 25600 and 12800
    assert.same({ 32000, 25600, 19200, 19200 }, us)
    assert.matches("^times from .-sweep%.jsonl", tostring(found))
    assert.matches("\nfitted %(128%) +50%.0 %% +80%.0 %% +19%.20 ms +0%.00 ms +0%.00 %%$", tostring(found))
    assert.is_function(found.print)
  end)

  it("takes several files, and the times of one layout alone", function()
    local found = assert(fh.traffic { traffic = { trace, trace }, sweep = sweep, layout = "contiguous", pack = false })
    assert.same({ 2, 0 }, { #found.parts, found.gate.min_sq })
  end)

  it("refuses wrong options on the caller's line, and files that are none with the reason", function()
    local function refused(o) return helper.refusal(function() local f = fh.traffic(o) return f end) end
    assert.equal("traffic: traffic: got none, wanted at least one file", refused {})
    assert.equal("traffic: load: has no effect without pack true", refused { traffic = trace, load = 0.5, pack = false })
    assert.equal('traffic: layout: got "vlm", wanted one of contiguous, vllm, strided, offset; did you mean "vllm"?',
      refused { traffic = trace, layout = "vlm" })
    assert.equal("traffic: min_sq: got -1, wanted a whole number >= 0", refused { traffic = trace, min_sq = -1 })
    assert.equal('traffic: unknown option "tracks"; known: traffic, sweep, layout, pattern, min_sq, skip_bad, on_file, '
      .. "max_tokens, decode_rows, tokens_per_s, prefix_cache, load, pack", refused { tracks = trace })
    local none, err = fh.traffic { traffic = folder .. "no", sweep = sweep }
    assert.is_nil(none)
    assert.equal(folder .. "no: No such file or directory", err)
  end)
end)
