--- How a command ends: exit statuses, and errors as one line for the person who reads them.
--
--     local exit = require "fewhead.cli.exit"
--     if cases_failed > 0 then exit.with(exit.FAILED, "tool: 3 cases failed") end    -- ends the script that ./fewhead runs
--     os.exit(exit.status(main), true)                                               -- how ./fewhead itself calls main()
local args = require "fewhead.base.arguments"
local posix = require "fewhead.base.posix"

local M = {}

--- The status of a command that failed: a parity case, a missing file.
M.FAILED = 1

--- The status of a wrong command line.
M.USAGE = 2

--- The status after Ctrl-C.
M.INTERRUPTED = 130

-- Above this a shell gives statuses meanings of its own (126 not runnable, 127 not found, 128 + n signal n); of those a script
-- may give INTERRUPTED alone, when it ended in good order after Ctrl-C.
local MAX_STATUS = 125

--- What a status may be, for messages.
M.wanted = ("an exit status in 0 .. %d, or %d after Ctrl-C"):format(MAX_STATUS, M.INTERRUPTED)

--- Whether a number is a status that a shell sees as it is.
function M.is_status(v)
  return v == M.INTERRUPTED or (type(v) == "number" and v == math.floor(v) and v >= 0 and v <= MAX_STATUS)
end

local Exit = {}
Exit.__index = Exit
function Exit:__tostring() return self.message or ("exit status " .. self.status) end

--- End the script that ./fewhead runs, with a status and, on stderr, one line `message` (may be nil). Unlike os.exit it passes
-- through the callers' cleanups; in the prompt, or under plain luajit, it is an error like any other.
function M.with(status, message)
  if not M.is_status(status) then error(("exit: got %s, wanted %s"):format(args.show(status), M.wanted), 2) end
  error(setmetatable({ status = status, message = message }, Exit), 0)
end

--- Whether an error caught by pcall is Ctrl-C: luajit's handler raises this text in whatever Lua code runs.
function M.is_interrupt(err) return type(err) == "string" and err:find("interrupted!$") ~= nil end

--- The text of an error value, whatever it is: one whose __tostring raises, or gives no text, is named by its type.
function M.text(err)
  local ok, text = pcall(tostring, err)
  if ok and type(text) == "string" then return text end
  return ("an error value that cannot be shown (a %s whose __tostring fails)"):format(type(err))
end

-- An error on one line. After the first line of a failed require comes the list of files tried, which FEWHEAD_TRACE=1 shows.
local function one_line(message)
  return message:match("^(.-module '[^']*' not found):") or (message:gsub("%s*\n%s*", " "))
end

--- Call main() and turn how it ended into a status: what it returns (nil = 0), or what exit.with said, or 1 after an error, which
-- goes to stderr as one line, or with a stack trace if FEWHEAD_TRACE=1. What could not be written to standard output is an error
-- too.
function M.status(main)
  local ok, result = xpcall(main, function(err)
    if getmetatable(err) == Exit then return err end
    if M.is_interrupt(err) then return setmetatable({ status = M.INTERRUPTED, message = "fewhead: interrupted" }, Exit) end
    local message = M.text(err)
    if os.getenv("FEWHEAD_TRACE") == "1" then return debug.traceback(message, 2) end
    local options = package.loaded["fewhead.cli.options"]
    local usage = type(options) == "table" and options.in_option_words(message) -- no table while it loads
    if usage then return setmetatable({ status = M.USAGE, message = one_line(usage) }, Exit) end
    return one_line(message)
  end)
  local status, message
  if ok then status = result or 0
  elseif getmetatable(result) == Exit then status, message = result.status, result.message
  else
    status, message = M.FAILED, tostring(result)
    if not message:find("^fewhead: ") then message = "fewhead: " .. message end
  end
  if message then io.stderr:write(message, "\n") end
  local written, err = posix.written(io.stdout)
  if not written then
    io.stderr:write("fewhead: standard output: ", err, "\n")
    if status == 0 then status = M.FAILED end
  end
  return status
end

return M
