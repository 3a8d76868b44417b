-- Ctrl-C, SIGTERM and a closed terminal: heard at once, and what was measured is kept.
local helper = require "spec.helper"
local process = require "spec.process"

local HEARD = require("fewhead.cli.interrupt").HEARD

-- Runs a command of the checkout, sends it a signal once its standard output or error, or the clock, says so (`when` is a shell
-- condition, tried every 0.1 s), and returns its status, output and errors.
local function interrupted(command, signal, when, env)
  return process.run(([[
    out=$(mktemp) err=$(mktemp)
    %s >"$out" 2>"$err" & pid=$!
    tries=0
    while ! { %s; } && [ $tries -lt 600 ]; do sleep 0.1; tries=$((tries + 1)); done
    kill -%s $pid; wait $pid; status=$?
    cat "$out"; cat "$err" >&2; rm -f "$out" "$err"; exit $status]]):format(command, when, signal), { env = env })
end

describe("a signal #robustness", function()
  for _, signal in ipairs { "INT", "TERM", "HUP" } do
    it(signal .. " is heard within a long piece of work, said once, and ends it in good order", function()
      helper.with_file([[
        local posix = require "fewhead.base.posix"
        local pressed = require("fewhead.cli.interrupt").during(function(pressed)
          print "ready"; io.stdout:flush()
          for _ = 1, 20 do posix.sleep_us(100000) end
          return pressed()
        end)
        print(pressed and "kept" or "lost")]], function(path)
          local status, out, err = interrupted("./fewhead run " .. path, signal, 'grep -q ready "$out"')
          assert.same({ 0, "ready\nkept\n", HEARD }, { status, out, err })
        end)
    end)
  end

  it("that is taken at once needs no word; without one nothing is said", function()
    helper.with_file([[
      local posix = require "fewhead.base.posix"
      print(require("fewhead.cli.interrupt").during(function(pressed)
        print "ready"; io.stdout:flush()
        for _ = 1, 200 do
          posix.sleep_us(10000)
          if pressed() then return "taken" end
        end
        return "none"
      end))]], function(path)
        assert.same({ 0, "ready\ntaken\n", "" }, { interrupted("./fewhead run " .. path, "TERM", 'grep -q ready "$out"') })
        assert.same({ 0, "ready\nnone\n", "" }, { process.run("./fewhead run " .. path) })
      end)
  end)

  it("that the process ignores, SIGHUP under nohup, is ignored still", function()
    helper.with_file([[
      local posix = require "fewhead.base.posix"
      print(require("fewhead.cli.interrupt").during(function(pressed)
        print "ready"; io.stdout:flush()
        for _ = 1, 10 do posix.sleep_us(100000) end
        return pressed()
      end))]], function(path)
        assert.same({ 0, "ready\nfalse\n", "" }, { interrupted("(trap '' HUP; exec ./fewhead run " .. path .. ")", "HUP",
          'grep -q ready "$out"') })
      end)
  end)

  it("leaves no process behind", function()
    helper.with_file([[
      local posix = require "fewhead.base.posix"
      for i = 1, 3 do pcall(require("fewhead.cli.interrupt").during, function() if i == 2 then error "x" end end) end
      print(require("ffi").C.waitpid(-1, nil, 0), require("ffi").errno())]], function(path)
        assert.same({ 0, "-1\t10\n", "" }, { process.run("./fewhead run " .. path) }) -- 10: no child
      end)
  end)

  it("in layouts keeps the cells that are done", function()
    local folder = helper.folder()
    local records = folder .. "latest/records.jsonl"
    local status, out = interrupted("./fewhead run experiments/layouts.lua --s-q 4,8192 --layout vllm --seconds 60 --out "
      .. folder, "INT", ('[ "$(cat "%s" 2>/dev/null | wc -l)" -ge 3 ]'):format(records), { FEWHEAD_DEVICE = "cpu" })
    assert.equal(130, status)
    assert.matches("\n +4 .- pass ", out)
    assert.matches("\ninterrupted: 1 of 2 cells measured\n", out)
    local _, lines = helper.read(records):gsub("\n", "")
    assert.equal(3, lines)
    process.remove(folder)
  end)

  it("in layers keeps the tables that are done", function()
    local folder = helper.folder()
    local status, out = interrupted("./fewhead run experiments/layers.lua --s-q 2 --prior 64,128,256,512,1024,2048 --seconds 1 "
      .. "--out " .. folder, "TERM", 'grep -q "layout vllm" "$out"', { FEWHEAD_DEVICE = "cpu" })
    assert.equal(130, status)
    assert.matches("\ninterrupted: %d tables\nwritten to [^\n]+\n$", out)
    process.remove(folder)
  end)
end)
