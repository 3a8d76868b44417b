--- Commands of the prompt: what stands after ":" and does something with the rest of the line.
--
--     local run = command.of(prompt, ":time 1 + 1")      -- nil for a line that is Lua
--     run()
--
-- A command raises what a statement would raise. What it did is kept for :save as the Lua that does the same.
-- @module fewhead.cli.command
local args = require "fewhead.base.arguments"
local colour = require "fewhead.cli.colour"
local posix = require "fewhead.base.posix"
local show = require "fewhead.cli.show"

local M = {}

local STDOUT = 1

local function say(text) io.stdout:write(text, "\n") end

-- Help, broken at the words where the terminal is narrow.
local function explain(text) say(require("fewhead.cli.help").wrapped(text, posix.columns(STDOUT))) end

local HELP = [[
Type Lua; the library is `fh`. An expression prints its value, which is then `_` and Out[n]; a `local` stays for the next lines.
  ?NAME, NAME?, :help NAME   the docstring of a function, module or method, or what an object can do
  :doc                       modules, patterns, layouts, paths, presets, experiments
  :time STATEMENT            run it and say how long it took
  :run FILE                  run a Lua file, which sees what was typed
  :load FILE                 a sweep from its records, as _ and Out[n]
  :save FILE                 write the statements that succeeded as a script; `:save FILE overwrite` replaces a file
  :set [NAME VALUE]          list the settings, or change one: `:set device cuda:0`
  :reload                    load the project's Lua modules anew; what was made before goes on working
  exit, quit, Ctrl-D         leave; Ctrl-C drops what is typed, or stops what runs
Tab completes names, options and their values, and files in strings. Ctrl-R searches what was typed before.]]

-- ---- Help --------------------------------------------------------------------------------------------------------------------

-- The value of a dotted name; nil where there is none.
local function value_of(prompt, name)
  local compiled = prompt.session:compile((name:gsub(":([%a_][%w_]*)$", ".%1")))
  local ok, value = pcall(compiled or error)
  if ok then return value end
end

local function help(prompt, name)
  if name == "" then return explain(HELP) end
  explain(require("fewhead.cli.help").about(name, value_of(prompt, name)))
end

-- ---- Settings ----------------------------------------------------------------------------------------------------------------

local MOST = 1e6 -- of a limit of printing

local function limit(key)
  return {
    get = function() return show.limits[key] end,
    set = function(text)
      local value = tonumber(text)
      if not (value and value == math.floor(value) and value >= 1 and value <= MOST) then
        error((":set %s: got %s, wanted a whole number in 1 .. %d"):format(key, args.show(text), MOST), 0)
      end
      show.limits[key] = value
    end,
  }
end

local function device_module() return require "fewhead.device.device" end

--- Settings in the order in which :set lists them: { name, what it is, { get = function() -> value, set = function(text) -> the
-- Lua that does the same, or nil }, function() -> the values there are, or nil }.
-- @value settings
M.settings = {
  { "device", "where cases run that name no device", {
    get = function() return device_module().default_name() end,
    set = function(text)
      local dev, err = device_module().set_default(text)
      if not dev then
        error((":set device: %s; there are: %s"):format(err:gsub("^name: ", ""), table.concat(device_module().names(), ", ")), 0)
      end
      return ("assert(fh.device.set_default(%q))"):format(text)
    end,
  }, function() return device_module().names() end },
  { "colour", "auto: on a terminal where NO_COLOR is not set; on; off", {
    get = function() return colour.mode end,
    set = function(text)
      if text ~= "auto" and text ~= "on" and text ~= "off" then
        error((":set colour: got %s, wanted auto, on or off"):format(args.show(text)), 0)
      end
      colour.mode = text
    end,
  }, function() return { "auto", "off", "on" } end },
  { "items", "entries of a Lua table that are printed", limit "items" },
  { "depth", "tables within tables that are printed", limit "depth" },
  { "width", "columns of a line of a Lua table", limit "width" },
}

local function setting(name)
  local names = {}
  for i, one in ipairs(M.settings) do
    if one[1] == name then return one[3] end
    names[i] = one[1]
  end
  local near = args.nearest(name, names)
  error((":set: no setting %s;%s there are: %s"):format(args.show(name), near and (" did you mean %s?"):format(near) or "",
    table.concat(names, ", ")), 0)
end

local function set(prompt, rest)
  local name, value = rest:match("^(%S+)%s*(.-)$")
  if not name then
    for _, one in ipairs(M.settings) do say(("%-8s %-8s %s"):format(one[1], tostring(one[3].get()), one[2])) end
    return
  end
  local row = setting(name)
  if value == "" then return say(("%s is %s"):format(name, tostring(row.get()))) end
  prompt:keep(row.set(value))
  say(("%s is %s"):format(name, tostring(row.get())))
end

-- ---- Files -------------------------------------------------------------------------------------------------------------------

local function need(rest, name, wanted)
  if rest == "" then error((":%s: got nothing, wanted %s"):format(name, wanted), 0) end
  return rest
end

local function load_sweep(prompt, path)
  need(path, "load", "a JSONL file of records")
  local sweep, err = require("fewhead.decide.sweep").read(path)
  if not sweep then error(err, 0) end
  local store = require "fewhead.record.store"
  say("records of " .. store.describe(store.find(path, store.is_sweep)))
  prompt:run(function() return sweep end, ":load " .. path, true, ("assert(fh.sweep.read(%q))"):format(path))
end

local function run_file(prompt, path)
  need(path, "run", "a Lua file")
  local chunk, err = loadfile(path)
  if not chunk then error(err, 0) end
  setfenv(chunk, prompt.session.environment)
  prompt:run(chunk, ":run " .. path, false, ("dofile(%q)"):format(path))
end

local function save(prompt, rest)
  need(rest, "save", "a file name, such as first_try.lua")
  local path, word = rest:match("^(.-)%s+(overwrite)$")
  path = path or rest
  local there = not word and io.open(path)
  if there then
    there:close()
    error((":save: %s is there already; `:save %s overwrite` replaces the file"):format(path, path), 0)
  end
  local text, count = require("fewhead.cli.save").text(path, prompt.kept)
  if not text then error(":save: " .. count, 0) end
  local ok, err = require("fewhead.record.file").write(path, text)
  if not ok then error(":save: " .. err, 0) end
  say(("saved %d statements: fewhead run %s"):format(count, path))
end

-- ---- The others --------------------------------------------------------------------------------------------------------------

local function time(prompt, text)
  local chunk, result = prompt.session:compile(text)
  if not chunk then error(result or ":time: got nothing complete, wanted an expression or a statement", 0) end
  local clock = require("fewhead.base.ffi").C.fh_time_ns
  local start = clock()
  prompt:run(chunk, text, result)
  say(require("fewhead.base.table").time(tonumber(clock() - start) / 1e3))
end

local function reload(prompt)
  local count, err = require("fewhead.cli.reload").run()
  if not count then error(":reload: nothing was changed: " .. err, 0) end
  prompt:attend()
  say(("%d modules loaded anew; the C library stays as it was loaded"):format(count))
end

--- By name: command(prompt, rest of the line).
M.commands = {
  help = help, time = time, load = load_sweep, run = run_file, save = save, set = set, reload = reload,
  doc = function() explain(require("fewhead.cli.help").overview()) end,
}

--- What to do with a line that is no Lua, as a function; nil for Lua. NAME? must be a name, since "?" ends no Lua.
function M.of(prompt, text)
  local line = text:match("^%s*(.-)%s*$")
  if line == "help" or line == "?" then return function() explain(HELP) end end
  local asked = line:match("^%?%s*([%a_][%w_.:]*)$") or line:match("^([%a_][%w_.:]*)%s*%?$")
    or line:match("^help%s*%(?%s*([%a_][%w_.:]*)%s*%)?$")
  if asked then return function() help(prompt, asked) end end
  local name, rest = line:match("^:([%a_]+)%s*(.*)$")
  if not name then return nil end
  local command = M.commands[name]
  if command then return function() command(prompt, rest) end end
  local known = {}
  for each in pairs(M.commands) do known[#known + 1] = each end
  table.sort(known)
  return function() error((":%s: no such command; there are :%s"):format(name, table.concat(known, ", :")), 0) end
end

return M
