--- What commands that read records share.
-- The options --where, --skip-bad and --results, and the reading itself.
local axes = require "fewhead.record.axes"
local exit = require "fewhead.cli.exit"
local results = require "fewhead.report.results"

local M = {}

--- The shared options, to be added to a parser's list.
-- @value options
M.options = {
  { "--where", "FIELD=VALUE", "only records whose field has the value, or one of several with commas", repeated = true },
  { "--skip-bad", nil, "leave out lines that are no records, and name them" },
  { "--results", "DIR", "where the records of a commit or a run are looked for", default = "results" },
}

--- A parser's options: the list, then the shared ones.
function M.with(list)
  for _, row in ipairs(M.options) do list[#list + 1] = row end
  return list
end

--- End the command with one line where value is nil; else it.
function M.need(command, value, err, status)
  if not value then exit.with(status or exit.FAILED, ("fewhead: %s: %s"):format(command, err)) end
  return value
end

--- The filter that the options ask for.
function M.where(command, opt)
  local where, err = axes.parse_where(opt.where)
  return M.need(command, where, err and "--where: " .. err, exit.USAGE)
end

--- What fh.results finds by a name; lines that --skip-bad leaves out are named on stderr.
function M.read(command, name, opt)
  local found = M.need(command, results.read(name, { results = opt.results, skip_bad = opt.skip_bad }))
  for _, message in ipairs(found.skipped) do io.stderr:write(("fewhead: %s: left out: %s\n"):format(command, message)) end
  return found
end

--- The results of a name that the filter keeps.
function M.filtered(command, name, opt)
  local where = M.where(command, opt)
  local found, err = M.read(command, name, opt):filter(where)
  return M.need(command, found, err and "--where: " .. err, err ~= "no record fits" and exit.USAGE or nil)
end

return M
