--- Work that plug-ins take part in, in a process of its own: a plug-in that crashes, ends the process or hangs ends that process
-- alone, and it is known which one it was.
--
--     local answer, culprits = isolate.call(function() return { records = .. } end, { toy, loops })
--     if not answer then print(culprits[1].name, culprits[1].reason) end  --> toy  ended by signal 11 (Segmentation fault)
--
-- For devices that a forked child may use: CPUs. CUDA does not survive a fork, so there plug-ins run in the process itself.

local json = require "fewhead.base.json"
local posix = require "fewhead.base.posix"
local providers = require "fewhead.device.provider"

local M = {}

--- The longest that one call of a plug-in's code may take, seconds, before it counts as hanging.
M.limit_s = 120

local LOOK_US = 10000 -- between two looks at the child

local page -- the memory that children leave their marks in
local is_child = false -- whether this process is such a child: what it calls runs here

-- What the child leaves in a file: a line of JSON.
local function leave_answer(path, f)
  local ok, answer, err = pcall(f)
  local line = { ok = ok and answer ~= nil, raised = not ok or nil }
  if line.ok then line.answer = answer else line.err = tostring(ok and err or answer) end
  local whole, text = pcall(json.encode, line)
  if not whole then text = json.encode { ok = false, raised = true, err = tostring(text) } end
  local file = assert(io.open(path, "wb"))
  assert(file:write(text, "\n"))
  assert(file:close())
end

local function read_answer(path)
  local file = io.open(path, "rb")
  local line = file and file:read("*l")
  if file then file:close() end
  return line and json.decode(line)
end

-- Why the child is gone: what a person reads behind the plug-in's name.
local function reason_of(how)
  if how.hung then return ("one call took more than %g s"):format(how.hung) end
  if how.signal then return ("it ended the process by signal %d (%s)"):format(how.signal, how.text) end
  return ("it ended the process with status %d"):format(how.status)
end

-- Waits for the child: { status =, signal =, text =, hung = } and whether it was interrupted. marks: of fewhead.device.provider.
local function wait(child, marks, limit_s, interrupted)
  local clock = require("fewhead.base.ffi").C.fh_time_ns
  local entered, since, stopped = -1, clock(), false
  while true do
    local how = posix.ended(child)
    if how then return how, stopped end
    if marks[1] ~= entered or marks[0] == 0 then entered, since = marks[1], clock() end
    if tonumber(clock() - since) / 1e9 > limit_s then
      posix.finish(child)
      return { hung = limit_s }, stopped
    end
    if not stopped and interrupted and interrupted() then
      stopped = true
      posix.kill(child, posix.SIGINT) -- Ctrl-C in a terminal reached it already; kill -INT did not
    end
    posix.sleep_us(LOOK_US)
  end
end

--- Call f in a child process. f returns a table that JSON holds, or nil and a text. list: the providers whose code it runs.
-- options: limit_s (M.limit_s); interrupted, a function that says whether to stop: the child is told by SIGINT, and f must end.
-- Returns f's table; nil, culprits = a list of { name =, reason = } where f did not come back; nil, nil, text for f's own nil. An
-- error of f is raised here. Where no process can be started, and within such a call, f runs in this one.
function M.call(f, list, options)
  options = options or {}
  -- One page for all calls: compiled code may still read what an earlier one left.
  page = page or posix.share()
  if is_child or not page then
    local answer, err = f()
    return answer, nil, err
  end
  local path, marks = os.tmpname(), page
  marks[0], marks[1] = 0, 0
  collectgarbage() -- so that the child finds nothing of this process to finalize
  collectgarbage()
  local child = posix.fork(function()
    is_child = true
    collectgarbage("restart")
    providers.note_in(marks)
    leave_answer(path, f)
  end)
  if not child then
    os.remove(path)
    local answer, err = f()
    return answer, nil, err
  end
  local how = wait(child, marks, options.limit_s or M.limit_s, options.interrupted)
  local inside, found = marks[0], how.status == 0 and read_answer(path)
  os.remove(path)
  if found then
    if found.raised then error(found.err, 0) end
    if found.ok then return found.answer end
    return nil, nil, found.err
  end
  -- In nobody's code it crashed later, over what one of them did: all are suspects.
  local culprits, reason = {}, reason_of(how)
  for _, provider in ipairs(list) do
    if inside == 0 or inside == provider.number then
      local shared = inside == 0 and #list > 1 and ", or another plug-in of this cell did" or ""
      culprits[#culprits + 1] = { name = provider.name, reason = reason .. shared }
    end
  end
  return nil, culprits
end
jit.off(M.call) -- the child writes to the marks at any time
jit.off(wait)

return M
