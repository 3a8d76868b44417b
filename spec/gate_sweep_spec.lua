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

-- Two good lines and a bad one.
local TRAFFIC = table.concat({
  '{"timestamp": 0, "input_length": 20, "output_length": 5, "hash_ids": [1]}',
  '{"timestamp": 1000, "input_length": 8, "output_length": 5, "hash_ids": [2]}',
  "{}",
}, "\n")

-- One run with everything that a run can have, looked at by several of the specs below.
local whole = {}
local function whole_run()
  if whole.out then return whole end
  whole.folder = helper.folder()
  write(whole.folder .. "trace", TRAFFIC)
  local command = "cd %s. && unset VLLM_DSV41_FEWHEAD_PREFILL && VLLM_DSV41_FEWHEAD_MIN_SQ=many ./fewhead run "
    .. "experiments/gate_sweep.lua %s --min-sq 0,16,2048 --traffic %strace --skip-bad --out %sout 2>%sstderr"
  whole.out, whole.status = helper.shell(command:format(helper.root, QUICK, whole.folder, whole.folder, whole.folder))
  whole.err = read(whole.folder .. "stderr")
  return whole
end
teardown(function() if whole.folder then helper.shell("rm -rf " .. whole.folder) end end)

describe("gate_sweep", function()
  it("prints the table, the gate and the line to export", function()
    local run_of = whole_run()
    local out = run_of.out
    assert.equal(0, run_of.status)
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
    assert.matches("\nauto [^\n]+\nauto over the best path and its plan: %-?[%d.]+ %% on average", out)
  end)

  it("writes four whole files to a folder of its own", function()
    local run_of = whole_run()
    local lines = 0
    for line in read(run_of.folder .. "out/latest/records.jsonl"):gmatch("([^\n]*)\n") do
      local record = assert(json.decode(line))
      assert.is_true(record.path == "padded" or record.path == "gather" or record.path == "packed" or record.path == "auto")
      assert.equal("pass", record.parity.status)
      assert.equal("vllm", record.case.layout)
      assert.equal("--s-q", record.run.argv[1])
      lines = lines + 1
    end
    assert.equal(2 * (#paths + 1), lines)
    local markdown = read(run_of.folder .. "out/latest/report.md")
    assert.matches("^# Gate sweep: v4%.1%-flash tp8\n", markdown)
    assert.is_truthy(markdown:find("![times and speed-up over s_q](report.svg)", 1, true))
    assert.equal(run_of.out:find("\nrecommended[ :]") ~= nil, markdown:find("\n```\nexport VLLM_DSV41_FEWHEAD_", 1, true) ~= nil)
    local svg = read(run_of.folder .. "out/latest/report.svg")
    assert.matches("^<svg .*>padded</text>.*</svg>\n$", svg)
    assert.equal("gates.json\nrecords.jsonl\nreport.md\nreport.svg\nreport_traffic.svg\nrun.json",
      (helper.shell("ls -A " .. run_of.folder .. "out/latest/")))
  end)

  it("scores gates on the traffic it is given", function()
    local run_of = whole_run()
    local out = run_of.out
    assert.matches("\nGates on traffic\n.-trace: mooncake, 2 requests over 1 s, ", out)
    assert.matches("\n2 chunks, 28 rows of 2 requests: one engine, ", out)
    assert.matches("71%.4 %% of the rows lie in chunks outside the measured s_q 8 to 16", out)
    assert.matches("\n0 %(always%) +100%.0 %% +100%.0 %% ", out)
    assert.matches("\n2048 %(published%) +0%.0 %% +0%.0 %% ", out)
    assert.matches("## Gates on traffic", read(run_of.folder .. "out/latest/report.md"))
    assert.matches("; 1 bad lines left out, the first: [^\n]*trace:3: timestamp", out)
  end)

  it("warns of a setting it cannot read, and prints no progress line where there is no terminal", function()
    assert.equal('fewhead: VLLM_DSV41_FEWHEAD_MIN_SQ: got "many", wanted a whole number >= 0; using 2048\n', whole_run().err)
  end)

  it("reads the trace before it measures, and refuses a bad one by file and line", function()
    write(folder .. "trace", TRAFFIC)
    local out, status, err = run("gate_sweep", QUICK .. " --traffic " .. folder .. "trace --out " .. folder .. "out")
    assert.equal(1, status)
    assert.equal("", out)
    assert.equal("gate_sweep: " .. folder .. "trace:3: timestamp: got nil, wanted a whole number >= 0\n", err)
    assert.equal("stderr\ntrace", (helper.shell("ls -A " .. folder)))
  end)

  it("keeps what was measured on Ctrl-C, writes whole files and leaves with 130", function()
    -- Interrupted as soon as the first cell is on the disk; the large ones to come last longer than that takes.
    local out, status = helper.shell(([[
      cd %s.
      ./fewhead run experiments/gate_sweep.lua --s-q 8:2048:*2 --seconds 0 --out %sout >%sstdout 2>&1 &
      while kill -0 $! && ! grep -qs . %sout/latest/records.jsonl; do sleep 0.05; done
      kill -INT $!
      wait $!]]):format(helper.root, folder, folder, folder))
    assert.equal("", out)
    assert.equal(130, status)
    assert.equal("gates.json\nrecords.jsonl\nreport.md\nreport.svg\nrun.json",
      (helper.shell("ls -A " .. folder .. "out/latest/")))
    local text = read(folder .. "stdout")
    local measured = tonumber(text:match("interrupted: (%d+) of 9 cells measured"))
    assert.is_true(measured >= 1 and measured < 9)
    local _, lines = read(folder .. "out/latest/records.jsonl"):gsub("[^\n]*\n", function(line) assert(json.decode(line)) end)
    assert.equal((#paths + 1) * measured, lines)
    assert.matches("interrupted: " .. measured .. " of 9 cells measured", read(folder .. "out/latest/report.md"))
    assert.matches("</svg>\n$", read(folder .. "out/latest/report.svg"))
  end)

  it("finds out before it measures that --out cannot be written, as all that take it do", function()
    write(folder .. "file", "kept")
    for _, name in ipairs { "gate_sweep", "layers", "layouts", "peers", "bench_packed", "bench_gpu" } do
      local out, status, err = run(name, "--device cpu --out " .. folder .. "file")
      assert.same({ 1, "" }, { status, out })
      assert.equal(('%s: --out: got "%sfile", wanted a folder to write to: Not a directory\n'):format(name, folder), err)
    end
    assert.equal("kept", read(folder .. "file"))
  end)

  it("blames --device for a device that is not here, as all that take it do", function()
    local names = { "gate_sweep", "layers", "peers", "bench_packed", "bench_gpu", "layouts", "bench", "parity" }
    for _, name in ipairs(names) do
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

  it("and the others refuse a wrong value or an option without effect, by its name", function()
    local function takers(option) return table.concat(require("fewhead.case.pattern").taking(option), " or ") end
    for _, words in ipairs {
      { "gate_sweep", "--indices Makefile --pattern csa", "--indices: has no effect with --pattern" },
      { "gate_sweep", "--indices /no/such --s-q 16",
        '--indices: got "/no/such", wanted a file that can be read (No such file or directory)' },
      { "overlap", "--indices /no/such",
        '--indices: got "/no/such", wanted a file that can be read (No such file or directory)' },
      { "parity", "--indices /no/such", '--indices: got "/no/such", wanted a file that can be read (No such file or directory)' },
      { "gate_sweep", "--shard 3/2", '--shard: got "3/2", wanted "I/N" with I in 1 .. N' },
      { "gate_sweep", "--seconds 1 --seconds 2", "--seconds: given twice, wanted once" },
      { "gate_sweep", "--max-bytes 1,2", '--max-bytes: got "1,2", wanted a whole number >= 0' },
      { "gate_sweep", "--skip-bad", "--skip-bad: has no effect without --traffic" },
      { "overlap", "--indices Makefile --keep 0.5", "--keep: has no effect without --pattern " .. takers "keep" },
      { "overlap", "--pattern uniform --prior 5",
        "--prior: has no effect without --pattern " .. takers "prior" },
      { "gate_traffic", "--alone --load 0.5 --traffic Makefile", "--load: has no effect with --alone" },
      { "layers", "--pattern csa --keep 0.5", "--keep: has no effect without --pattern local" },
    } do
      local out, status, err = run(words[1], words[2])
      assert.same({ 2, "", ("%s: %s (--help lists the options)\n"):format(words[1], words[3]) }, { status, out, err })
    end
  end)
end)

describe("layers, peers and the benches", function()
  -- Sends this process the signal of Ctrl-C within the second thing that is measured, then runs the command in ARGV.
  local PRESS = [[
    local fh, ffi = require "fewhead", require "ffi"
    ffi.cdef "int kill(int, int);"
    local posix = require "fewhead.base.posix"
    local measured = 0
    local function press_at_second()
      measured = measured + 1
      if measured == 2 then ffi.C.kill(posix.pid(), posix.SIGINT) end
    end
    if arg[2]:find("layers") then
      local layers = fh.layers
      local pressing = function(_, o) press_at_second() return layers(o) end
      rawset(fh, "layers", setmetatable({}, { __index = layers, __call = pressing }))
    else
      local during = fh.interrupt.during
      fh.interrupt.during = function(f) return during(function(pressed) press_at_second() return f(pressed) end) end
    end
    os.exit(fh.cli.main(arg), true)]]

  for name, options in pairs {
    layers = "--s-q 1 --prior 20,21,22 --pattern local --seconds 0",
    peers = "--s-q 1,2,4 --pattern csa --samples 6 --seconds 0",
    bench_packed = "--s-q 1,2,4 --samples 6",
  } do
    it("keep what was measured on Ctrl-C and leave with 130: " .. name, function()
      local words = {}
      for word in ("run experiments/%s.lua --device cpu --out %sout %s"):format(name, folder, options):gmatch("%S+") do
        words[#words + 1] = ("%q"):format(word)
      end
      local code = ("arg = { %s }\n%s"):format(table.concat(words, ", "), PRESS)
      local out, status = helper.luajit(code, { cd = helper.root .. "." })
      assert.equal(130, status, out)
      local what = name == "layers" and "1 tables" or "%d+ records"
      assert.matches("interrupted: " .. what, out)
      assert.matches("interrupted: " .. what, read(folder .. "out/latest/report.md"))
      assert.equal("interrupted", assert(json.decode(read(folder .. "out/latest/run.json"))).state)
      local cells, lines = {}, 0
      for line in read(folder .. "out/latest/records.jsonl"):gmatch("[^\n]+") do
        local record = assert(json.decode(line))
        cells[json.encode(record.case or record.chunk)], lines = true, lines + 1
      end
      assert.is_true(lines > 1)
      local first = next(cells)
      assert.is_nil(next(cells, first), "records of more than the first cell")
    end)
  end
end)

describe("gate_traffic", function()
  it("scores an earlier sweep on any number of traces without measuring", function()
    write(folder .. "csv", "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,9,10")
    local sweep = whole_run().folder .. "out/latest/records.jsonl"
    local before = read(sweep)
    local options = "--sweep %s --traffic %strace --traffic %scsv --alone --skip-bad"
    local out, status = run("gate_traffic", options:format(sweep, whole.folder, folder))
    assert.equal(0, status)
    assert.matches("^times from run [%w_-]+: 2 cells, complete\ncsa vllm hot: ", out)
    assert.matches("trace: mooncake, 2 requests", out)
    assert.matches("csv: azure, 1 requests", out)
    assert.matches("2 chunks, 28 rows of 2 requests: every request alone, infinite prefix cache, at most 8192 rows a chunk", out)
    assert.equal(before, read(sweep))
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
    local out, status = run("layouts", "--s-q 8 --seconds 0 --out " .. folder .. "out")
    assert.equal(0, status)
    local _, lines = read(folder .. "out/latest/records.jsonl"):gsub("\n", "")
    assert.equal(4 * #paths, lines)
    assert.is_truthy(read(folder .. "out/latest/report.md"):find(out:match("(layout .-)\nwritten to "), 1, true))
    assert.matches("^v4%.1%-flash tp8, [^\n]+, hot caches\nlayout ", out)
    for _, layout in ipairs { "contiguous", "vllm", "strided", "offset" } do
      assert.matches("\n" .. layout .. " +8 .- pass ", out)
    end
  end)
end)
