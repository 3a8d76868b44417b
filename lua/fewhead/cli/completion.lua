--- Completion: a script for bash that completes commands, experiments, options and values. Behind `fewhead completion bash`.
--
--     eval "$(./fewhead completion bash)"               # in this shell; `make install` puts it where bash finds it
--
-- The script is made from the option tables of the commands and of the experiments that are here. It starts nothing itself.
local args = require "fewhead.base.arguments"
local exit = require "fewhead.cli.exit"

local M = {}

-- Commands without an option table.
local BARE = { run = true, doctor = true, experiments = true, completion = true }

-- The parser with which `fewhead WORD ..` would read its words; nil for one that has none. No word is read, nothing runs then.
-- cli: fewhead.cli.cli, which starts this module and so hands itself over.
local function parser_of(cli, words)
  local options = require "fewhead.cli.options"
  local found
  options.on_read = function(parser)
    found = parser
    exit.with(0)
  end
  local ok, err = pcall(cli.start, words)
  options.on_read = nil
  if not ok and not found then error(err, 0) end
  return found
end

--- What there is to complete: a list of { words = "info" or "run NAME", rows = option rows }, in order. cli: the module
-- fewhead.cli.cli.
function M.tables(cli)
  local list = {}
  for _, name in ipairs(cli.commands) do
    if not BARE[name] then list[#list + 1] = { words = name, rows = parser_of(cli, { name }).list } end
  end
  for _, one in ipairs(require("fewhead.cli.help").experiments()) do
    local parser = parser_of(cli, { "run", one.path })
    list[#list + 1] = { words = "run " .. one.name, rows = parser and parser.list or {} }
  end
  return list
end

-- The names that an option may be given: its own, or those of one value of it.
local function choices_of(row) return row.choices or row.of and row.of.choices end

-- Kinds whose values are names of files.
local FILES = { FILE = true, DIR = true, PROVIDER = true }

-- The lines of a shell's case: branches that print the same stand together, in the order in which they first come.
local function branches(list)
  local by_text, order = {}, {}
  for _, one in ipairs(list) do
    if not by_text[one.text] then
      by_text[one.text] = {}
      order[#order + 1] = one.text
    end
    table.insert(by_text[one.text], ("'%s'"):format(one.key))
  end
  local lines = {}
  for _, text in ipairs(order) do lines[#lines + 1] = ("    %s) %s ;;"):format(table.concat(by_text[text], "|"), text) end
  return table.concat(lines, "\n")
end

-- A shell's command that prints each word on a line of its own.
local function printing(words)
  local list = {}
  for i, word in ipairs(words) do list[i] = require("fewhead.base.shell").quote(word) end
  return "printf '%s\\n' " .. table.concat(list, " ")
end

local SCRIPT = [=[
# Completion of fewhead for bash. Made by `fewhead completion bash`.
_fewhead_options() {
  case $1 in
@OPTIONS@
  esac
}
_fewhead_values() {
  case $1 in
@VALUES@
  esac
}
# Completes the last word of COMP_WORDS.
_fewhead() {
  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]} found=
  COMPREPLY=()
  current=${current#[\"\']}
  if [[ $command == run && $COMP_CWORD -gt 2 ]]; then
    command=${COMP_WORDS[2]##*/}
    command="run ${command%.lua}"
  fi
  if [[ $COMP_CWORD -eq 1 ]]; then found=$(@COMMANDS@)
  elif [[ $command == run ]]; then found=$(@EXPERIMENTS@; compgen -f -X '!*.lua' -- "$current"; compgen -d -S / -- "$current")
  elif [[ $command == completion ]]; then found=bash
  elif [[ $current == -* ]]; then found=$(_fewhead_options "$command")
  elif [[ $before == --* ]]; then found=$(_fewhead_values "$command $before")
  fi
  # Of several values with commas between them, the last one is completed.
  local first= line
  [[ $before == --* && $current == *,* ]] && first=${current%,*},
  while IFS= read -r line; do
    [[ -n $line && $first$line == "$current"* ]] || continue
    [[ ${COMP_WORDS[COMP_CWORD]} == [\"\']* ]] || line=${line// /\\ }
    COMPREPLY+=("$first$line")
  done <<<"$found"
}
complete -o default -F _fewhead fewhead ./fewhead
]=]

--- The script. cli: the module fewhead.cli.cli.
function M.bash(cli)
  local help = require "fewhead.cli.help"
  local options, values, names = {}, {}, {}
  for _, one in ipairs(M.tables(cli)) do
    local flags = {}
    for i, row in ipairs(one.rows) do
      flags[i] = row.flag
      local choices = choices_of(row)
      if choices and not FILES[row.kind_name] then
        values[#values + 1] = { key = one.words .. " " .. row.flag, text = printing(choices) }
      end
    end
    flags[#flags + 1] = "--help"
    options[#options + 1] = { key = one.words, text = printing(flags) }
  end
  for i, one in ipairs(help.experiments()) do names[i] = one.name end
  local parts = { OPTIONS = branches(options), VALUES = branches(values), COMMANDS = printing(cli.commands),
    EXPERIMENTS = printing(names) }
  return (SCRIPT:gsub("@(%u+)@", parts))
end

local usage = [[
usage: fewhead completion bash

Prints a script for bash that completes commands, experiments, options and values:  eval "$(fewhead completion bash)"
]]

--- The command. argv: a list of words; cli: the module fewhead.cli.cli. Returns the exit status.
function M.main(argv, cli)
  if argv[1] == "--help" or argv[1] == "-h" then
    io.stdout:write(usage)
    return 0
  end
  if argv[1] ~= "bash" or argv[2] then
    local got = argv[1] and args.show(argv[2] or argv[1]) or "nothing"
    exit.with(exit.USAGE, ("fewhead: completion: got %s, wanted bash"):format(got))
  end
  io.stdout:write(M.bash(cli))
  return 0
end

return M
