local process = require "spec.process"

describe("fewhead experiments", function()
  it("lists every experiment with the first line of its head comment", function()
    local status, out, err = process.run { "./fewhead", "experiments" }
    assert.same({ 0, "" }, { status, err })
    assert.is_truthy(out:find("\ngate_sweep         Where do native heads beat padded ones on this machine?", 1, true), out)
  end)

  -- One idea a file: what is longer has machinery that belongs into a module.
  local FEWEST_LINES, MOST_LINES = 15, 60

  it("are one question each, with its answer, the command and at most 60 lines", function()
    local count = 0
    for _, one in ipairs(require("fewhead.cli.help").experiments()) do
      count = count + 1
      local text = process.read(one.path)
      local head = text:match("^(.-)\nlocal ")
      assert.matches("^%-%- %u[^\n]*%?", head, one.name .. ": no question in its first line")
      assert.matches("[.?]$", one.about, one.name)
      assert.is_truthy(head:find("\n%-%- Answer[: ]"), one.name .. ": no answer")
      assert.is_truthy(head:find("\n%-%-   %./fewhead run ") or head:find("\n%-%-   make "), one.name .. ": no command")
      local _, lines = text:gsub("\n", "")
      assert.is_true(lines >= FEWEST_LINES and lines <= MOST_LINES, ("%s: %d lines"):format(one.name, lines))
    end
    assert.is_true(count >= 16)
  end)

  it("refuses words after it", function()
    local status, out, err = process.run { "./fewhead", "experiments", "x" }
    assert.same({ 2, "", 'fewhead: experiments: unexpected argument "x", wanted none\n' }, { status, out, err })
  end)

  it("have names that fewhead run finds in any folder", function()
    local status, out = process.run({ process.root .. "/fewhead", "run", "gate_sweep", "--help" }, { cwd = "/" })
    assert.equal(0, status)
    assert.matches("^usage: ", out)
    status, out = process.run { "./fewhead", "run", "bench", "--help" } -- there is a folder of that name here
    assert.equal(0, status)
    assert.matches("^usage: fewhead run experiments/bench.lua ", out)
    local missing, _, err = process.run({ process.root .. "/fewhead", "run", "no_such" }, { cwd = "/" })
    local lists = " (fewhead experiments lists the names)\n"
    assert.same({ 1, "fewhead: run: no_such: No such file or directory" .. lists }, { missing, err })
    local _, _, near = process.run "./fewhead run gate_swep"
    assert.equal("fewhead: run: gate_swep: No such file or directory; did you mean gate_sweep?" .. lists, near)
  end)
end)
