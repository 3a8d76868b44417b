-- The experiments, started as a person starts them.
local helper = require "spec.helper"
local json = require "fewhead.base.json"

local paths = helper.paths(require("fewhead.device.device").default())

local folder

before_each(function() folder = helper.folder() end)
after_each(function() helper.shell("rm -rf " .. folder) end)

local read, write = helper.read, helper.write

-- Runs an experiment, the gate's settings unset; returns standard output, exit status, standard error.
local function run(name, options)
  local command = "cd %s. && unset VLLM_DSV41_FEWHEAD_PREFILL VLLM_DSV41_FEWHEAD_MIN_SQ && "
    .. "./fewhead run experiments/%s.lua %s 2>%sstderr"
  local out, status = helper.shell(command:format(helper.root, name, options, folder))
  return out, status, read(folder .. "stderr")
end

-- The quickest sweep that still has a curve: two chunks of a few rows, the fewest samples.
local QUICK = "--s-q 8,16 --seconds 0 --layout vllm"

local TRAFFIC = table.concat({
  '{"timestamp": 0, "input_length": 20, "output_length": 5, "hash_ids": [1]}',
  '{"timestamp": 1000, "input_length": 8, "output_length": 5, "hash_ids": [2]}',
}, "\n")

describe("gate_sweep", function()
  it("prints the table, the gate and the line to export, and writes three whole files", function()
    local out, status, err = run("gate_sweep", QUICK .. " --min-sq 0,16 --out " .. folder .. "out")
    assert.equal("", err) -- no progress line where there is no terminal
    assert.equal(0, status)
    assert.matches("^Gate sweep: v4%.1%-flash tp8\n8 of 64 heads, d_qk 512, topk 640, hot caches\n", out)
    assert.matches("\n *s_q +padded +gather +packed +auto +ratio +verdict +by +parity +max error +waste padded +waste native\n",
      out)
    assert.matches("\n +8 .- pass ", out)
    assert.matches("\n +16 .- pass ", out)
    assert.matches("\ncsa vllm hot: %l+", out)
    assert.matches("\nthe published gate %(2048%) on it: %l+", out)
    local decided = out:find("\nrecommended[ :]") ~= nil -- noise may hide it in so short a run, and then there is no line
    assert.equal(decided, out:find("\nexport VLLM_DSV41_FEWHEAD_%u+_?%u*=%d+\n") ~= nil)
    assert.equal(not decided, out:find("\nnot decided, measure longer (--seconds): no recommendation\n", 1, true) ~= nil)
    assert.matches("\n0 %(always%) +2 of 2 ", out)
    assert.matches("\n16 +1 of 2 ", out)
    assert.matches("\nenvironment %(2048%) +0 of 2 ", out)

    local lines = 0
    for line in read(folder .. "out/gate_sweep.jsonl"):gmatch("([^\n]*)\n") do
      local record = assert(json.decode(line))
      assert.is_true(record.path == "padded" or record.path == "gather" or record.path == "packed" or record.path == "auto")
      assert.equal("pass", record.parity.status)
      assert.equal("vllm", record.case.layout)
      assert.equal("--s-q", record.run.argv[1])
      lines = lines + 1
    end
    assert.equal(2 * (#paths + 1), lines)
    assert.matches("\nauto [^\n]+\nauto over the best path and its plan: %-?[%d.]+ %% on average", out)
    local markdown = read(folder .. "out/gate_sweep.md")
    assert.matches("^# Gate sweep: v4%.1%-flash tp8\n", markdown)
    assert.is_truthy(markdown:find("![times and speed-up over s_q](gate_sweep.svg)", 1, true))
    assert.equal(decided, markdown:find("\n```\nexport VLLM_DSV41_FEWHEAD_", 1, true) ~= nil)
    local svg = read(folder .. "out/gate_sweep.svg")
    assert.matches("^<svg .*>padded</text>.*</svg>\n$", svg)
    assert.equal("gate_sweep.jsonl\ngate_sweep.md\ngate_sweep.svg", (helper.shell("ls -A " .. folder .. "out")))
  end)

  it("scores gates on the traffic it is given", function()
    write(folder .. "trace", TRAFFIC)
    local out, status = run("gate_sweep", QUICK .. " --traffic " .. folder .. "trace --out " .. folder .. "out")
    assert.equal(0, status)
    assert.matches("\nGates on traffic\n.-trace: mooncake, 2 requests over 1 s, ", out)
    assert.matches("\n2 chunks, 28 rows of 2 requests: one engine, ", out)
    assert.matches("71%.4 %% of the rows lie in chunks outside the measured s_q 8 to 16", out)
    assert.matches("\n0 %(always%) +100%.0 %% +100%.0 %% ", out)
    assert.matches("\n2048 %(published%) +0%.0 %% +0%.0 %% ", out)
    assert.matches("## Gates on traffic", read(folder .. "out/gate_sweep.md"))
  end)

  it("reads the trace before it measures, and refuses a bad one by file and line", function()
    write(folder .. "trace", TRAFFIC .. "\n{}\n")
    local out, status, err = run("gate_sweep", QUICK .. " --traffic " .. folder .. "trace --out " .. folder .. "out")
    assert.equal(1, status)
    assert.equal("", out)
    assert.equal("gate_sweep: " .. folder .. "trace:3: timestamp: got nil, wanted a whole number >= 0\n", err)
    assert.equal("stderr\ntrace", (helper.shell("ls -A " .. folder)))
    out, status = run("gate_sweep", QUICK .. " --skip-bad --traffic " .. folder .. "trace --out " .. folder .. "out")
    assert.equal(0, status)
    assert.matches("; 1 bad lines left out, the first: [^\n]*trace:3: timestamp", out)
  end)

  it("warns of a setting it cannot read", function()
    local command = "cd %s. && VLLM_DSV41_FEWHEAD_MIN_SQ=many ./fewhead run experiments/gate_sweep.lua %s --out %sout"
    local out, status = helper.shell(command:format(helper.root, QUICK, folder))
    assert.equal(0, status)
    assert.matches('fewhead: VLLM_DSV41_FEWHEAD_MIN_SQ: got "many", wanted a whole number >= 0; using 2048', out)
  end)

  it("keeps what was measured on Ctrl-C, writes whole files and leaves with 130", function()
    -- Interrupted as soon as the first cell is on the disk; the large ones to come last longer than that takes.
    local out, status = helper.shell(([[
      cd %s. && mkdir %sout && echo old >%sout/gate_sweep.md
      ./fewhead run experiments/gate_sweep.lua --s-q 8:2048:*2 --seconds 0 --out %sout >%sstdout 2>&1 &
      while kill -0 $! && ! [ -s %sout/gate_sweep.jsonl.$!.tmp ]; do sleep 0.05; done
      kill -INT $!
      wait $!]]):format(helper.root, folder, folder, folder, folder, folder))
    assert.equal("", out)
    assert.equal(130, status)
    assert.equal("gate_sweep.jsonl\ngate_sweep.md\ngate_sweep.svg", (helper.shell("ls -A " .. folder .. "out")))
    local text = read(folder .. "stdout")
    local measured = tonumber(text:match("interrupted: (%d+) of 18 cells measured"))
    assert.is_true(measured >= 1 and measured < 18)
    local _, lines = read(folder .. "out/gate_sweep.jsonl"):gsub("[^\n]*\n", function(line) assert(json.decode(line)) end)
    assert.equal((#paths + 1) * measured, lines)
    assert.matches("interrupted: " .. measured .. " of 18 cells measured", read(folder .. "out/gate_sweep.md"))
    assert.matches("</svg>\n$", read(folder .. "out/gate_sweep.svg"))
  end)

  it("finds out before it measures that --out cannot be written, as all that take it do", function()
    write(folder .. "file", "kept")
    for _, name in ipairs { "gate_sweep", "layers", "peers", "bench_packed", "bench_gpu" } do
      local out, status, err = run(name, "--device cpu --out " .. folder .. "file")
      assert.same({ 1, "" }, { status, out })
      assert.equal(('%s: --out: got "%sfile", wanted a folder to write to: Not a directory\n'):format(name, folder), err)
    end
    assert.equal("kept", read(folder .. "file"))
  end)

  it("blames --device for a device that is not here, as all that take it do", function()
    for _, name in ipairs { "gate_sweep", "layers", "peers", "bench_packed", "bench_gpu" } do
      local _, status, err = run(name, "--device abacus")
      assert.same({ 1, name .. ': --device: got "abacus", wanted cpu, cuda or cuda:N\n' }, { status, err })
    end
  end)

  it("refuses wrong options with status 2", function()
    local _, status, err = run("gate_sweep", "--s-q 64:x")
    assert.equal(2, status)
    assert.matches('^gate_sweep: %-%-s%-q: got "64:x", wanted ', err)
    _, status, err = run("gate_sweep", "--layout vlm")
    assert.equal(2, status)
    assert.matches('^gate_sweep: %-%-layout: got "vlm", wanted ', err)
  end)
end)

describe("layers, peers and the benches", function()
  it("keep what was measured on Ctrl-C and leave with 130", function()
    -- Ctrl-C once the first table stands, or in the middle of a cell; what is to come lasts far longer.
    local command = "cd %s. && { timeout --preserve-status -s INT %s ./fewhead run experiments/%s.lua "
      .. "--device cpu --out %sout %s; echo $?; } 2>&1"
    for name, options in pairs {
      layers = "--s-q 1 --prior 20,32768,131072 --pattern local,csa --seconds 30",
      peers = "--s-q 1,65536 --samples 6 --seconds 0",
      bench_packed = "--s-q 1,4,65536 --samples 6",
    } do
      local out = helper.shell(command:format(helper.root, 3, name, folder, options))
      assert.matches("\n130\n*$", "\n" .. out)
      assert.matches("interrupted: %d+ %l+", out)
      local file = name == "bench_packed" and "packed" or name
      assert.matches("interrupted: %d+ %l+", read(folder .. "out/" .. file .. ".md"))
      for line in read(folder .. "out/" .. file .. ".jsonl"):gmatch("[^\n]+") do assert(json.decode(line)) end
    end
  end)
end)

describe("gate_traffic", function()
  it("scores an earlier sweep on any number of traces without measuring", function()
    write(folder .. "trace", TRAFFIC)
    write(folder .. "csv", "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,9,10")
    assert.equal(0, (select(2, run("gate_sweep", QUICK .. " --out " .. folder .. "out"))))
    local before = read(folder .. "out/gate_sweep.jsonl")
    local options = "--sweep %sout/gate_sweep.jsonl --traffic %strace --traffic %scsv --alone"
    local out, status = run("gate_traffic", options:format(folder, folder, folder))
    assert.equal(0, status)
    assert.matches("^csa vllm hot: ", out)
    assert.matches("trace: mooncake, 2 requests", out)
    assert.matches("csv: azure, 1 requests", out)
    assert.matches("2 chunks, 28 rows of 2 requests: every request alone, infinite prefix cache, at most 8192 rows a chunk", out)
    assert.equal(before, read(folder .. "out/gate_sweep.jsonl"))
  end)

  it("says what is missing", function()
    local _, status, err = run("gate_traffic", "")
    assert.equal(2, status)
    assert.equal("gate_traffic: no trace, wanted --traffic FILE\n", err)
    write(folder .. "trace", TRAFFIC)
    write(folder .. "sweep", "{}\n")
    _, status, err = run("gate_traffic", ("--sweep %ssweep --traffic %strace"):format(folder, folder))
    assert.equal(1, status)
    assert.equal(folder .. "sweep:1: path: got nil, wanted a string\n", err)
  end)
end)

describe("layouts", function()
  it("puts the layouts of one case side by side", function()
    local out, status = run("layouts", "--s-q 8 --seconds 0")
    assert.equal(0, status)
    assert.matches("^v4%.1%-flash tp8, [^\n]+, hot caches\nlayout ", out)
    for _, layout in ipairs { "contiguous", "vllm", "strided", "offset" } do
      assert.matches("\n" .. layout .. " +8 .- pass ", out)
    end
  end)
end)
