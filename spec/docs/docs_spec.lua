local helper = require "spec.helper"
local process = require "spec.process"

-- A checkout with records of one device, measured times in microseconds, and a document.
local function checkout(document, files)
  local folder = helper.folder()
  local root = process.root
  helper.shell(("cd %s && ln -s %s/lua %s/lib %s/build %s/tools . && mkdir -p results/box"):format(
    folder, root, root, root, root))
  for name, text in pairs(files or {}) do helper.write(folder .. name, text) end
  helper.write(folder .. "README.md", document)
  return folder
end

local function record(path, s_q, us, more)
  return ('{"case":{"pattern":"csa","s_q":%d,"h_q":8,"d_qk":512,"layout":"vllm"},"cell":"csa, ratio 4","path":"%s",'
    .. '"provider":"fewhead",'
    .. '"run":{"device":"Box","kind":"cuda","argv":["--out","here"],"commit":"0123456789abcdef","date":"today","driver":"1"},'
    .. '"parity":{"status":"pass"},"work":{"useful_flops":1},"time":{"median_us":%g,"p05_us":%g,"p95_us":%g,"n":6}%s}\n'):format(
      s_q, path, us, us, us, more or "")
end

local SWEEP = record("padded", 64, 30) .. record("gather", 64, 12) .. record("auto", 64, 15)
  .. record("padded", 128, 60) .. record("gather", 128, 1000, ',"verdict":{"against":"padded","ratio":2.5,"lo":2,"hi":3}')

local function run(folder, ...)
  local status, out, err = process.run({ "luajit", "tools/docs.lua", ... }, { cwd = folder })
  return status, out .. err
end

describe("tools/docs.lua", function()
  it("writes the table that a marker asks for, and finds nothing to complain about afterwards", function()
    local folder = checkout("# A\n<!-- table: gate_sweep box layout=vllm -->\nold\n<!-- end -->\ntext\n",
      { ["results/box/gate_sweep.jsonl"] = SWEEP })
    assert.same({ 0, "" }, { run(folder) })
    assert.equal([[
# A
<!-- table: gate_sweep box layout=vllm -->
| lists | layout | s_q | padded | gather | packed | auto | padded / best |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |
| csa | vllm | 64 | 30.0 us | 12.0 us | - | 15.0 us | 2.50 |
| csa | vllm | 128 | 60.0 us | 1.00 ms | - | - | 2.50 |
<!-- end -->
text
]], helper.read(folder .. "README.md"))
    assert.same({ 0, "" }, { run(folder, "--check") })
    process.remove(folder)
  end)

  it("keeps to records that have the wanted values, puts GPUs first and leaves results/local out", function()
    local document = "<!-- table: summary s_q=64,256 -->\n<!-- end -->\n"
    local folder = checkout(document, { ["results/box/gate_sweep.jsonl"] = SWEEP })
    helper.shell(("cd %sresults && mkdir a local && cp box/gate_sweep.jsonl local"):format(folder))
    local cpu = SWEEP:gsub('"kind":"cuda"', '"kind":"cpu","isa":"avx2","threads":2')
    helper.write(folder .. "results/a/gate_sweep.jsonl", cpu)
    assert.same({ 0, "" }, { run(folder) })
    assert.equal([[
<!-- table: summary s_q=64,256 -->
| device | lists | s_q | FlashMLA | padded | gather | packed | auto | baseline / auto |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| Box | csa | 64 | - | 30.0 us | 12.0 us | - | 15.0 us | 2.00 |
| Box, avx2, 2 threads | csa | 64 | - | 30.0 us | 12.0 us | - | 15.0 us | 2.00 |
<!-- end -->
]], helper.read(folder .. "README.md"))
    process.remove(folder)
  end)

  it("shows the kernels of others beside the fastest path, shape by shape, and one shape where devices are compared", function()
    local function shape(text, h_q, d_qk) return (text:gsub('"h_q":8,"d_qk":512', ('"h_q":%d,"d_qk":%d'):format(h_q, d_qk))) end
    local function other(path, s_q, us)
      return (record(path, s_q, us):gsub('"provider":"fewhead"', '"provider":"' .. path .. '"'))
    end
    local peers = SWEEP .. shape(record("gather", 64, 20) .. other("flashmla", 64, 50) .. other("fa3", 64, 40), 16, 576)
    local folder = checkout("<!-- table: peers box -->\n<!-- end -->\n", { ["results/box/peers.jsonl"] = peers })
    assert.same({ 0, "" }, { run(folder) })
    assert.matches("\n| 512 | 8 | csa | 64 | - | - | - | 30.0 us | 12.0 us | - | 15.0 us | - |\n",
      helper.read(folder .. "README.md"), 1, true)
    assert.matches("\n| 576 | 16 | csa | 64 | 50.0 us | - | 40.0 us | - | 20.0 us | - | - | 2.00 |\n",
      helper.read(folder .. "README.md"), 1, true)
    local all = helper.read(folder .. "results/index.html")
    local summary = all:match("Devices side by side.-</table>")
    assert.is_truthy(summary:find("<td>12.0 us", 1, true))
    assert.is_nil(summary:find("<td>20.0 us", 1, true))
    process.remove(folder)
  end)

  it("names the runs behind a folder's files", function()
    local folder = checkout("<!-- table: runs box -->\n<!-- end -->\n", { ["results/box/gate_sweep.jsonl"] = SWEEP })
    helper.shell(("cp %sresults/box/gate_sweep.jsonl %s"):format(folder, folder))
    assert.same({ 0, "" }, { run(folder) })
    assert.is_truthy(helper.read(folder .. "README.md"):find(
      "| [gate_sweep.jsonl](gate_sweep.jsonl) | `--out here` | 0123456789ab | today | 1 |", 1, true))
    process.remove(folder)
  end)

  it("with --check names a table that differs and writes nothing", function()
    local text = "text\n<!-- table: gate_sweep box -->\n| 1 |\n<!-- end -->\n"
    local folder = checkout(text, { ["results/box/gate_sweep.jsonl"] = SWEEP })
    local want = ""
    for _, what in ipairs { "results/box/index.html", "results/box/speedup.svg", "results/index.html",
      "README.md:2: table: gate_sweep box" } do
      want = want .. what .. ": differs from the records; run make docs\n"
    end
    assert.same({ 1, want }, { run(folder, "--check") })
    assert.equal(text, helper.read(folder .. "README.md"))
    process.remove(folder)
  end)

  it("makes a page of each device, one of all, and the picture of the speed-up", function()
    local folder = checkout("text\n", { ["results/box/gate_sweep.jsonl"] = SWEEP })
    helper.shell(("cd %sresults && mkdir local && cp box/gate_sweep.jsonl local"):format(folder))
    assert.same({ 0, "" }, { run(folder) })
    assert.equal("box\nindex.html\nlocal", (helper.shell("ls " .. folder .. "results")))
    assert.equal("gate_sweep.jsonl", (helper.shell("ls " .. folder .. "results/local")))
    local all, one = helper.read(folder .. "results/index.html"), helper.read(folder .. "results/box/index.html")
    assert.is_truthy(all:find('<a href="box/index.html">All records of Box</a>', 1, true))
    assert.is_truthy(all:find('<td class="l">Box<td class="l">csa<td>64<td>-<td>30.0 us<td>12.0 us<td>-<td>15.0 us<td>2.00', 1,
      true))
    assert.is_truthy(one:find('<a href="../index.html">All devices</a>', 1, true))
    assert.is_truthy(one:find("<p>5 records of ", 1, true))
    assert.is_truthy(helper.read(folder .. "results/box/speedup.svg"):find(">Attention of one layer on Box<", 1, true))
    assert.same({ 0, "" }, { run(folder, "--check") })
    process.remove(folder)
  end)

  it("leaves a table that cannot be made as it is, and says why", function()
    local text = "<!-- table: gates box -->\nkept\n<!-- end -->\n<!-- table: peers box -->\n<!-- end -->\n"
      .. "<!-- table: gate_sweep box s_q=1 -->\n<!-- end -->\n<!-- table: gate_sweep box -->\nlast\n"
    local folder = checkout(text, { ["results/box/gate_sweep.jsonl"] = SWEEP })
    local status, out = run(folder)
    assert.equal(1, status)
    assert.equal([[
README.md:1: table: gates box: no kind of table "gates"
README.md:4: table: peers box: no results/box/peers.jsonl
README.md:6: table: gate_sweep box s_q=1: no record fits
README.md:8: table: gate_sweep box: no <!-- end --> after it
]], out)
    assert.equal(text, helper.read(folder .. "README.md"))
    process.remove(folder)
  end)

  it("names links to files that are not there, outside code", function()
    local folder = checkout("[a](lua/fewhead/init.lua) [b](no.md#x)\n[c](https://example.org/no) [d](#here)\n```\n[e](no)\n```\n")
    assert.same({ 1, "README.md:1: link: no.md is not there\n" }, { run(folder, "--check") })
    process.remove(folder)
  end)
end)
