--- Where this library's files lie: the one module that asks.
--
--     local checkout = require "fewhead.base.checkout"
--     print(checkout.modules, checkout.root)  --> ./lua/fewhead/  ./
--
-- Every path ends with a slash.
local M = {}

--- The folder of the Lua modules: lua/fewhead/ of a checkout, or where `make install` put them (share/lua/5.1/fewhead/).
M.modules = debug.getinfo(1, "S").source:match("^@(.*)base/checkout%.lua$") or ""

local root = M.modules:match("^(.*)lua/fewhead/$")
if not root then
  -- Modules found by a path relative to lua/ ("fewhead/"): the checkout is two folders up, if it is one.
  local header = io.open(M.modules .. "../../lib/include/fewhead.h")
  if header then
    header:close()
    root = M.modules .. "../../"
  end
end

--- The root of the checkout, "./" where the current folder is it; nil for an installed copy.
M.root = root == "" and "./" or root

--- PREFIX of an installed copy that lies in PREFIX/share/lua/5.1/fewhead/; else nil.
M.prefix = M.modules:match("^(.*/)share/lua/5%.1/fewhead/$")

--- The folder that holds experiments/: the checkout; or, of an installed copy, PREFIX/share/fewhead, or shipped/ beside the
-- modules, where luarocks puts it. nil where none is there.
function M.shipped()
  for _, folder in ipairs { M.modules .. "../..", M.modules .. "../../../fewhead", M.modules .. "shipped" } do
    local file = io.open(folder .. "/experiments/gate_sweep.lua")
    if file then
      file:close()
      return folder
    end
  end
end

--- Where a function stands: the path of its file, the numbers of its first and last line; nil for one of C, or one typed at a
-- prompt.
function M.place(f)
  local info = debug.getinfo(f, "S")
  local path = info.source:match("^@(.*)$")
  if path then return path, info.linedefined, info.lastlinedefined end
end

return M
