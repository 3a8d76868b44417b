--- The library: a table whose modules load when they are first named.
--
--     local fh = require "fewhead"
--     local dev = assert(fh.open("cpu"))
--     print(fh.tensor(dev, "bf16", {4, 8, 512}):random{ seed = 1 })
local args = require "fewhead.base.arguments"

local M = {}

--- The rooms, lowest first: a module requires modules of its own room and of rooms before it, none of a later one. In each room
-- the modules that scripts use; the others are this library's own plumbing.
M._rooms = {
  { "base", { "arguments", "option", "ffi", "json", "npy", "table", "shell" } },
  { "device", { "path", "device", "tensor", "plan", "provider", "costs" } },
  { "case", { "preset", "pattern", "layout", "case", "problem" } },
  { "record", { "file", "record", "run", "store", "axes", "tags" } },
  { "measure", { "parity", "timing", "stats", "compare", "grid", "conformance", "chunk", "flips", "assert",
    "entrants", "blas" } },
  { "decide", { "axis", "sweep", "curve", "gate", "cost", "machine", "overlap", "layers", "score", "regret", "gate_table",
    "gate_bisect" } },
  { "serve", { "trace", "workload", "scheduler", "metrics", "engine", "calibrate", "published", "engine_preset", "serve",
    "engine_ab", "traffic", "prediction", "questions" } },
  { "report", { "source", "diff", "export", "gate_report", "race_report", "blas_report", "page", "pictures", "plot", "results",
    "bundle" } },
  { "cli", { "cli", "options", "interrupt", "progress", "experiment", "sweeper", "bench", "race", "serving", "info" } },
}

-- Their names in that order, and the room of each.
M._names, M._room = {}, {}
for _, room in ipairs(M._rooms) do
  for _, name in ipairs(room[2]) do
    M._names[#M._names + 1], M._room[name] = name, room[1]
  end
end

-- Modules that give objects of another one further methods, and are loaded with it: sweep:plot is drawn by a higher room.
local EXTENDED = { gate = { "decide.what_if", "report.sketch" }, sweep = { "report.sketch" } }

--- fh.device's open: `fh.open(name, options) -> dev | nil, err`.
function M.open(...)
  return require("fewhead.device.device").open(...)
end

return setmetatable(M, {
  __name = "fewhead library",
  __index = function(self, name)
    if name == "VERSION" then
      self.VERSION = require("fewhead.base.ffi").version
      return self.VERSION
    end
    if not M._room[name] then
      local near = args.nearest(name, M._names)
      error(("fewhead: no module %s;%s there are: %s"):format(args.show(name),
        near and (' did you mean "%s"?'):format(near) or "", table.concat(M._names, ", ")), 2)
    end
    self[name] = require(("fewhead.%s.%s"):format(M._room[name], name))
    for _, more in ipairs(EXTENDED[name] or {}) do require("fewhead." .. more) end
    local class = rawget(self[name], "class") -- of the objects that the module's calls return
    if class then require("fewhead.report.result").attach(name, class) end
    return self[name]
  end,
})
