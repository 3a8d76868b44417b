local helper = require "spec.helper"
local process = require "spec.process"

-- What checkout says in a process of its own, its modules found by `path`.
local function asked(path, cd)
  local code = ([[package.path = %q
    local c = require "fewhead.base.checkout"
    print(c.modules, c.root, c.prefix, c.shipped())]]):format(path)
  return (helper.shell(("cd %s && luajit -e %s"):format(helper.quoted(cd), helper.quoted(code))))
end

describe("checkout", function()
  it("knows the modules and the root of a checkout, however they were found", function()
    local root = process.root
    assert.equal(("%s/lua/fewhead/\t%s/\tnil\t%s/lua/fewhead/../.."):format(root, root, root), asked(root .. "/lua/?.lua", "/"))
    assert.equal("./lua/fewhead/\t./\tnil\t./lua/fewhead/../..", asked("./lua/?.lua", root))
    assert.equal("lua/fewhead/\t./\tnil\tlua/fewhead/../..", asked("lua/?.lua", root))
    assert.equal("./fewhead/\t./fewhead/../../\tnil\t./fewhead/../..", asked("./?.lua", root .. "/lua"))
  end)

  it("knows the prefix of an installed copy, and the experiments that lie there", function()
    local folder = helper.folder()
    local modules = folder .. "share/lua/5.1/fewhead/"
    helper.shell(("mkdir -p %sbase %sshare/fewhead/experiments && cp %slua/fewhead/base/checkout.lua %sbase && "
      .. "touch %sshare/fewhead/experiments/gate_sweep.lua"):format(modules, folder, helper.root, modules, folder))
    assert.equal(("%s\tnil\t%s\t%s../../../fewhead"):format(modules, folder, modules),
      asked(folder .. "share/lua/5.1/?.lua", "/"))
    helper.shell("rm -r " .. folder .. "share/fewhead")
    assert.equal(("%s\tnil\t%s"):format(modules, folder), asked(folder .. "share/lua/5.1/?.lua", "/"))
    helper.shell("rm -rf " .. folder)
  end)

  it("says where a function stands", function()
    local checkout = require "fewhead.base.checkout"
    local path, line = checkout.place(checkout.place)
    local lines, number = {}, 0
    for text in io.lines(path) do
      number = number + 1
      lines[number] = text
    end
    assert.equal("function M.place(f)", lines[line])
    assert.is_nil(checkout.place(print))
    assert.is_nil(checkout.place(loadstring("return 1", "=typed")))
  end)
end)
