local complete = require "fewhead.cli.complete"
local helper = require "spec.helper"

local fh = require "fewhead"

describe("complete.at", function()
  before_each(function() _G.fh = fh end)
  after_each(function() _G.fh, _G.thing = nil, nil end)

  -- The texts that may stand in place of this one.
  local function at(text, locals)
    local environment = setmetatable(locals or {}, { __index = _G })
    local first, list = complete.at(environment, text, locals)
    local whole = {}
    for i, choice in ipairs(list) do whole[i] = text:sub(1, first - 1) .. choice end
    return whole
  end
  local function has(list, wanted)
    for _, text in ipairs(list) do
      if text == wanted then return true end
    end
    return false
  end

  it("knows globals, keywords and locals", function()
    assert.same({ "function" }, at "func")
    assert.same({ "tonumber", "tostring" }, at "to")
    assert.same({ "x = my_local" }, at("x = my_lo", { my_local = 1 }))
  end)

  it("knows fields, those of classes, and modules that are not loaded yet", function()
    assert.same({ "string.rep", "string.reverse" }, at "string.re")
    assert.same({ "1 + fh.tensor" }, at "1 + fh.ten")
    _G.thing = setmetatable({ own = 1 }, { __index = { open = print, _hidden = print } })
    assert.same({ "thing.open", "thing.own" }, at "thing.")
    assert.same({ "thing:open" }, at "thing:")
  end)

  it("knows methods of tensors, cases, sweeps and gates, behind an index or a call too", function()
    local list = { case = fh.case { s_q = 1 }, gates = { fh.gate.new(), named = { fh.gate.new() } } }
    assert.same({ "case:describe" }, at("case:desc", list))
    assert.same({ "gates[1]:explain", "gates[1]:export_line" }, at("gates[1]:ex", list))
    assert.same({ "gates['named'][1]:explain" }, at("gates['named'][1]:expl", list))
    assert.same({}, at("case:s_q", list)) -- a field, which cannot be called
    assert.same({ "gates[i]:explain", "gates[i]:export_line" }, at("gates[i]:ex", list))
    local tensors = { t = fh.tensor(fh.open "cpu", "f32", { 2, 3 }) }
    assert.same({ "t[{ 1, {} }]:fill", "t[{ 1, {} }]:fill_bytes" }, at("t[{ 1, {} }]:fi", tensors))
    assert.same({ "fh.case { s_q = 1 }:describe" }, at("fh.case { s_q = 1 }:desc"))
    assert.same({ "fh.gate.new():explain" }, at "fh.gate.new():expl")
    assert.is_true(has(at "fh.sweep { s_q = 1 }:", "fh.sweep { s_q = 1 }:filter"))
    assert.is_true(has(at "fh.tensor(d, 'f32', { 1 }):", "fh.tensor(d, 'f32', { 1 }):random"))
    assert.is_true(has(at "fh.case { s_q = 1 }:problem(d):", "fh.case { s_q = 1 }:problem(d):free"))
    assert.is_false(has(at "fh.case { s_q = 1 }:problem(d):", "fh.case { s_q = 1 }:problem(d):describe"))
  end)

  it("calls nothing", function()
    _G.thing = function() error "called" end
    assert.same({}, at "thing():x")
    assert.same({ "thing { tonumber", "thing { tostring" }, at "thing { to")
  end)

  it("knows the fields of the library's structs, and what the library exports", function()
    local gate = fh.gate.new()
    assert.same({ "gate.struct.min_sq" }, at("gate.struct.mi", { gate = gate }))
    assert.same({ "fh.ffi.C.fh_gate_init" }, at "fh.ffi.C.fh_gate_in")
  end)

  it("knows option names, taken from the call itself", function()
    assert.same({ "fh.case { pattern" }, at "fh.case { pat")
    assert.same({ "fh.case({ s_q = 1, s_kv" }, at "fh.case({ s_q = 1, s_k")
    assert.is_true(has(at "fh.sweep{ ", "fh.sweep{ max_seconds"))
    assert.same({ "gate:explain { padded_heads" }, at("gate:explain { p", { gate = fh.gate.new() }))
  end)

  it("knows the values of options, with and without their quote", function()
    assert.same({ "fh.case { pattern = 'csa" }, at "fh.case { pattern = 'c")
    assert.same({ 'fh.case { layout = "vllm"' }, { at "fh.case { layout = "[4] })
    assert.same({ 'fh.case { preset = "v4.1-flash tp8' }, at 'fh.case { preset = "v4.1-flash tp8')
    assert.same({ 'fh.sweep { s_q = 1, paths = { "auto", "gather' }, at 'fh.sweep { s_q = 1, paths = { "auto", "g')
    assert.same({ 'fh.compare(c, { "padded' }, at 'fh.compare(c, { "p' and { at 'fh.compare(c, { "p'[2] })
  end)

  it("knows files in strings", function()
    local folder = helper.folder()
    helper.shell(("mkdir %sdeep && touch %sdata.jsonl"):format(folder, folder))
    assert.same({ "x('" .. folder .. "data.jsonl", "x('" .. folder .. "deep/" }, at("x('" .. folder .. "d"))
    helper.shell("rm -rf " .. folder)
  end)

  it("knows the methods that later rooms give, and what behind a callable module's call stands", function()
    assert.same({ "fh.gate.new():plot" }, at "fh.gate.new():pl")
    assert.same({ "fh.sweep { s_q = 1 }:plot" }, at "fh.sweep { s_q = 1 }:pl")
    assert.same({ "fh.compare(c, {}):record" }, at "fh.compare(c, {}):rec")
  end)

  it("knows options and values of further arguments", function()
    assert.same({ "fh.gate.fit(s, { native" }, at "fh.gate.fit(s, { na")
    assert.same({ "fh.compare(c, { 'padded' }, { cold = true, device" }, at "fh.compare(c, { 'padded' }, { cold = true, dev")
    assert.same({ "fh.tensor(d, 'bf16" }, at "fh.tensor(d, 'b")
    assert.same({ 'fh.tensor(d, "bf16"', 'fh.tensor(d, "f32"', 'fh.tensor(d, "i32"' }, at "fh.tensor(d, ")
    assert.same({ "fh.case { sink = 'flashmla", "fh.case { sink = 'none", "fh.case { sink = 'normal" }, at "fh.case { sink = '")
    assert.same({ "fh.open('cpu', { isa", "fh.open('cpu', { threads" }, at "fh.open('cpu', { ")
  end)

  it("knows what a sweep's filter takes, from its records", function()
    local sweep = fh.sweep.read "results/nvidia-h200/gate_sweep.jsonl"
    for _, record in ipairs(sweep.records) do record.case.layout = record.case.s_q > 64 and "vllm" or "contiguous" end
    assert.same({ "s:filter { layout" }, at("s:filter { lay", { s = sweep }))
    assert.same({ "s:filter { layout = 'contiguous", "s:filter { layout = 'vllm" }, at("s:filter { layout = '", { s = sweep }))
    assert.same(
      { "s:filter { path = 'auto", "s:filter { path = 'gather", "s:filter { path = 'packed", "s:filter { path = 'padded" },
      at("s:filter { path = '", { s = sweep }))
  end)

  it("knows the prompt's commands, their files, settings and values", function()
    assert.same({ ":reload", ":run" }, at ":r")
    assert.same({ ":load results/" }, at ":load resul")
    assert.same({ ":set device", ":set depth" }, { ":set device", at(":set de")[1] })
    assert.same({ ":set colour auto", ":set colour off", ":set colour on" }, at ":set colour ")
    assert.same({ ":set device cpu" }, at ":set device c")
    assert.same({ ":help fh.gate_bisect" }, at ":help fh.gate_b")
    assert.same({}, at ":doc ")
  end)

  it("closes no device that it is asked about", function()
    local dev = assert(fh.open "cpu")
    at("dev:close { ", { dev = dev })
    assert.is_truthy(dev.handle)
    dev:close()
  end)

  it("is quiet about what is not there, and in comments", function()
    assert.same({}, at "no_such.thing.x")
    assert.same({}, at "fh_nothing")
    assert.same({}, at "x = 1 -- fh.ten")
  end)
end)
