-- What the specs share. busted reads this file before any spec, which makes `require "spec.helper"` and the modules of this
-- checkout found, wherever busted was started.
local root = debug.getinfo(1, "S").source:match("^@(.*)spec/helper%.lua$")
if root == "" then root = "./" end
package.path = ("%slua/?.lua;%slua/?/init.lua;%s?.lua;%s"):format(root, root, root, package.path)

local M = {}

--- The folder of the checkout, ending with a slash.
M.root = root

--- What f() is refused with. f must raise, and the message must start with a file and line inside f itself: the caller is blamed.
-- Returns the rest of the message.
function M.refusal(f)
  local ok, err = pcall(f)
  if ok then error("nothing was refused", 2) end
  local here = debug.getinfo(f, "S")
  local file, line, message = tostring(err):match("^(.-):(%d+): (.*)$")
  if file ~= here.short_src or tonumber(line) < here.linedefined or tonumber(line) > here.lastlinedefined then
    error(("the refusal does not blame %s:%d: %s"):format(here.short_src, here.linedefined, tostring(err)), 2)
  end
  return message
end

--- A text as one word of the shell.
local function quoted(text) return "'" .. text:gsub("'", "'\\''") .. "'" end
M.quoted = quoted

--- Run a shell command. Returns what it printed, stderr too, without the last line end; and its exit status.
function M.shell(command)
  local pipe = assert(io.popen(("{ %s\n} 2>&1; echo \"status $?\""):format(command)))
  local text = pipe:read("*a")
  pipe:close()
  local output, status = text:match("^(.-)\n?status (%d+)\n$")
  return output, tonumber(status)
end

--- Run Lua code in a process of its own, the modules of this checkout found. options: { env = "NAME=value ..", lua = another
-- folder of modules, cd = folder }. Returns output and exit status as shell() does; a signal gives 128 and its number.
function M.luajit(code, options)
  options = options or {}
  local modules = options.lua or root .. "lua"
  code = ("package.path = %q .. package.path\n%s"):format(("%s/?.lua;%s/?/init.lua;"):format(modules, modules), code)
  return M.shell(("%s%s luajit -e %s"):format(options.cd and "cd " .. quoted(options.cd) .. " && " or "", options.env or "",
    quoted(code)))
end

--- A new empty folder, its path ending with a slash; the caller removes it with shell("rm -rf ..").
function M.folder()
  return M.shell("mktemp -d") .. "/"
end

return M
