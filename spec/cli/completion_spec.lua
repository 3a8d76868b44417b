local completion = require "fewhead.cli.completion"
local help = require "fewhead.cli.help"
local helper = require "spec.helper"
local process = require "spec.process"

describe("fewhead completion bash", function()
  local folder
  lazy_setup(function()
    folder = helper.folder()
    local status, out, err = process.run { "./fewhead", "completion", "bash" }
    assert.same({ 0, "" }, { status, err })
    helper.write(folder .. "fewhead.bash", out)
    helper.shell("mkdir " .. folder .. "place && cd " .. folder .. "place && touch mine.lua other.txt && mkdir deep")
  end)
  lazy_teardown(function() process.remove(folder) end)

  -- What bash would put in place of the last of these words, which are split as bash splits them.
  local function completed(...)
    local words, quoted = { "fewhead", ... }, {}
    for i, word in ipairs(words) do quoted[i] = helper.quoted(word) end
    local status, out, err = process.run { "bash", "-c", ("cd %splace && . ../fewhead.bash && COMP_WORDS=(%s) COMP_CWORD=%d "
      .. "&& _fewhead && printf '%%s\\n' \"${COMPREPLY[@]}\""):format(folder, table.concat(quoted, " "), #words - 1) }
    assert.same({ 0, "" }, { status, err })
    local list = {}
    for line in out:gmatch("[^\n]+") do list[#list + 1] = line end
    return table.concat(list, "|")
  end

  it("completes commands", function()
    assert.equal("doctor", completed "do")
    assert.equal("page|parity", (completed("pa"):gsub("^(parity)|(page)$", "%2|%1")))
    assert.equal("", completed "zz")
  end)

  it("completes experiments and scripts after run", function()
    assert.equal("gate_sweep|gate_traffic", completed("run", "gate_"))
    assert.equal("mine.lua", completed("run", "mi"))
    assert.equal("deep/", completed("run", "de"))
    assert.equal("", completed("run", "oth"))
  end)

  it("completes options of commands and of experiments, by name and by path", function()
    assert.equal("--fail-on", completed("compare", "a", "b", "--fa"))
    assert.equal("--resume|--retry-failed", completed("run", "gate_sweep", "--re"):gsub("%-%-requests|%-%-repeats|", ""))
    assert.equal("--published", completed("run", "experiments/peers.lua", "--pu"))
    assert.equal("", completed("run", "mine.lua", "--"))
  end)

  it("completes values, the last of several, and quotes spaces", function()
    assert.equal("csa", completed("run", "gate_sweep", "--pattern", "cs"))
    assert.equal("csa,local", completed("run", "gate_sweep", "--pattern", "csa,lo"))
    assert.equal("vllm", completed("run", "layouts", "--layout", "v"))
    assert.equal("v4-pro\\ tp16", completed("run", "gate_sweep", "--preset", "v4-pro tp16"))
    assert.equal("v4-pro tp16", completed("run", "gate_sweep", "--preset", '"v4-pro tp16'))
    assert.equal("", completed("run", "gate_sweep", "--s-q", ""))
  end)

  it("knows every option of every experiment and command", function()
    local seen = {}
    for _, one in ipairs(completion.tables(require "fewhead.cli.cli")) do
      seen[one.words] = true
      local words = { "./fewhead" }
      for word in one.words:gmatch "%S+" do words[#words + 1] = word end
      words[#words + 1] = "--help"
      local _, out = process.run(words)
      local count = 0
      for flag in out:gmatch("\n  (%-%-[%w-]+)") do
        count = count + (flag ~= "--help" and 1 or 0)
      end
      assert.equal(count, #one.rows, one.words)
    end
    for _, one in ipairs(help.experiments()) do assert.is_true(seen["run " .. one.name], one.name) end
  end)

  it("refuses another shell", function()
    local status, _, err = process.run { "./fewhead", "completion", "fish" }
    assert.same({ 2, 'fewhead: completion: got "fish", wanted bash\n' }, { status, err })
    status, _, err = process.run { "./fewhead", "completion" }
    assert.same({ 2, "fewhead: completion: got nothing, wanted bash\n" }, { status, err })
  end)
end)
