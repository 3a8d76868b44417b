-- Whole numbers of 64 bits keep their value on the way between C, Lua, text and files, or are refused.
local F = require "fewhead.base.ffi"
local args = require "fewhead.base.arguments"
local axis = require "fewhead.decide.axis"
local gate = require "fewhead.decide.gate"
local json = require "fewhead.base.json"
local options = require "fewhead.cli.options"
local process = require "spec.process"

local ffi, C = F.ffi, F.C

-- Texts of a threshold, and whether 8 heads are native at the largest s_q that Lua passes on.
local LARGEST_S_Q = 2 ^ 53 - 1
local thresholds = {
  { "0", true }, { "2048", true }, { "9007199254740991", true }, { "9007199254740992", false }, { "9007199254740993", false },
  { "9223372036854775295", false }, { "9223372036854775296", false }, { "9223372036854775806", false },
  { "9223372036854775807", false },
}

local function native_in_c(text, s_q)
  local struct = ffi.new("fh_gate", { struct_size = ffi.sizeof("fh_gate") })
  assert(F.check(C.fh_gate_parse(nil, text, struct, nil, 0)))
  return C.fh_gate_native(struct, 8, 64, s_q) == 1
end

describe("numbers of 64 bits #robustness", function()
  it("MIN_SQ: C and Lua agree on every threshold, and Lua prints its digits", function()
    for _, one in ipairs(thresholds) do
      local text, native = one[1], one[2]
      local g, warning = gate.parse(nil, text)
      assert.is_nil(warning)
      assert.equal(native, g:native(8, LARGEST_S_Q), text)
      assert.equal(native_in_c(text, LARGEST_S_Q), g:native(8, LARGEST_S_Q), text)
      assert.equal(native_in_c(text, 8192), g:native(8, 8192), text)
      assert.equal("export VLLM_DSV41_FEWHEAD_MIN_SQ=" .. text, g:export_line())
      assert.equal(text == "0" and "gate: native at every s_q" or ("gate: native from s_q %s up"):format(text), tostring(g))
    end
    assert.equal("padded: s_q 8192 < MIN_SQ 9223372036854775807",
      tostring((gate.parse(nil, "9223372036854775807")):explain { s_q = 8192, heads = 8 }))
    local g, warning = gate.parse(nil, "9223372036854775808") -- past 64 bits: the default, and a word
    assert.equal(2048, g.min_sq)
    assert.equal('VLLM_DSV41_FEWHEAD_MIN_SQ: got "9223372036854775808", wanted a whole number >= 0; using 2048', warning)
  end)

  it("MIN_SQ in the environment: info shows it, and a sweep never takes it for \"always\"", function()
    local env = { VLLM_DSV41_FEWHEAD_MIN_SQ = "9223372036854775807", FEWHEAD_DEVICE = "cpu" }
    local _, out = process.run({ "./fewhead", "info" }, { env = env })
    assert.matches("\ngate +native from s_q 9223372036854775807 up\n", out)
    local code = [[local g = fh.gate.from_env(); print(g:native(8, 2048), g:threshold())]]
    assert.equal("false\t9223372036854775807\n", select(2, process.run({ "./fewhead", "repl" }, { stdin = code, env = env })))
  end)

  it("arguments and options refuse what a double does not hold, and name the limit", function()
    local refused = { 2 ^ 53, 2 ^ 63, -2 ^ 53 }
    for _, v in ipairs(refused) do
      local ok, err = pcall(args.integer, "n", v)
      assert.is_false(ok)
      assert.matches(", wanted a whole number in %-9007199254740991 .. 9007199254740991$", err)
    end
    assert.matches("n: got 9007199254740992, wanted a whole number in 0 .. 9007199254740991$",
      select(2, pcall(args.integer, "n", 2 ^ 53, 0)))
    local ok, err = pcall(axis.integers, "--min-sq", "9223372036854775807", 0)
    assert.is_false(ok)
    assert.matches("%-%-min%-sq: got .*, wanted a whole number in 0 .. 9007199254740991$", err)
    local parser = options.new { name = "x", options = { { "--n", "INTEGER", "a number" } } }
    for _, text in ipairs { "9007199254740992", "9223372036854775807", "-9007199254740992" } do
      assert.is_nil((parser:parse { "--n", text }))
    end
    assert.equal(9007199254740991, parser:parse({ "--n", "9007199254740991" }).n)
  end)

  it("seeds up to 2^53 - 1 reach the generator as they are", function()
    local a, b = ffi.new("uint32_t[4]"), ffi.new("uint32_t[4]")
    C.fh_random_u32(2 ^ 53 - 1, 0, 0, 4, a)
    C.fh_random_u32(9007199254740991ULL, 0, 0, 4, b)
    for i = 0, 3 do assert.equal(b[i], a[i]) end
  end)

  it("records keep whole numbers up to 2^53 - 1", function()
    local text = json.encode { useful_flops = 2 ^ 53 - 1 }
    assert.equal('{"useful_flops":9007199254740991}', text)
    assert.equal(9007199254740991, json.decode(text).useful_flops)
  end)
end)
