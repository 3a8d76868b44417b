--- The command line: the commands behind ./fewhead, and what a script that it runs needs of the shell's world.
--
--     local cli = require "fewhead.cli.cli"
--     local opt = fh.options { name = "tool", options = { { "--rows", "INTEGER", "how many", lo = 1 } } }:read(arg)
--     if failed then cli.exit(cli.FAILED, "tool: it failed") end
local args = require "fewhead.base.arguments"
local checkout = require "fewhead.base.checkout"
local exit = require "fewhead.cli.exit"

local M = {}

--- Ending a script, and its statuses (fewhead.cli.exit).
M.exit = exit.with
M.FAILED, M.USAGE, M.INTERRUPTED = exit.FAILED, exit.USAGE, exit.INTERRUPTED

--- The device of a command.
-- name: what --device says. nil and the reason, by that option. The library is loaded when a command needs it: doctor runs
-- without one.
function M.device(name)
  local dev, err = require("fewhead.cli.options").open_device(name)
  return dev, err
end

local commands = {}

local run_usage = [[
usage: fewhead run FILE [options of the script]

Runs a Lua file with the library at hand: `require "fewhead"` works and `arg` holds the words after FILE. A FILE that is not here
is looked for where fewhead is installed, so `fewhead run experiments/gate_sweep.lua` works in any folder, and so does its name
alone: `fewhead run gate_sweep`. `fewhead experiments` lists the names.
A whole number that the script returns is the exit status.
]]

-- What is said of a name that is no file: the experiment that it is likely to mean, where it has no slash.
local function meant(name)
  if name:find("/", 1, true) then return "" end
  local names = {}
  for i, one in ipairs(require("fewhead.cli.help").experiments()) do names[i] = one.name end
  local near = args.nearest(name:gsub("%.lua$", ""), names)
  return (near and ("; did you mean %s?"):format(near) or "") .. " (fewhead experiments lists the names)"
end

-- The file that `run NAME` means; nil and why there is none. A folder of that name, such as bench/, is no script.
local function find_script(name)
  local reason
  for _, form in ipairs(name:sub(1, 1) == "/" and { "" } or { "", "/%s", "/experiments/%s.lua" }) do
    local path = form == "" and name or checkout.shipped() and checkout.shipped() .. form:format(name)
    local file, err = io.open(path or "")
    if file then
      local _, folder = file:read(0)
      file:close()
      if not folder then return path end
      err = ("%s: %s"):format(path, folder)
    end
    reason = reason or err
  end
  return nil, reason .. meant(name)
end

function commands.run(argv)
  local name = argv[1]
  if name == "--help" or name == "-h" then
    io.stdout:write(run_usage)
    return 0
  end
  if not name then exit.with(exit.USAGE, "fewhead: run: got no file, wanted FILE (fewhead run --help says more)") end
  local path, err = find_script(name)
  if not path then exit.with(exit.FAILED, "fewhead: run: " .. err) end
  local chunk, syntax = loadfile(path)
  if not chunk then error(syntax, 0) end
  local words = { [0] = name }
  for i = 2, #argv do words[i - 1] = argv[i] end
  _G.arg = words
  local status = chunk(unpack(words))
  if type(status) ~= "number" then return 0 end
  if not exit.is_status(status) then error(("%s returned %s, wanted %s"):format(name, args.show(status), exit.wanted), 0) end
  return status
end

function commands.doctor(argv) return require("fewhead.cli.doctor").main(argv) end
function commands.info(argv) return require("fewhead.cli.info").main(argv) end
function commands.parity(argv) return require("fewhead.cli.parity").main(argv) end
function commands.compare(argv) return require("fewhead.cli.compare").main(argv) end
function commands.bundle(argv) return require("fewhead.cli.bundle").main(argv) end
function commands.merge(argv) return require("fewhead.cli.merge").main(argv) end
function commands.worker(argv) return require("fewhead.cli.worker").main(argv) end -- started by a sweep, not typed
function commands.page(argv) return require("fewhead.cli.page").main(argv) end
function commands.plot(argv) return require("fewhead.cli.plot").main(argv) end
function commands.export(argv) return require("fewhead.cli.export").main(argv) end
function commands.experiments(argv)
  if #argv > 0 then
    exit.with(exit.USAGE, ("fewhead: experiments: unexpected argument %s, wanted none"):format(args.show(argv[1])))
  end
  for _, one in ipairs(require("fewhead.cli.help").experiments()) do print(("%-18s %s"):format(one.name, one.about)) end
  return 0
end
function commands.completion(argv) return require("fewhead.cli.completion").main(argv, M) end
function commands.repl(argv) return require("fewhead.cli.repl").main(argv) end

local names = {
  "run", "info", "doctor", "parity", "compare", "merge", "bundle", "page", "plot", "export", "experiments", "completion", "repl",
}

--- The names of the commands, in the order of the help.
M.commands = names

local usage = [[
usage: fewhead COMMAND [options]

  run FILE [options]   run a Lua script, such as experiments/gate_sweep.lua
  info                 what is here: version, library, devices, settings in force
  doctor               what is found here, what is missing, and what to do about it; status 1 when something is wrong
  parity               compare every path with the reference over the conformance grid; status 1 when a case fails
  compare OLD NEW      which cells got faster or slower between two runs, files, folders or commits
  merge RUN ..         put the parts of a sweep together
  bundle [RUN]         pack a run, its gate table and the device's description for somebody else
  page RUN             one HTML file of a run: tables, pictures, where the numbers come from
  plot RUN             times and speed-up as text in the terminal, or all pictures as SVG files
  export RUN           the records as CSV, SQLite or markdown
  experiments          the scripts that run finds by name, and what each answers
  completion bash      a script for bash that completes commands, experiments, options and values
  repl                 an interactive prompt with the library loaded
  --help, --version

Each command has its own --help. FEWHEAD_TRACE=1 adds a stack trace to errors.
]]

--- Start the command in argv, a list of words without the program's name: what it returns. An unknown one ends with a message.
function M.start(argv)
  local name = argv[1]
  local command = commands[name]
  if not command then
    local near = args.nearest(name, names)
    exit.with(exit.USAGE, ("fewhead: unknown command %s%s (fewhead --help lists them)"):format(args.show(name),
      near and (", did you mean %s?"):format(near) or ""))
  end
  local rest = {}
  for i = 2, #argv do rest[i - 1] = argv[i] end
  return command(rest)
end

--- Run the command in argv (a list of words, without the program's name); returns the exit status.
function M.main(argv)
  local name = argv[1]
  return exit.status(function()
    if name == "--help" or name == "-h" or name == "help" then
      io.stdout:write(usage)
      return 0
    end
    if name == "--version" then
      print(require("fewhead.cli.info").version())
      return 0
    end
    if not name then exit.with(exit.USAGE, (usage:gsub("\n$", ""))) end
    return M.start(argv)
  end)
end

return M
