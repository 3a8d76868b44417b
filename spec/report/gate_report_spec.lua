local fh = require "fewhead"
local helper = require "spec.helper"
local json = require "fewhead.base.json"

local folder

before_each(function() folder = helper.folder() end)
after_each(function() helper.shell("rm -rf " .. folder) end)

local RUN = {
  id = "r", commit = ("c"):rep(40), device = "NVIDIA H200", kind = "cuda", driver = "1", date = "2026-01-02T03:04:05Z",
}

-- A record of a sweep: median and, for native paths, how many times as fast as padded, well told apart from 1.
local function record(path, s_q, us, ratio)
  return {
    path = path, provider = "fewhead", run = RUN,
    case = { s_q = s_q, h_q = 8, h_pad = 64, d_qk = 512, topk = 640, pattern = "csa", layout = "vllm" },
    parity = { status = "pass", against = "reference", compared = 1, max_abs = 1e-4 },
    work = { useful_flops = 1e9 * s_q, executed_flops = 8e9 * s_q, bytes = 1, rows = s_q, waste = 0.5 },
    time = { median_us = us, p05_us = us, p95_us = us, n = 9, l2 = "hot" },
    verdict = ratio and {
      verdict = ratio > 1 and "faster" or "slower", ratio = ratio, lo = ratio * 0.99, hi = ratio * 1.01, against = "padded",
    } or nil,
  }
end

-- gather pays from s_q 128 on.
local function sweep()
  local lines = {}
  for _, point in ipairs { { 64, 100, 200 }, { 128, 200, 100 }, { 256, 400, 100 } } do
    local s_q, padded, native = point[1], point[2], point[3]
    lines[#lines + 1] = json.encode(record("padded", s_q, padded))
    lines[#lines + 1] = json.encode(record("gather", s_q, native, padded / native))
  end
  return assert(fh.sweep.read(helper.write(folder .. "sweep.jsonl", table.concat(lines, "\n"))))
end

describe("gate_report", function()
  it("says what was measured, the gate that fits, and what gates cost on these cells", function()
    local measured = sweep()
    local gate = assert(fh.gate.fit(measured))
    local text = fh.gate_report.make({ title = "Title", sweep = measured, gate = gate, min_sq = { 0, 128 } }):text()
    assert.matches("^Title\n8 of 64 heads, d_qk 512, topk 640, hot caches\n", text)
    assert.matches("\nrecommended MIN_SQ: 128, the smallest measured s_q from which native is never slower\n", text)
    assert.matches("\nexport VLLM_DSV41_FEWHEAD_MIN_SQ=128\n", text)
    assert.matches("\nthe published gate %(2048%) on it: pads at s_q 128 %.%. 256, where native is up to 4%.00x faster\n", text)
    assert.matches("\n0 %(always%) +3 of 3 +33%.3 %% +100%.0 %% +s_q 64, csa, vllm\n", text)
    assert.matches("\n128 +2 of 3 +0%.0 %% +0%.0 %% ", text)
  end)

  it("writes markdown and a picture with the gate marked", function()
    local measured = sweep()
    local made = fh.gate_report.make { title = "Title", sweep = measured, gate = assert(fh.gate.fit(measured)) }
    assert.is_true(made:write(folder .. "x"))
    local markdown, svg = helper.read(folder .. "x.md"), helper.read(folder .. "x.svg")
    assert.matches("^# Title\n", markdown)
    assert.is_truthy(markdown:find("![times and speed-up over s_q](x.svg)", 1, true))
    assert.is_truthy(markdown:find("```\nexport VLLM_DSV41_FEWHEAD_MIN_SQ=128\n```", 1, true))
    assert.is_truthy(svg:find(">MIN_SQ 128</text>", 1, true))
    assert.is_nil(svg:find("published", 1, true)) -- 2048 lies beyond what was measured
    assert.same({ nil, "/dev/null/x.svg: Not a directory" }, { made:write("/dev/null/x") })
  end)

  it("draws the traffic that gates were scored on", function()
    local measured = sweep()
    local trace = helper.write(folder .. "trace.jsonl", '{"timestamp":0,"input_length":600,"output_length":1,"hash_ids":[1,2]}\n')
    local read = assert(fh.trace.read(trace))
    local made = fh.gate_report.make { title = "Title", sweep = measured, gate = assert(fh.gate.fit(measured)),
      traffic = { trace = read, chunks = fh.trace.chunks(read) } }
    assert.is_true(made:write(folder .. "x"))
    assert.is_truthy(helper.read(folder .. "x.md"):find("![chunks of the traffic](x_traffic.svg)", 1, true))
    assert.is_truthy(helper.read(folder .. "x_traffic.svg"):find(">MIN_SQ 128</text>", 1, true))
  end)

  it("says why there is no gate, and writes no picture then", function()
    local made = fh.gate_report.make { title = "Title", sweep = sweep(), gate_error = "no curve: too little was measured" }
    assert.matches("\nGate\nno curve: too little was measured$", made:text())
    assert.is_true(made:write(folder .. "x"))
    assert.equal("sweep.jsonl\nx.md", (helper.shell("ls " .. folder)))
  end)

  it("refuses an option that it does not know, on the caller's line", function()
    assert.matches('^gate_report: unknown option "sweeps"; did you mean "sweep"%? known: ',
      helper.refusal(function() local made = fh.gate_report.make { sweeps = 1 } return made end))
  end)
end)

describe("fh.gate_report", function()
  it("fits the gate itself, prints and saves", function()
    local records = require "spec.decide.speedups" { [64] = 0.5, [128] = 2, [256] = 2 }
    local at = helper.folder()
    helper.write(at .. "s.jsonl", require("spec.report.some_records").text(records))
    local report = fh.gate_report { sweep = assert(fh.sweep.read(at .. "s.jsonl")) }
    assert.equal(128, report.gate.min_sq)
    assert.matches("^Gate sweep\n", tostring(report))
    assert.matches("\nexport VLLM_DSV41_FEWHEAD_MIN_SQ=128\n", tostring(report))
    assert.is_function(report.print)
    for _, name in ipairs { "r.txt", "r.md", "p.svg" } do assert.same({ true }, { report:save(at .. name) }, name) end
    assert.equal(tostring(report) .. "\n", helper.read(at .. "r.txt"))
    assert.matches("!%[[^%]]*%]%(r%.svg%)", helper.read(at .. "r.md"))
    assert.equal(helper.read(at .. "r.svg"), helper.read(at .. "p.svg"))
    assert.same({ nil, 'got "r", wanted a file that ends in .md, .txt or .svg' }, { report:save "r" })
    helper.shell("rm -rf " .. at)
    assert.equal("gate_report: sweep: got nil, wanted a sweep with records",
      helper.refusal(function() local r = fh.gate_report {} return r end))
  end)
end)
