local helper = require "spec.helper"
local ffi = require "ffi"
local json = require "fewhead.base.json"

local NAN, INF = 0 / 0, math.huge

-- The message of f(value), which must be refused and blamed on the line of the call here.
local function refusal(value, f)
  local line = debug.getinfo(1, "l").currentline + 1
  local ok, err = pcall(function() local text = (f or json.encode)(value) return text end)
  assert.is_false(ok)
  local file, at, message = err:match("^(.-):(%d+): (.*)$")
  assert.matches("json_spec%.lua$", file)
  assert.equal(line, tonumber(at))
  return message
end

local with_file = helper.with_file

describe("json.encode", function()
  it("writes a table that stands in several values as text once, where it is told so", function()
    local case, kept = { s_q = 4, list = { 1, 2 } }, {}
    kept[case] = false
    assert.equal('{"case":{"list":[1,2],"s_q":4},"n":1}', json.encode({ case = case, n = 1 }, kept))
    assert.equal('{"list":[1,2],"s_q":4}', kept[case])
    kept[case] = '"kept"'
    assert.equal('[{"case":"kept"},"kept"]', json.encode({ { case = case }, case }, kept))
    assert.equal('{"case":{"list":[1,2],"s_q":4}}', json.encode { case = case })
    local bad = { x = { 0 / 0 } }
    assert.equal("json: a.x[1]: got NaN, wanted a finite number",
      select(2, pcall(json.encode, { a = bad }, { [bad] = false })):match("json: .*"))
  end)

  it("writes one line with sorted keys", function()
    assert.equal('{"a":[1,2,{"b":true}],"c":"x","d":null}', json.encode { d = json.null, c = "x", a = { 1, 2, { b = true } } })
  end)

  it("keeps the order that a table carries and sorts the rest", function()
    assert.equal('{"z":1,"path":"gather","a":2,"b":3}',
      json.encode(json.ordered({ a = 2, b = 3, path = "gather", z = 1 }, { "z", "missing", "path" })))
  end)

  it("writes whole numbers without exponent and floats so that they round-trip", function()
    assert.equal("[0,-3,9007199254740992,9007199254740994.0,1e+17,-0]",
      json.encode { 0, -3, 2 ^ 53, 2 ^ 53 + 2, 1e17, -0.0 })
    assert.equal("[0.10000000000000001,1.0000000000000001e-05,0.5]", json.encode { 0.1, 1e-5, 0.5 })
    for _, v in ipairs {
      0.1, 1 / 3, 4.9406564584124654e-324, 1.7976931348623157e308, 3.4e-5, 812.40000000000009, 2 ^ 53 + 2, 1e17,
    } do
      assert.equal(v, json.decode(json.encode(v)))
      assert.equal(-v, json.decode(json.encode(-v)))
    end
  end)

  it("writes an empty table as an object, a marked one as a list", function()
    assert.equal('{"argv":[],"case":{}}', json.encode { argv = json.array {}, case = {} })
    assert.equal("[]", json.encode(json.decode("[]")))
    assert.equal("{}", json.encode(json.decode("{}")))
    assert.equal([=[{"a":[[],{},[{}]],"b":"[]","c":"\"[ ]"}]=],
      json.encode(json.decode([=[{"a":[[ ],{},[{}]],"b":"[]","c":"\"[ ]"}]=])))
  end)

  it("escapes what JSON must and keeps UTF-8; a byte that is no UTF-8 becomes U+FFFD", function()
    assert.equal([["a\"b\\c\n\t\u0000\u001f/é😀"]], json.encode("a\"b\\c\n\t\0\31/é😀"))
    assert.equal('"caf\239\191\189.csv"', json.encode("caf\233.csv"))
    assert.equal('"\239\191\189\239\191\189\239\191\189"', json.encode("\237\160\128")) -- a surrogate, encoded
  end)

  it("refuses what JSON cannot hold and names the place", function()
    assert.equal("json: time.median_us: got NaN, wanted a finite number", refusal { time = { median_us = NAN } })
    assert.equal("json: [2]: got inf, wanted a finite number", refusal { 1, INF })
    assert.equal("json: the value: got -inf, wanted a finite number", refusal(-INF))
    assert.equal("json: a[1].n: got cdata, wanted a table, text, a number, a boolean or json.null",
      refusal { a = { { n = ffi.new("uint64_t", 1) } } })
    assert.equal("json: f: got function, wanted a table, text, a number, a boolean or json.null", refusal { f = print })
    assert.equal("json: the value: got nil, wanted a table, text, a number, a boolean or json.null", refusal(nil))
  end)

  it("refuses lists with gaps, tables that mix list and keys, and keys that are not text", function()
    assert.equal("json: s: got a list with gaps, wanted none", refusal { s = { 1, 2, [4] = 3 } })
    assert.equal("json: s: got a list with gaps, wanted none", refusal { s = { [1000] = 1 } })
    assert.equal("json: the value: got key 0, wanted a list from 1 up or text keys", refusal { [0] = 1 })
    assert.equal("json: the value: got key 1.5, wanted a list from 1 up or text keys", refusal { [1.5] = 1 })
    local mixed = 'json: the value: got a list of %d that also has key "x", wanted a list or an object'
    assert.equal(mixed:format(1), refusal { 1, x = 2 })
    assert.equal(mixed:format(0), refusal(json.array { x = 2 }))
    assert.equal("json: the value: got a key that is a boolean, wanted text keys", refusal { [true] = 1 })
  end)

  it("refuses a table that holds itself instead of running out of stack", function()
    local loop = {}
    loop.again = loop
    for _ = 1, 200 do -- as often as it takes until LuaJIT compiles what it can
      assert.matches("got more than 200 levels, wanted a tree$", refusal(loop))
    end
  end)
end)

describe("json.decode", function()
  it("reads every kind of value", function()
    local value = json.decode(' { "a" : [ 1 , -2.5e3 , "x" ] , "t" : true , "f" : false , "n" : null } ')
    assert.same({ 1, -2500, "x" }, value.a)
    assert.is_true(value.t)
    assert.is_false(value.f)
    assert.equal(json.null, value.n)
    assert.equal("null", tostring(json.null))
    assert.equal(json.null, json.decode("null"))
    assert.equal("[null,{}]", json.encode(json.decode("[null, {}]")))
  end)

  it("reads escapes, surrogate pairs included", function()
    assert.equal("\"\\/\b\f\n\r\té😀", json.decode([["\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00"]]))
  end)

  it("refuses what is no JSON number or does not fit one, with its key path", function()
    local function why(text)
      local value, err = json.decode(text)
      assert.is_nil(value)
      return err
    end
    assert.equal('json: time.median_us: "NaN" is not JSON at character 22', why('{"time":{"median_us":NaN}}'))
    assert.equal('json: a[2]: "0x10" is not a JSON number at character 9', why('{"a":[1,0x10]}'))
    assert.equal("json: a: 1e999 does not fit a double at character 6", why('{"a":1e999}'))
    assert.equal('json: [1]: "-Infinity" is not a JSON number at character 2', why("[-Infinity]"))
    assert.equal("json: a.b[2]: 9007199254740993 is a whole number above 2^53, which a double may not hold at character 14",
      why('{"a":{"b":[1,9007199254740993]}}'))
    assert.equal("json: the value: 100000000000000000 is a whole number above 2^53, which a double may not hold at character 1",
      why("100000000000000000"))
    assert.equal(2 ^ 53, json.decode("9007199254740992"))
    assert.equal(-1e17, json.decode("-1e17"))
    assert.equal(9007199254740994, json.decode("9007199254740994.0"))
    for _, text in ipairs { "-.5", "[1.]", "[-.5, 1]" } do assert.matches("is not a JSON number at character", why(text)) end
    for _, text in ipairs { "01", "1.", "1e", "-", "1.e5", "1e+", "0x1p4", "1_000", "12abc" } do
      assert.equal(('json: the value: %q is not a JSON number at character 1'):format(text), why(text))
    end
    for _, text in ipairs { "nan", "inf", "Infinity", "+1", ".5", "nil", "True" } do
      assert.equal(('json: the value: %q is not JSON at character 1'):format(text), why(text))
    end
  end)

  it("refuses text that is broken, cut short or goes on", function()
    local cases = {
      [""] = "json: expected value but found T_END at character 1",
      ['{"a":1'] = "json: expected comma or object end but found T_END at character 7",
      ["[1,]"] = "json: expected value but found T_ARR_END at character 4",
      ["{1:2}"] = "json: expected object key string but found T_NUMBER at character 2",
      ['{"a" 1}'] = "json: expected colon but found T_NUMBER at character 6",
      ['{"a":1,"a":2}'] = 'json: the value: key "a" stands twice at character 8',
      [ [[{"x":[0,{"b":":","\u0062":2}]}]] ] = 'json: x[2]: key "b" stands twice at character 18',
      ["1 2"] = "json: expected the end but found T_NUMBER at character 3",
      ['"abc'] = "json: expected value but found unexpected end of string at character 5",
      ['"a\tb"'] = "json: the value: a raw control character in text at character 3",
      ['["a\nb"]'] = "json: [1]: a raw control character in text at character 4",
      ["[1]\0"] = "json: the value: byte 0 is not JSON at character 4",
      [ [["\x"]] ] = "json: expected value but found invalid escape code at character 2",
      [ [["\ud800"]] ] = "json: expected value but found invalid unicode escape code at character 2",
    }
    for text, message in pairs(cases) do
      local value, err = json.decode(text)
      assert.is_nil(value)
      assert.equal(message, err)
    end
    assert.matches("too many nested data structures %(201%)", select(2, json.decode(("["):rep(1000))))
  end)

  it("blames the caller who passes something else than text", function()
    assert.equal("json.decode: got number, wanted text", refusal(12, json.decode))
  end)
end)

describe("json.lines", function()
  it("reads objects that lines share once, and only those", function()
    local path = helper.folder() .. "x.jsonl"
    helper.write(path, '{"a":{"n":1},"b":{"run":{"n":1}},"run":{"s":"}{"}}\n{"a":{"n":1},"run":{"s":"}{"}}\n'
      .. '{"a":{"n":2},"run":null}\n{"a":{"n":2}}\n{"a":{"n":2},"b":{"run":{"n":1}},"run":"\\"run\\":{}"}\n'
      .. '{"a":{"n":2},"a":{"n":2}}\n')
    local list, bad = {}, {}
    for value in json.lines(path, function(message) bad[#bad + 1] = message end, { "a", "run" }) do list[#list + 1] = value end
    assert.same({
      { a = { n = 1 }, b = { run = { n = 1 } }, run = { s = "}{" } }, { a = { n = 1 }, run = { s = "}{" } },
      { a = { n = 2 }, run = json.null }, { a = { n = 2 } }, { a = { n = 2 }, b = { run = { n = 1 } }, run = '"run":{}' },
    }, list)
    assert.equal(list[3].a, list[4].a)
    assert.are_not.equal(list[1].a, list[2].a)
    assert.same({ path .. ':6: json: the value: key "a" stands twice at character 14' }, bad)
    os.remove(path)
  end)

  it("yields values and line numbers and skips blank lines", function()
    with_file('{"a":1}\n\n  \n[2]\r\n3', function(path)
      local seen = {}
      for value, line in json.lines(path) do seen[#seen + 1] = { value, line } end
      assert.same({ { { a = 1 }, 1 }, { { 2 }, 4 }, { 3, 5 } }, seen)
    end)
  end)

  it("names file and line of a bad line", function()
    with_file('{"a":1}\n{"a":nan}\n', function(path)
      local ok, err = pcall(function() for _ in json.lines(path) do end end)
      assert.is_false(ok)
      assert.equal(path .. ':2: json: a: "nan" is not JSON at character 6', err)
    end)
  end)

  it("names a file that is not there", function()
    local ok, err = pcall(json.lines, "/no/such/file.jsonl")
    assert.is_false(ok)
    assert.equal("/no/such/file.jsonl: No such file or directory", err)
  end)
end)
