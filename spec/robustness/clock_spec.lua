-- A clock that jumps and a process that is stopped, in the middle of a sweep.
local helper = require "spec.helper"
local json = require "fewhead.base.json"
local process = require "spec.process"

local folder = helper.folder()
teardown(function() process.remove(folder) end)

-- Time of day as it is, 7 hours behind from the third question on, 3 hours ahead from the sixth on, and so round and round.
local CLOCK = [[
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static long jump(void) {
  static int asked;
  static const long jumps[] = {0, 0, -7 * 3600, -7 * 3600, -7 * 3600, 3 * 3600, 3 * 3600};
  return jumps[asked++ % 7];
}
time_t time(time_t *at) {
  struct timespec now;
  syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
  now.tv_sec += jump();
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}
]]

local SWEEP = "./fewhead run experiments/gate_sweep.lua --s-q 2,4,8 --s-kv 64 --topk 16 --pattern uniform --out %s"

local function records(out)
  local list = {}
  for line in helper.read(folder .. out .. "/latest/records.jsonl"):gmatch("[^\n]+") do
    list[#list + 1] = assert(json.decode(line))
  end
  return list
end

describe("a sweep #robustness", function()
  it("under a clock that jumps has two folders for two runs, the later one as latest, and no time below 0", function()
    helper.write(folder .. "clock.c", CLOCK)
    local text, status = helper.shell(("cc -shared -fPIC -Wall -Werror -o %sclock.so %sclock.c"):format(folder, folder))
    assert.same({ "", 0 }, { text, status })
    local latest = {}
    for i = 1, 2 do
      local out, err
      status, out, err = process.run(("LD_PRELOAD=%sclock.so " .. SWEEP .. " --seconds 60"):format(folder, folder .. "runs"),
        { env = { FEWHEAD_DEVICE = "cpu" } })
      assert.equal(0, status, out .. err)
      assert.is_truthy(out:find("\nmeasured 3, reused 0\n", 1, true), out)
      latest[i] = helper.shell(("readlink %sruns/latest"):format(folder))
      local head = assert(json.decode(helper.read(folder .. "runs/latest/run.json")))
      assert.same({ i, "complete" }, { head.sequence, head.state })
      assert.equal(12, #records("runs"))
      for _, record in ipairs(records("runs")) do
        for _, key in ipairs { "median_us", "p05_us", "p95_us" } do
          assert.is_true(record.time[key] > 0 and record.time[key] < 60e6, key)
        end
      end
    end
    assert.not_equal(latest[1], latest[2])
  end)

  it("that is stopped again and again drops the samples with a pause in them, and says how many", function()
    -- All children of the command are stopped: the worker, and the process that listens for Ctrl-C.
    local text = helper.shell(([[
      cd %s. && FEWHEAD_DEVICE=cpu FEWHEAD_THREADS=1 ./fewhead run experiments/gate_sweep.lua --s-q 256 --seconds 0 \
        --min-samples 20 --out %sstop >%sout 2>&1 &
      parent=$!
      for i in 1 2 3 4 5 6 7 8; do
        sleep 0.7
        children=$(pgrep -P $parent) || continue
        kill -STOP $children 2>/dev/null; sleep 0.5; kill -CONT $children 2>/dev/null
      done
      wait $parent]]):format(helper.root, folder, folder))
    assert.equal("", text)
    local list, dropped = records("stop"), 0
    assert.equal(4, #list)
    for _, record in ipairs(list) do dropped = dropped + (record.time.dropped or 0) end
    assert.is_true(dropped >= 1, "no pause fell into a sample")
  end)
end)
