--- The library: a table whose modules load when they are first named.
--
--     local fh = require "fewhead"
--     local dev = assert(fh.open("cpu"))
--     print(fh.tensor(dev, "bf16", {4, 8, 512}):random{ seed = 1 })
local args = require "fewhead.args"

local M = {}

--- Every module that scripts use, in the order a reader meets them. (The others are this library's own plumbing.)
M._names = {
  "device", "tensor", "preset", "pattern", "layout", "case", "problem", "plan", "gate", "parity", "grid", "timing", "stats",
  "peer", "compare", "bench", "chunk", "layers", "overlap", "machine", "axis", "sweep", "curve", "cost", "trace", "score",
  "report", "gate_report", "plot", "json", "npy", "run", "cli", "args", "ffi",
}

local is_name = {}
for _, name in ipairs(M._names) do is_name[name] = true end

--- fewhead.device's open: `fh.open(name, options) -> dev | nil, err`.
function M.open(...)
  return require("fewhead.device").open(...)
end

return setmetatable(M, {
  __name = "fewhead library",
  -- VERSION, "0.1.0", is that of the header and so of the library, whose load checks that they agree.
  __index = function(self, name)
    if name == "VERSION" then
      local v = require("fewhead.ffi").C.FH_VERSION
      self.VERSION = ("%d.%d.%d"):format(math.floor(v / 10000), math.floor(v / 100) % 100, v % 100)
      return self.VERSION
    end
    if not is_name[name] then
      local near = args.nearest(name, M._names)
      error(("fewhead: no module %s;%s there are: %s"):format(args.show(name),
        near and (' did you mean "%s"?'):format(near) or "", table.concat(M._names, ", ")), 2)
    end
    self[name] = require("fewhead." .. name)
    return self[name]
  end,
})
