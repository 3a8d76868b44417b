-- NVTX ranges, taken by a profiler of our own that does what NVIDIA's do when a program hands them its table.
local helper = require "spec.helper"
local plugin = require "spec.plugin"
local process = require "spec.process"

local folder = helper.folder()
teardown(function() helper.shell("rm -rf " .. folder) end)

-- Writes "push NAME" and "pop" to the file in NVTX_SPEC_LOG.
local profiler = plugin.library(folder, "profiler", [[
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
typedef int (*push_fn)(const char *);
typedef int (*pop_fn)(void);
typedef void (*any_fn)(void);
typedef struct { size_t struct_size; int (*get_module)(int, any_fn ***, unsigned *); } callbacks;
typedef struct { size_t struct_size; unsigned version, reserved[7]; } version_info;
static void note(const char *what, const char *name) {
  FILE *file = fopen(getenv("NVTX_SPEC_LOG"), "a");
  if (!file) abort();
  fprintf(file, "%s%s\n", what, name);
  fclose(file);
}
static int push(const char *name) { note("push ", name); return 0; }
static int pop(void) { note("pop", ""); return 0; }
int InitializeInjectionNvtx2(const void *(*table)(unsigned));
int InitializeInjectionNvtx2(const void *(*table)(unsigned)) {
  const version_info *info = table(3);
  const callbacks *found = table(1);
  if (!info || info->version != 3 || !found || table(7)) return 0;
  any_fn **core;
  unsigned size;
  if (!found->get_module(1, &core, &size) || size < 12) return 0;
  *core[9] = (any_fn)push;
  *core[11] = (any_fn)pop;
  return 1;
}]])

local function sweep(options, path)
  local words = { "./fewhead", "run", "experiments/gate_sweep.lua", "--s-q", "2", "--s-kv", "64", "--topk", "16", "--pattern",
    "uniform", "--device", "cpu", "--seconds", "0", "--out", folder .. "out" }
  for word in options:gmatch("%S+") do words[#words + 1] = word end
  return process.run(words, { env = { NVTX_INJECTION64_PATH = path or "", NVTX_SPEC_LOG = folder .. "log" } })
end

describe("gate_sweep --profile", function()
  it("launches each path once in a range of its name, and times nothing", function()
    local status, out = sweep("--profile", profiler)
    assert.equal(0, status)
    assert.matches("\nprofiled, not timed; written: ", out)
    local seen = {}
    for line in helper.read(folder .. "log"):gmatch("[^\n]+") do
      seen[#seen + 1] = line:match("^push fewhead (%l+): uniform s_q=2 ") or line
    end
    assert.same({ "padded", "pop", "gather", "pop", "packed", "pop", "auto", "pop" }, seen)
    for line in io.lines(folder .. "out/latest/records.jsonl") do
      assert.matches('"status":"pass"', line)
      assert.is_nil(line:find('"time"', 1, true))
    end
  end)

  it("says in one line what is missing, before anything runs", function()
    local status, out, err = sweep("--profile")
    assert.same({ 1, "", "gate_sweep: profile: no profiler: NVTX_INJECTION64_PATH is not set; start the command under nsys "
      .. "profile\n" }, { status, out, err })
    status, out, err = sweep("--profile", folder .. "none.so")
    assert.same({ 1, "" }, { status, out })
    assert.matches("^gate_sweep: profile: NVTX_INJECTION64_PATH: [^\n]*none%.so: No such file or directory\n$", err)
  end)
end)

describe("gate_sweep --samples", function()
  it("keeps every sample of every path, for compare and export", function()
    local status = sweep("--samples --min-samples 6")
    assert.is_true(status == 0 or status == 1) -- noise may hide the gate
    local records = assert(require("fewhead.record.record").read(folder .. "out/latest/records.jsonl"))
    for _, r in ipairs(records) do
      assert.equal(r.time.n, #r.time.samples)
      assert.equal(r.time.median_us, require("fewhead.measure.stats").median(r.time.samples))
    end
    local _, out = process.run { "./fewhead", "compare", folder .. "out/latest", folder .. "out/latest" }
    assert.matches("4 same", out)
    local to = folder .. "x.csv"
    assert.equal(0, (process.run { "./fewhead", "export", folder .. "out/latest", "--out", to }))
    assert.matches("time_samples", helper.read(to):match("^[^\n]+"))
  end)
end)
