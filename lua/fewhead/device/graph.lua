--- A graph: what a device's stream was given once, to be given again in one launch: many calls without the host's share of them.
--
--     local graph = require "fewhead.device.graph"
--     local two = assert(graph.record(dev, function() return F.check(first()) and F.check(second()) end))
--     two:launch() two:free()
--
-- A GPU records; a CPU refuses. What the recorded calls point to is the recorder's to keep.
local ffi = require "ffi"
local args = require "fewhead.base.arguments"
local device = require "fewhead.device.device"
local F = require "fewhead.base.ffi"

local C = F.C

local M = {}

local Graph = { __name = "graph" }
Graph.__index = Graph

--- Record on the device's own stream what give() gives it: calls and plans, which do not run. give returns true, or nil and why
-- not. Returns a graph | nil, that reason or the library's.
function M.record(dev, give)
  device.check("graph.record: device", dev)
  if type(give) ~= "function" then error(("graph.record: give: got %s, wanted a function"):format(args.show(give)), 2) end
  local box = ffi.gc(ffi.new("fh_graph *[1]"), C.fh_graph_free)
  local ok, err = F.check(C.fh_graph_begin(dev.handle, nil))
  if not ok then return nil, err end
  ok, err = give()
  local ended, end_err = F.check(C.fh_graph_end(dev.handle, nil, box)) -- whatever happened: the stream must not stay recording
  if not ok or not ended then return nil, err or end_err end
  return setmetatable({ box = box }, Graph)
end

--- Run all of it, in order; returns an fh_status at once.
function Graph:launch() return C.fh_graph_launch(self.box[0], nil) end

--- Give the graph back; twice does nothing.
function Graph:free() C.fh_graph_free(self.box) end

return M
