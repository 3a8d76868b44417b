local helper = require "spec.helper"
local json = require "fewhead.base.json"
local process = require "spec.process"

local folder = helper.folder()
teardown(function() process.remove(folder) end)

describe("fewhead bundle", function()
  it("packs records, head, fingerprint and the gate table of a run", function()
    local command = "./fewhead run experiments/gate_sweep.lua --s-q 8,16 --s-kv 64 --topk 16 --pattern uniform --seconds 0 "
      .. "--name mine --out %sruns"
    assert.equal(0, (process.run(command:format(folder), { env = { FEWHEAD_DEVICE = "cpu" } })))
    local name = helper.shell(("readlink %sruns/latest"):format(folder))
    local status, out, err = process.run { "./fewhead", "bundle", "--tar", folder .. "x.tar", folder .. "runs" }
    assert.same({ 0, folder .. "x.tar: records.jsonl, run.json, fingerprint.json, gates.json, gates.env\n", "" },
      { status, out, err })
    assert.equal(table.concat({ name .. "/", name .. "/fingerprint.json", name .. "/gates.env", name .. "/gates.json",
      name .. "/records.jsonl", name .. "/run.json" }, "\n"), (helper.shell(("tar -tf %sx.tar"):format(folder))))
    helper.shell(("cd %s && tar -xf x.tar && mv %s run"):format(folder, name))
    local here = folder .. "run/"
    assert.equal(helper.read(folder .. "runs/latest/records.jsonl"), helper.read(here .. "records.jsonl"))
    local fingerprint = assert(json.decode(helper.read(here .. "fingerprint.json")))
    assert.same({ "cpu", "padded, gather, packed, auto" }, { fingerprint.kind, fingerprint.paths })
    local made = assert(json.decode(helper.read(here .. "gates.json")))
    assert.equal(1, made.schema)
    for _, text in ipairs { helper.shell("hostname"), folder } do
      assert.is_nil(helper.read(here .. "fingerprint.json"):find(text, 1, true))
      assert.is_nil(helper.read(here .. "gates.env"):find(text, 1, true))
    end
  end)

  it("is one call in Lua, which says what is in the archive", function()
    local fh = require "fewhead"
    local made = assert(fh.bundle(folder .. "runs", { tar = folder .. "y.tar" }))
    assert.same({ "records.jsonl", "run.json", "fingerprint.json", "gates.json", "gates.env" }, made.members)
    assert.equal(folder .. "y.tar: records.jsonl, run.json, fingerprint.json, gates.json, gates.env", tostring(made))
    assert.equal(helper.shell(("tar -tf %sx.tar"):format(folder)), (helper.shell(("tar -tf %sy.tar"):format(folder))))
    assert.same({ nil, folder .. "none: no run in it, wanted a folder with records.jsonl or latest in it" },
      { fh.bundle(folder .. "none") })
  end)

  it("says where there is no run, and what cannot be written", function()
    local status, out, err = process.run { "./fewhead", "bundle", folder .. "none" }
    assert.same({ 1, "", ("bundle: %snone: no run in it, wanted a folder with records.jsonl or latest in it\n"):format(folder) },
      { status, out, err })
    status, out, err = process.run { "./fewhead", "bundle", "--tar", folder .. "no/x.tar", folder .. "runs" }
    assert.same({ 1, "" }, { status, out })
    assert.matches("bundle: tar could not write " .. folder:gsub("%p", "%%%0") .. "no/x.tar\n$", err)
  end)
end)
