local helper = require "spec.helper"
local options = require "fewhead.cli.options"
local preset = require "fewhead.case.preset"
require "fewhead.decide.axis" -- its kinds
local process = require "spec.process"

local function parser(list, more)
  local spec = { name = "tool", options = list }
  for key, value in pairs(more or {}) do spec[key] = value end
  return options.new(spec)
end

local every = parser {
  { "--s-q", "AXIS", "rows of a chunk", default = "64:2048:*2", lo = 1, hi = 65536 },
  { "--threads", "N", "threads", kind = "INTEGER", lo = 1, hi = 1024 },
  { "--seed", "INTEGER", "seed" },
  { "--rate", "NUMBER", "rate", lo = 0 },
  { "--layout", "LIST", "layouts", choices = { "contiguous", "vllm" }, default = "contiguous" },
  { "--format", "FORMAT", "of the report", choices = { "table", "jsonl" }, default = "table" },
  { "--note", "TEXT", "kept in the record", repeated = true },
  { "--traffic", "FILE", "a trace" },
  { "--cold", nil, "with cold caches" },
}

-- The value of one key after parsing these words, or the error.
local function value(key, ...)
  local opt, err = every:parse { ... }
  if not opt then return err end
  return opt[key]
end

describe("options.new", function()
  it("gives defaults: flags false, repeated options an empty list, the rest nil unless a default is named", function()
    assert.same({ s_q = "64:2048:*2", layout = { "contiguous" }, format = "table", note = {}, cold = false }, every:parse {})
  end)

  it("takes a value after a space or an equals sign", function()
    assert.equal(4, value("threads", "--threads", "4"))
    assert.equal(4, value("threads", "--threads=4"))
    assert.equal("a=b", value("note", "--note=a=b")[1])
    assert.equal("", value("note", "--note=")[1])
    assert.equal("--cold", value("note", "--note", "--cold")[1])
  end)

  it("refuses an option given twice, unless its values collect", function()
    assert.equal("--threads: given twice, wanted once", value("threads", "--threads=4", "--threads", "8"))
    assert.equal("--threads: given twice, wanted once", value("threads", "--threads", "4", "--threads=4"))
    assert.equal("--cold: given twice, wanted once", value("cold", "--cold", "--cold"))
  end)

  it("collects repeated options in order", function()
    assert.same({ "one", "two" }, value("note", "--note", "one", "--note=two"))
    local opt = parser({ { "--to", "TEXT", "x", repeated = true, default = { "a" } } }):parse { "--to", "b" }
    assert.same({ "b" }, opt.to)
  end)

  it("sets flags and refuses a value for one", function()
    assert.is_true(value("cold", "--cold"))
    assert.equal('--cold: got "yes", wanted no value', value("cold", "--cold=yes"))
  end)

  it("reads numbers in decimal only and within their range", function()
    assert.equal(-7, value("seed", "--seed=-7"))
    assert.equal(2 ^ 53 - 1, value("seed", "--seed", "9007199254740991"))
    assert.equal(1500, value("rate", "--rate", "1.5e3"))
    assert.equal(0.5, value("rate", "--rate", ".5"))
    for _, bad in ipairs { "1.5", "0x10", "nan", "1e3", "", " 4", "4 ", "9007199254740992" } do
      assert.equal(('--seed: got "%s", wanted a whole number'):format(bad), value("seed", "--seed", bad))
    end
    for _, bad in ipairs { "0x10", "nan", "inf", "-1", "1e999", "." } do
      assert.equal(('--rate: got "%s", wanted a finite number >= 0'):format(bad), value("rate", "--rate", bad))
    end
    assert.equal('--threads: got "0", wanted a whole number in 1 .. 1024', value("threads", "--threads", "0"))
  end)

  it("checks an axis and leaves it to the sweep as text", function()
    for _, good in ipairs { "64", "64,128", "64:2048:*2", "64:512:+64,1000" } do
      assert.equal(good, value("s_q", "--s-q", good))
    end
    local numbers = 'numbers, "a,b,c" or a range "first:last:step" or "first:last:*k"'
    for bad, wanted in pairs {
      [""] = numbers, ["64,"] = numbers, ["64:128"] = numbers, ["64:128:"] = numbers, ["64:x:2"] = numbers,
      ["6.5"] = "a whole number in 1 .. 65536",
      ["128:64:*2"] = "a range that rises: first <= last", ["0"] = "a whole number in 1 .. 65536",
    } do
      assert.equal(('--s-q: got "%s", wanted %s'):format(bad, wanted), value("s_q", "--s-q", bad))
    end
  end)

  it("takes lists apart and checks each name", function()
    assert.same({ "vllm", "contiguous" }, value("layout", "--layout", "vllm,contiguous"))
    assert.equal('--layout: got "vllm,contigous", wanted one of contiguous, vllm; did you mean "contiguous"?',
      value("layout", "--layout", "vllm,contigous"))
    assert.equal('--layout: got "vllm,", wanted names with commas between them', value("layout", "--layout", "vllm,"))
  end)

  it("refuses text that is none of the choices", function()
    assert.equal("jsonl", value("format", "--format", "jsonl"))
    assert.equal('--format: got "json", wanted one of table, jsonl; did you mean "jsonl"?', value("format", "--format", "json"))
  end)

  it("refuses a folder without a name, which would be the root", function()
    local out = options.new { name = "tool", options = { { "--out", "DIR", "where to", default = "here" } } }
    assert.same({ out = "here" }, out:parse {})
    assert.same({ nil, '--out: got "", wanted a folder\'s name' }, { out:parse { "--out", "" } })
  end)

  it("opens a file that is to be read", function()
    assert.equal("Makefile", value("traffic", "--traffic", "Makefile"))
    assert.equal('--traffic: got "/no/such", wanted a file that can be read (No such file or directory)',
      value("traffic", "--traffic", "/no/such"))
    assert.equal('--traffic: got "spec", wanted a file that can be read (it is a folder)', value("traffic", "--traffic", "spec"))
  end)

  it("leaves a pipe unread for whoever opens it next", function()
    local status, out = process.run("printf 'a\\nb\\n' | luajit -e '" .. table.concat({
      'package.path = "lua/?.lua;lua/?/init.lua;" .. package.path',
      'local list = { { "--file", "FILE", "x" } }',
      'local opt = require("fewhead.cli.options").new({ name = "t", options = list }):parse { "--file", "/dev/stdin" }',
      'io.write(io.open(opt.file):read("*a"))' }, "\n") .. "'")
    assert.same({ 0, "a\nb\n" }, { status, out })
  end)

  it("names an unknown option and the nearest one there is", function()
    assert.equal("unknown option --treads; did you mean --threads?", value("x", "--treads", "4"))
    assert.equal("unknown option --s_q; did you mean --s-q?", value("x", "--s_q=4"))
    assert.equal("unknown option --hlep; did you mean --help?", value("x", "--hlep"))
    assert.equal("unknown option -x", value("x", "-x"))
    assert.equal("unknown option --completely-else", value("x", "--completely-else"))
  end)

  it("names an option whose value is missing", function()
    assert.equal("--threads: got nothing, wanted N", value("threads", "--threads"))
  end)

  it("takes as many words without an option as it was told", function()
    assert.equal('unexpected argument "x"', value("x", "x"))
    local two = parser({ { "--cold", nil, "c" } }, { arguments = { 1, 2 } })
    assert.same({ "a", "--cold", cold = true }, two:parse { "--cold", "a", "--", "--cold" })
    assert.same({ nil, "1 argument missing" }, { two:parse {} })
    assert.same({ nil, 'unexpected argument "c"' }, { two:parse { "a", "b", "c" } })
    assert.same({ "-", cold = false }, two:parse { "-" })
  end)

  it("refuses a wrong description by the caller's line", function()
    local line = debug.getinfo(1, "l").currentline
    local _, err = pcall(function() parser { { "-s", "N", "x" } } end)
    assert.matches('cli.options: option 1: got "%-s", wanted a name such as "%-%-s%-q"$', err)
    _, err = pcall(function() options.new { name = "tool", options = { { "--a", "N", "x", defualt = 1 } } } end)
    local message = 'options_spec.lua:%d: cli.options: option 1: unknown option "defualt"; did you mean "default"?'
    assert.matches(message:format(line + 3), err, 1, true)
    _, err = pcall(function() parser { { "--a", "N", "x", kind = "INTGER" } } end)
    assert.matches(
      'option 1: kind: got "INTGER", wanted one of %d+ names %(option.kinds lists them%); did you mean "INTEGER"%?$', err)
    _, err = pcall(function() parser { { "--a", nil, "x" }, { "--a", nil, "x" } } end)
    assert.matches("option 2: %-%-a stands there twice$", err)
  end)

  it("refuses options without effect by their names", function()
    local p = parser {
      { "--alone", nil, "alone" }, { "--load", "NUMBER", "load", default = 0.7, without = { "alone" } },
      { "--pattern", "LIST", "pattern", choices = { "csa", "local" }, default = "csa" },
      { "--keep", "NUMBER", "kept", with = { pattern = { "local" } } },
    }
    assert.same({ nil, "--load: has no effect with --alone" }, { p:parse { "--load", "0.5", "--alone" } })
    assert.same({ nil, "--keep: has no effect without --pattern local" }, { p:parse { "--keep", "0.5" } })
    assert.equal(0.5, p:parse({ "--keep", "0.5", "--pattern", "csa,local" }).keep)
    assert.equal(0.7, p:parse({ "--alone" }).load) -- a default is not given
  end)

  it("takes checked rows, and refuses one that Lua tables alone have", function()
    local of = require("fewhead").layers.rows.by_key
    local p = parser { of.keep, of.pattern, { "--x", nil, "x" } }
    assert.same({ pattern = "local", keep = 0.5, x = false }, p:parse { "--keep", "0.5" })
    assert.same({ nil, "--keep: has no effect without --pattern local" }, { p:parse { "--keep", "0.5", "--pattern", "csa" } })
    assert.same({ keep = 0.5 }, parser({ of.keep }):parse { "--keep", "0.5" }) -- without the option that it depends on
    local _, err = pcall(function() parser { of.device } end)
    assert.matches('cli.options: option 1: got "device", wanted a name such as "%-%-s%-q"$', err)
  end)

  it("takes shared rows by name, with fields of a script's own", function()
    local p = parser { "preset", { "layout", "LIST", default = "vllm,offset" }, { "seconds", default = 5 } }
    assert.same({ preset = "v4.1-flash tp8", layout = { "vllm", "offset" }, seconds = 5 }, p:parse {})
    local wanted = 'wanted one of ' .. #preset.names()
      .. ' names (fewhead run gate_sweep --list lists them); did you mean "glm-5 tp8"?'
    assert.same({ nil, '--preset: got "glm5 tp8", ' .. wanted },
      { p:parse { "--preset", "glm5 tp8" } })
    local _, err = pcall(function() parser { "prest" } end)
    assert.matches('cli.options: option 1: got "prest", wanted .-did you mean "preset"%?$', err)
    assert.equal(60, options.shared().seconds.default)
  end)

  it("writes its own help", function()
    assert.equal([[
usage: fewhead run experiments/tool.lua [options]

  --s-q AXIS                rows of a chunk (default 64:2048:*2)
  --threads N               threads
  --seed INTEGER            seed
  --rate NUMBER             rate
  --layout LIST             layouts (contiguous, vllm; default contiguous)
  --format FORMAT           of the report (table, jsonl; default table)
  --note TEXT               kept in the record (may be repeated)
  --traffic FILE            a trace
  --cold                    with cold caches
  --help                    print this
]], every:help())
  end)

  it("breaks the help's line after a long option, and shows the head that it was given", function()
    local long = parser({ { "--a-really-long-option", "NAME", "its help" } }, { usage = "tool FILE", about = "Does it." })
    assert.equal([[
usage: tool FILE
Does it.

  --a-really-long-option NAME
                            its help
  --help                    print this
]], long:help())
  end)

  it("wraps a long explanation in its own column", function()
    local help = parser({ { "--preset", "NAME", ("word "):rep(40) } }):help()
    assert.equal("  --preset NAME             " .. ("word "):rep(16):sub(1, -2), help:match("\n(  %-%-preset[^\n]*)"))
    assert.equal((" "):rep(28) .. ("word "):rep(16):sub(1, -2), help:match("preset[^\n]*\n([^\n]*)"))
    for line in help:gmatch("[^\n]+") do assert.is_true(#line <= 110) end
  end)
end)

describe("options:read", function()
  local script = [[
    local opt = require("fewhead").options { name = "tool", options = { { "--n", "INTEGER", "how many" } } }:read(arg)
    print(opt.n)]]

  local function run(...)
    local folder = helper.folder()
    local path = process.write(folder .. "tool.lua", script)
    local status, out, err = process.run { "./fewhead", "run", path, ... }
    process.remove(folder)
    return { status, out, err }
  end

  it("returns the options", function() assert.same({ 0, "3\n", "" }, run("--n", "3")) end)

  it("prints the help and ends the script with 0", function()
    local got = run("--help", "--bad")
    assert.same({ 0, "" }, { got[1], got[3] })
    assert.matches("^usage: fewhead run experiments/tool.lua %[options%]\n", got[2])
  end)

  it("ends the script with 2 and one line on stderr", function()
    assert.same({ 2, "", 'tool: --n: got "x", wanted a whole number (--help lists the options)\n' }, run("--n", "x"))
  end)
end)
