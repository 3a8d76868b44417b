local helper = require "spec.helper"
local process = require "spec.process"

describe("tools/lint_api.lua", function()
  local folder
  before_each(function()
    folder = helper.folder()
    local root = helper.quoted(process.root)
    helper.shell(("cd %s && cp -R %s/lua %s/lib . && ln -s %s/tools %s/build ."):format(folder, root, root, root, root))
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

  it("names a function of the header whose comment does not say how it fails, or that has none", function()
    assert.same({ 1, "lib/include/fewhead.h: fh_graph_launch: the comment at line N does not say how it fails\n" },
      { after("lib/include/fewhead.h", " FH_ERR_DEVICE if the launch fails%.", "") })
  end)

  it("names a function of the header without a comment", function()
    assert.same({ 1, "lib/include/fewhead.h: fh_graph_launch: no comment above it\n" },
      { after("lib/include/fewhead.h", "/%* Runs all of the graph, [^\n]*%*/\n", "") })
  end)
end)
