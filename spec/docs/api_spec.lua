local helper = require "spec.helper"
local process = require "spec.process"

describe("tools/lint_api.lua", function()
  local folder
  before_each(function()
    folder = helper.folder()
    local root = helper.quoted(process.root)
    helper.shell(("cd %s && R=%s && cp -R $R/lua $R/lib . && ln -s $R/tools $R/build $R/config.ld ."):format(folder, root))
  end)
  after_each(function() process.remove(folder) end)

  -- Change a file of the copy, and what the check prints then.
  local function after(path, pattern, replacement)
    local text, count = helper.read(folder .. path):gsub(pattern, replacement)
    assert.is_true(count > 0, pattern)
    helper.write(folder .. path, text)
    local status, out, err = process.run({ "luajit", process.root .. "/tools/lint_api.lua" }, { cwd = folder })
    assert.equal("", err)
    return status, (out:gsub(":%d+:", ":"):gsub("line %d+", "line N"))
  end

  it("finds nothing missing here", function()
    local status, out = process.run { "luajit", "tools/lint_api.lua" }
    assert.same({ "", 0 }, { out, status })
  end)

  it("names a function of the facade without a docstring", function()
    assert.same({ 1, "lua/fewhead/case/preset.lua: preset.models: no docstring\n" },
      { after("lua/fewhead/case/preset.lua", "%-%-%- Sorted list of the models.\n", "") })
  end)

  it("names a docstring that does not say how the function fails", function()
    local said = "lua/fewhead/device/tensor.lua: tensor:to_table: returns nil and a reason, and the docstring does not say so\n"
    assert.same({ 1, said }, { after("lua/fewhead/device/tensor.lua",
      "lists of numbers. nil, err when the device cannot be read.", "lists of numbers.") })
  end)

  it("names a module without a head comment", function()
    assert.same({ 1, "lua/fewhead/decide/gate.lua: no head comment that starts with three dashes\n" },
      { after("lua/fewhead/decide/gate.lua", "^%-%-%-", "--") })
  end)

  it("names a docstring that LDoc cannot read", function()
    local said = "ldoc: lua/fewhead/decide/overlap.lua: M.groups: declared table cannot have array entries\n"
    assert.same({ 1, said }, { after("lua/fewhead/decide/overlap.lua", "%-%- @value groups\n", "") })
  end)

  it("names a docstring that LDoc would leave out", function()
    assert.same({ 1, "lua/fewhead/cli/records.lua: LDoc reads no docstring with two dashes in its first line: "
      .. "name options below that line\n" },
      { after("lua/fewhead/cli/records.lua", "%-%-%- A parser's options: ", "--- A parser's options, such as --where: ") })
  end)

  it("names a function of the header whose comment does not say how it fails, or that has none", function()
    assert.same({ 1, "lib/include/fewhead.h: fh_graph_launch: the comment at line N does not say how it fails\n" },
      { after("lib/include/fewhead.h", " FH_ERR_DEVICE if the launch fails%.", "") })
  end)

  it("names a function of the header without a comment", function()
    assert.same({ 1, "lib/include/fewhead.h: fh_graph_launch: no comment above it\n" },
      { after("lib/include/fewhead.h", "/%* Runs all of the graph, [^\n]*%*/\n", "") })
  end)
end)

describe("the reference of the Lua modules", function()
  local folder
  before_each(function() folder = helper.folder() end)
  after_each(function() process.remove(folder) end)

  it("is made by LDoc without a warning, with the docstring of each function as it stands", function()
    local status, _, err = process.run { "ldoc", "--quiet", "--fatalwarnings", "--dir", folder, "." }
    assert.same({ 0, "" }, { status, err })
    local page = helper.read(folder .. "modules/fewhead.case.preset.html")
    assert.matches('<a name = "models"></a>%s*<strong>models%(%)</strong>%s*</dt>%s*<dd>%s*Sorted list of the models%.', page)
    assert.is_truthy(page:find('<a name = "tp"></a>', 1, true))
    local options = helper.read(folder .. "modules/fewhead.decide.overlap.html")
    assert.is_truthy(options:find("Group sizes that measure() takes", 1, true))
    assert.is_truthy(helper.read(folder .. "modules/fewhead.cli.options.html"):find('"--s-q", KIND', 1, true))
  end)
end)
