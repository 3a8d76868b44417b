--- Run: the header of a measurement, what every record says about where, when and with what it was made.
--
--   local run = require "fewhead.record.run"
--   local header = run.header(dev, arg)
--   print(header.id, header.commit, header.device)  --> 20260102T030405Z-9f3a61c2  3fd0...  Intel(R) Xeon(R) Processor
--
-- It names the device, never the host, its user or a folder: argv is what was typed and nothing is added.

local args = require "fewhead.base.arguments"
local F = require "fewhead.base.ffi"
local shell = require "fewhead.base.shell"

local M = {}

local root = require("fewhead.base.checkout").root

local quoted = shell.quote

-- First line of a git command run in the checkout, "" when it prints nothing; nil and git's reason when it fails. Variables of a
-- git hook that started this process name another repository.
local function git(command)
  local pipe = io.popen(("env -u GIT_DIR -u GIT_WORK_TREE -u GIT_INDEX_FILE git -C %s %s 2>&1 && echo ok"):format(quoted(root),
    command))
  if not pipe then return nil, "git could not be started" end
  local text = pipe:read("*a")
  pipe:close()
  local answer = text:match("^(.-)\n?ok\n$")
  if answer then return answer end
  if text:find("dubious ownership", 1, true) then
    return nil, "the checkout belongs to another user, so git does not read it (git config --global --add safe.directory FOLDER)"
  end
  return nil, text:find("not found", 1, true) and "there is no git here" or (text:match("^[^\n]*"))
end

-- Is this module part of a git work tree whose root is its own? An installed copy inside somebody else's repository is not.
local function in_checkout()
  if not root then return false end
  local file = io.open(root .. ".git", "r") -- a folder, or a file in a linked work tree: both open
  if file then file:close() end
  return file ~= nil
end

--- commit, dirty, reason: of the checkout this file lies in, where what runs wrote to results/ does not count; else the commit
-- that the library was built from, and nil: not known. reason: one line that says why the checkout's own commit could not be
-- read; nil where it was, and where this file lies in no checkout.
function M.version()
  local reason
  if in_checkout() then
    local commit, changes
    commit, reason = git("rev-parse HEAD")
    if commit then changes, reason = git("status --porcelain --untracked-files=no -- . ':(exclude)results'") end
    if changes then return commit, changes ~= "" end
  end
  return F.ffi.string(F.C.fh_build_info()):match("commit (%w+)") or "unknown", nil, reason
end

local ID_BYTES = 4 -- of randomness beside the second: two runs of one second clash once in four thousand million

local function random_hex()
  local file = assert(io.open("/dev/urandom", "rb"))
  local bytes = file:read(ID_BYTES)
  file:close()
  return (bytes:gsub(".", function(c) return ("%02x"):format(c:byte()) end))
end

--- The header for what runs on dev now: { id, commit, dirty, device, kind, driver, threads, isa, multiprocessors, capability,
-- date, argv, build, process, clocks }. process is "script", this one; a sweep with a worker process says "worker". id is new
-- each time; date is ISO 8601, UTC; argv (default: the script's) is a list of text; dirty is nil where it cannot be known, and
-- commit_note then says why; clocks: what clocks are read with, or "unknown: " and why; driver is "" on a CPU; a CPU has threads
-- and isa, a GPU multiprocessors and capability ("9.0").
function M.header(dev, argv)
  require("fewhead.device.device").check("run.header: device", dev)
  local typed = args.table("run.header: argv", argv or _G.arg or {})
  local info = dev:info()
  local commit, dirty, reason = M.version()
  local date = os.date("!%Y-%m-%dT%H:%M:%SZ")
  local list = require("fewhead.base.json").array {}
  for i = 1, #typed do list[i] = tostring(typed[i]) end
  return {
    id = date:gsub("[-:]", "") .. "-" .. random_hex(), commit = commit, dirty = dirty, commit_note = reason, date = date,
    argv = list, device = info.name, kind = info.kind, driver = info.driver or "", threads = info.threads, isa = info.isa,
    multiprocessors = info.multiprocessors, capability = info.capability,
    build = F.ffi.string(F.C.fh_build_info()), process = "script",
    clocks = require("fewhead.device.clocks").open(dev).source,
  }
end

--- The folder that `out` names for a run with this header: DEVICE in it stands for the device's name, "nvidia-h200" for NVIDIA
-- H200.
function M.folder(out, header)
  return (out:gsub("DEVICE", (header.device:lower():gsub("[^%w]+", "-"))))
end

return M
