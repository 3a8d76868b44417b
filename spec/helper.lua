-- What the specs share. busted reads this file before any spec, which makes `require "spec.helper"` and the modules of this
-- checkout found, wherever busted was started.
local root = debug.getinfo(1, "S").source:match("^@(.*)spec/helper%.lua$")
if root == "" then root = "./" end
package.path = ("%slua/?.lua;%slua/?/init.lua;%s?.lua;%s"):format(root, root, root, package.path)

-- busted forgets what a spec loaded; luv, loaded a second time, crashes. Where it is missing the specs that need it say so.
pcall(require, "luv")

local M = {}

--- The folder of the checkout, ending with a slash.
M.root = root

--- A new device for specs that are not about one kind of it: what FEWHEAD_DEVICE names, else a CPU of two threads.
function M.device()
  local device = require "fewhead.device.device"
  local name = device.default_name()
  return assert(device.open(name, name == "cpu" and { threads = 2 } or nil))
end

--- Whether that is a CPU.
function M.on_cpu() return require("fewhead.device.device").default_name() == "cpu" end

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

--- The paths that stand on their own and that a device has.
function M.paths(dev)
  local list = {}
  for _, path in ipairs(require("fewhead.device.path").computing()) do
    if dev:has_path(path) then list[#list + 1] = path end
  end
  return list
end

local BYTES = { bf16 = 2, f32 = 4, i32 = 4 }

--- The bits of the element that lies i elements from a tensor's first one, in it or around it: 0 .. 65535 for bf16, else an
-- int32.
function M.peek(t, i)
  local ffi = require "ffi"
  local bytes = BYTES[t.dtype]
  local cell = ffi.new(bytes == 2 and "uint16_t[1]" or "int32_t[1]")
  assert(t:read_bytes((t.offset + i) * bytes, bytes, cell))
  return cell[0]
end

--- Set one byte of a tensor's buffer, counted from 0.
function M.poke(t, at, value)
  local F = require "fewhead.base.ffi"
  assert(F.check(F.C.fh_buffer_write(t.storage.buffer[0], at, F.ffi.new("uint8_t[1]", value), 1)))
end

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

--- All bytes of a file.
function M.read(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read("*a")
  file:close()
  return text
end

--- Make a file of these bytes, in place of one that is there. Returns path.
function M.write(path, text)
  local file = assert(io.open(path, "wb"))
  assert(file:write(text))
  assert(file:close())
  return path
end

--- Call use(path) with a file of this text, which is gone afterwards, also when use raises.
function M.with_file(text, use)
  local path = os.tmpname()
  M.write(path, text)
  local ok, err = pcall(use, path)
  os.remove(path)
  assert(ok, err)
end

--- A new empty folder, its path ending with a slash; the caller removes it with shell("rm -rf ..").
function M.folder()
  return M.shell("mktemp -d") .. "/"
end

return M
