-- experiments/peers.lua, started as a person starts it, with no FlashMLA to be found.
local json = require "fewhead.base.json"
local helper = require "spec.helper"
local plugin = require "spec.plugin"

local folder = helper.folder()
local loops = plugin.example(folder)
local picky = plugin.toy(folder, "picky",
  'FH_PROVIDER_HEAD, .name = "picky", .version = "0", .run = toy_run, .supports = toy_picky')

teardown(function() helper.shell("rm -rf " .. folder) end)

-- The quickest race that still has everything in it.
local QUICK = "--device cpu --s-q 4 --pattern csa --published 8 --seconds 0 --samples 6 --out %sout "

-- Standard output, exit status, standard error.
local function run(options)
  local command = "cd %s. && FEWHEAD_FLASHMLA=/no/where ./fewhead run experiments/peers.lua %s%s 2>%sstderr"
  local out, status = helper.shell(command:format(helper.root, QUICK:format(folder), options or "", folder))
  return out, status, helper.read(folder .. "stderr")
end

local function records()
  local list = {}
  for line in helper.read(folder .. "out/latest/records.jsonl"):gmatch("([^\n]*)\n") do
    list[#list + 1] = assert(json.decode(line))
  end
  return list
end

local ABSENT = 'no FlashMLA: FEWHEAD_FLASHMLA: got "/no/where", wanted a library or a folder with vllm/_flashmla_C*.so, '
  .. "sgl_kernel/flashmla_ops*.so in it; the built-in padded path stands in"

describe("peers", function()
  it("says that there is no FlashMLA, what stands in, and races the rest with a plug-in", function()
    local out, status, err = run(("--provider mine=%s"):format(loops))
    assert.equal("", err)
    assert.equal(0, status)
    assert.equal(ABSENT .. "\nmine: version 1.0\n", out:match("^[^\n]*\n[^\n]*\n"))
    assert.matches("\nd_qk +h_q +topk +pattern +s_q +path +provider +parity +max error +to padded +three ways +median us "
      .. "+p05 .. p95 +padded / path +verdict +kernel\n", out)
    for _, path in ipairs { "gather", "packed", "auto" } do
      assert.matches(("\n +512 +8 +640 +csa +4 +%s +fewhead +pass +%%S+ +%%S+ +agree +%%d"):format(path), out)
    end
    assert.matches("\n +512 +8 +640 +csa +4 +padded +fewhead +pass +%S+ +%- +%- +%d", out)
    assert.matches("\n +512 +8 +640 +csa +4 +mine +mine +pass +%S+ +%S+ +agree +%d", out)
    assert.matches("\nThe published figures\ns_q +path +provider +against +parity +rows +mean_abs +published +max_abs "
      .. "+published\n", out)
    for path, provider in pairs { gather = "fewhead", packed = "fewhead", mine = "mine" } do
      assert.matches(("\n +8 +%s +%s +padded +pass +8 +%%S+ +3.4e%%-05 +%%S+ +3.91e%%-03\n"):format(path, provider), out)
      assert.matches(("\n +8 +%s +%s +reference +pass +8 +%%S+ +%%- +%%S+ +%%-\n"):format(path, provider), out)
    end
  end)

  it("writes records that name their provider, and a page with the run's header", function()
    run(("--provider mine=%s"):format(loops))
    local raced, held = {}, {}
    for _, record in ipairs(records()) do
      assert.equal("pass", record.parity.status)
      assert.equal("--device", record.run.argv[1])
      local list = record.time and raced or held
      list[#list + 1] = ("%s %s %s %s"):format(record.path, record.provider, record.provider_version, record.parity.against)
      if not record.time then
        assert.same(record.parity.against == "padded" and { mean_abs = 3.4e-5, max_abs = 3.91e-3 } or nil, record.published)
        assert.equal(8 * 8 * 512, record.parity.compared)
      elseif record.path ~= "padded" then
        assert.same({ "padded", "agree", "pass" }, { record.three_way.padded, record.three_way.verdict, record.three_way.status })
      end
    end
    assert.same({ "padded fewhead 0.2.0 reference", "gather fewhead 0.2.0 reference", "packed fewhead 0.2.0 reference",
      "auto fewhead 0.2.0 reference", "mine mine 1.0 reference" }, raced)
    assert.same({ "gather fewhead 0.2.0 padded", "packed fewhead 0.2.0 padded", "mine mine 1.0 padded",
      "padded fewhead 0.2.0 reference", "gather fewhead 0.2.0 reference", "packed fewhead 0.2.0 reference",
      "mine mine 1.0 reference" }, held)
    local page = helper.read(folder .. "out/latest/report.md")
    assert.matches("^# Peers on [^\n]+: v4%.1%-flash tp8\n\n%- command: `%./fewhead run experiments/peers%.lua %-%-device cpu ",
      page)
    assert.is_truthy(page:find("\n- " .. ABSENT .. "\n- mine: version 1.0\n", 1, true))
    assert.matches("\n| 512 | 8 | 640 | csa | 4 | mine | mine | pass | ", page, 1, true)
    assert.matches("\n| 8 | gather | fewhead | padded | ", page, 1, true)
    assert.equal("records.jsonl\nreport.md\nrun.json", (helper.shell("ls -A " .. folder .. "out/latest/")))
  end)

  it("races on captured lists, all rows and requests of them", function()
    local name = folder .. "lists.bin"
    helper.write(name, ("\1\0\0\0\2\0\0\0"):rep(6))
    helper.write(name .. ".json", '{"dtype": "int32", "shape": [6, 2], "s_kv": 3, "cu_seqlens_q": [0, 5, 6]}')
    local command = "cd %s. && FEWHEAD_FLASHMLA=/no/where ./fewhead run experiments/peers.lua --indices %s --device cpu "
      .. "--published 8 --seconds 0 --samples 6 --out %sout"
    local out, status = helper.shell(command:format(helper.root, name, folder))
    assert.equal(0, status)
    assert.matches("\n +512 +8 +2 +file +6 +packed +fewhead +pass +%S+ +%S+ +agree +%d", out)
    local case = records()[1].case
    assert.same({ 6, 2, 3, true, name }, { case.s_q, case.topk, case.s_kv, case.boundaries, case.indices })
  end)

  it("gives the reason where a plug-in refuses, which is no failure", function()
    local out, status = run(("--provider picky=%s"):format(picky))
    assert.equal(0, status)
    assert.matches("\n +512 +8 +640 +csa +4 +picky +picky +invalid +%- +%- +%- +%- ", out)
    assert.matches("\n +8 +picky +picky +padded +invalid +8 +%- +%S+ +%- +%S+\n", out)
    assert.matches("\npicky: picky did not run: h_q: got 8, wanted 64\n", out)
  end)

  it("ends with status 1 where one is wrong, and says which", function()
    local wrong = plugin.toy(folder, "wrong", 'FH_PROVIDER_HEAD, .name = "wrong", .version = "0", .run = toy_wrong')
    local out, status = run(("--provider wrong=%s"):format(wrong))
    assert.equal(1, status)
    assert.matches("\n +512 +8 +640 +csa +4 +wrong +wrong +fail +%S+ +%S+ +wrong is wrong +%- ", out)
    assert.matches("\nwrong: out: got 10, wanted ", out)
  end)

  it("refuses wrong options with status 2", function()
    local _, status, err = run("--flashmla-padding sometimes")
    assert.equal(2, status)
    assert.equal('peers: --flashmla-padding: got "sometimes", wanted one of untimed, timed (--help lists the options)\n', err)
  end)
end)
