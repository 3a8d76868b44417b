--- A chunk: some rows of a prompt on their way through all attention layers of a model, in the memory of a device, with the index
-- lists that the layers share.
--
--     local c = assert(chunk.build(dev, { preset = "v4.1-flash tp8", s_q = 16, pattern = "csa", layout = "vllm", seed = 0 }))
--     local run = assert(c:runner("packed"))
--     print(#c.layers, #c.lists, run())                 --> 40  9  0
--
-- Every layer has q, KV and outputs of its own, as far as the memory goes; every list is drawn anew. A path that works on plans
-- builds each list's plan once, before the first layer that uses it. On a GPU a chunk is one launch of a graph; a CPU does the
-- same one after another.
local case = require "fewhead.case.case"
local device = require "fewhead.device.device"
local graph = require "fewhead.device.graph"
local layout = require "fewhead.case.layout"
local parity = require "fewhead.measure.parity"
local paths = require "fewhead.device.path"
local pattern = require "fewhead.case.pattern"
local plan = require "fewhead.device.plan"
local preset = require "fewhead.case.preset"
local problem = require "fewhead.case.problem"
local stats = require "fewhead.measure.stats"
local tensor = require "fewhead.device.tensor"
local F = require "fewhead.base.ffi"

local M = {}

-- Memory of the device that a chunk may fill; beyond it layers take turns on the buffers there are.
local MEMORY_SHARE = 0.5
-- Streams of the seed that q and kv are drawn from, two for each set of buffers: above those of fh.pattern and
-- fewhead.problem.
local FIRST_STREAM = 32

-- What works on a plan: these paths, "auto", and "plans", which builds them and does nothing else.
local PLANNED = paths.planned()
local ON_PLANS = { auto = true, plans = true }
for _, path in ipairs(PLANNED) do ON_PLANS[path] = true end

-- Whether the device has one of those paths with so many heads.
local function plans_on(dev, h_q)
  for _, path in ipairs(PLANNED) do
    if dev:has_path(path, h_q) then return true end
  end
  return false
end

local Chunk = { __name = "chunk of layers" }
Chunk.__index = Chunk

-- The case of one list: its sizes and how it is drawn.
local function case_of(o, base, number, list)
  local c = {
    preset = base.name, s_q = o.s_q, prior = o.prior, layout = o.layout, seed = o.seed + number - 1,
    pattern = list.pattern or o.pattern, ratio = list.ratio, keep = o.keep, holes = 0,
  }
  if list.ratio == 0 then c.pattern, c.topk, c.window = "window", base.window, base.window end
  return case(pattern.fitting(c.pattern, c))
end

-- The lists of a case on the device: { indices =, topk_length = tensors, keys = int32_t[s_q] } | nil, err.
local function draw(c, dev)
  local lists = c:lists()
  local made = { keys = lists.keys }
  for key, shape in pairs { indices = { c.s_q, c.topk }, topk_length = { c.s_q } } do
    local t, err = tensor.new(dev, "i32", shape)
    local ok = t
    if t then ok, err = t:write(lists[key]) end
    if not ok then return nil, ("%s: %s"):format(key, err) end
    made[key] = t
  end
  return made
end

-- q, kv, attn_sink and outputs of one layer at a time: { inputs =, outputs =, bytes = } | nil, err.
local function make_buffers(self, number)
  local first, s_kv = self.lists[1].case, 0
  for _, list in ipairs(self.lists) do s_kv = math.max(s_kv, list.case.s_kv) end
  local sizes = {
    s_q = first.s_q, s_kv = s_kv, h_q = first.h_q, h_pad = first.h_pad, d_qk = first.d_qk, d_v = first.d_v, topk = 0,
    attn_sink = first.sink ~= "none",
  }
  local inputs, err = layout.make(first.layout, self.device, sizes)
  if not inputs then return nil, err end
  sizes.attn_sink = nil
  local outputs
  outputs, err = layout.outputs(first.layout, self.device, sizes)
  if not outputs then return nil, err end
  local bytes, stream = 0, FIRST_STREAM + 2 * number
  for _, t in pairs(inputs) do bytes = bytes + t.storage.bytes end
  for _, name in ipairs { "out", "lse", "max_logits" } do bytes = bytes + outputs[name].storage.bytes end
  for i, name in ipairs { "q", "kv", "attn_sink" } do
    local t, ok = inputs[name], true
    if t then ok, err = t:random { dist = "normal", seed = self.seed, stream = stream + i % 2 } end
    if not ok then return nil, ("%s: %s"):format(name, err) end
  end
  return { inputs = inputs, outputs = outputs, bytes = bytes }
end

-- The problem of a list on one set of buffers.
local function problem_of(self, list, buffers)
  local c, slices = list.case, {}
  for name, rows in pairs { q = c.s_q, kv = c.s_kv, attn_sink = c.h_q } do
    local t = buffers.inputs[name]
    if t then slices[name] = t:slice(1, 1, rows) end
  end
  slices.indices, slices.topk_length = list.indices:slice(1, 1, c.s_q), list.topk_length:slice(1, 1, c.s_q)
  -- calls run in turn: one workspace serves them all
  return problem.wrap(c, self.device, slices, list.keys, self.layers[#self.layers] and self.layers[#self.layers].problem)
end

-- The plan of a list, where the device has a path that works on one, and what builds it again for each path: true | nil, err.
local function add_plan(self, list)
  if not plans_on(self.device, list.case.h_q) then return true end
  list.problem = problem_of(self, list, self.buffers[1]) -- what the plan reads
  local err
  list.plan, err = plan.build(list.problem)
  if not list.plan then return nil, err end
  list.rebuild = {}
  for path in pairs(ON_PLANS) do
    list.rebuild[path], err = list.plan:rebuilder(list.problem, path == "plans" and PLANNED[1] or path)
    if not list.rebuild[path] then return nil, err end
  end
  return true
end

-- How many layers can have buffers of their own beside what is there already.
local function buffers_that_fit(self)
  local memory, used = self.device:info().memory_bytes, 0
  if memory == 0 then return math.huge end -- not known
  for _, list in ipairs(self.lists) do
    used = used + list.indices.storage.bytes + (list.plan and list.plan.memory.storage.bytes or 0)
  end
  return math.max(1, math.floor((memory * MEMORY_SHARE - used) / self.buffers[1].bytes))
end

-- Lists, plans, buffers and layers of a chunk: true | nil, err.
local function fill(self, o, base)
  local ok, err
  for i, list in ipairs(base.lists) do
    local c = case_of(o, base, i, list)
    self.lists[i], err = draw(c, self.device)
    if not self.lists[i] then return nil, err end
    self.lists[i].case, self.lists[i].ratio, self.lists[i].layers = c, list.ratio, {}
  end
  self.buffers[1], err = make_buffers(self, 1)
  if not self.buffers[1] then return nil, err end
  for _, list in ipairs(self.lists) do
    ok, err = add_plan(self, list)
    if not ok then return nil, err end
  end
  local count = math.min(o.buffers or base.layers, base.layers, buffers_that_fit(self))
  for i = 2, count do
    self.buffers[i], err = make_buffers(self, i)
    if not self.buffers[i] then return nil, err end
  end
  for i, list in ipairs(self.lists) do
    for k = 1, base.lists[i].layers do
      local number = #self.layers + 1
      local buffers = self.buffers[(number - 1) % count + 1]
      local layer = { number = number, problem = problem_of(self, list, buffers), outputs = buffers.outputs }
      self.layers[number], list.layers[k] = layer, layer
    end
  end
  return true
end

--- Lists, plans and layers in the memory of a device, nothing run. Options: preset, s_q, pattern ("local" or "csa"), layout,
-- seed, all to be given; prior, keep (as fh.case has them) and buffers, how many layers have q, KV and outputs of their own at
-- most: all that fit in half of the device's memory. Returns an object with .lists = { { ratio =, case =, plan = nil where
-- the device has no path that works on one, layers = { .. } }, .. }, .layers = { { number =, problem =, outputs = }, .. } and
-- .buffers; or nil, err.
function M.build(dev, o)
  device.check("chunk.build: device", dev)
  local base = preset.get(o.preset)
  local self = setmetatable({ device = dev, seed = o.seed, lists = {}, buffers = {}, layers = {}, graphs = {} }, Chunk)
  local ok, err = fill(self, o, base)
  if ok then return self end
  self:free()
  return nil, err
end

-- The plan that a path works on with a list, nil where it has none.
local function plan_for(path, list) return ON_PLANS[path] and list.plan or nil end

--- Whether a path works on plans here, so that a chunk builds them.
function Chunk:has_plans(path) return plan_for(path, self.lists[1]) ~= nil end

--- What the chunk is on a path, in order: functions that return an fh_status. path: those of a problem, or "plans", their
-- building alone; number: of that list alone, counted from 1. Beside them what each step is: { list = its number, layer = its
-- number, nil for the building of the list's plan }. nil and the library's message when it refuses a call.
function Chunk:steps(path, number)
  local steps, what = {}, {}
  local function add(step, list, layer) steps[#steps + 1], what[#what + 1] = step, { list = list, layer = layer } end
  for i, list in ipairs(self.lists) do
    if not number or i == number then
      local shared = plan_for(path, list)
      if shared then add(list.rebuild[path], i) end
      for _, layer in ipairs(path == "plans" and {} or list.layers) do
        local step, err = layer.problem:runner(path, layer.outputs, { plan = shared })
        if not step then return nil, ("layer %d: %s"):format(layer.number, err) end
        add(step, i, layer.number)
      end
    end
  end
  return steps, what
end

-- How often each step of a timeline is timed: its figure is the median.
local TIMELINE_PASSES = 3

--- How long each step of the chunk takes on a path, one by one with a wait between them: { { list =, layer = nil for a plan,
-- ratio = of the list, us = median of 3 passes }, .. } in order | nil, err. watch: timing.stopwatch of the device. On a GPU a
-- step alone also has its launch, so the sum is above the time of the chunk in one launch.
function Chunk:timeline(path, watch)
  local steps, what = self:steps(path)
  if not steps then return nil, what end
  local samples = {}
  for pass = 1, TIMELINE_PASSES do
    for i, step in ipairs(steps) do
      local us, status = watch(step)
      local ok, err = F.check(status)
      if not ok then return nil, err end
      samples[i] = samples[i] or {}
      samples[i][pass] = us
    end
  end
  for i, step in ipairs(what) do step.ratio, step.us = self.lists[step.list].ratio, stats.median(samples[i]) end
  return what
end

-- One step after the other, to the first that fails.
local function sequence(steps)
  return function()
    for i = 1, #steps do
      local status = steps[i]()
      if status ~= 0 then return status end
    end
    return 0
  end
end

--- A function that does the chunk on a path and returns an fh_status: what gets timed. nil, message when it cannot.
function Chunk:runner(path)
  local steps, err = self:steps(path)
  if not steps then return nil, err end
  local run = sequence(steps)
  if self.device.kind == "cpu" then return run end
  local recorded
  recorded, err = graph.record(self.device, function() return F.check(run()) end)
  if not recorded then return nil, err end
  recorded.steps = steps -- a graph does not keep alive what its calls point to
  self.graphs[#self.graphs + 1] = recorded
  return function() return recorded:launch() end
end

-- Run something and wait for it: true | nil, err.
local function finish(self, run)
  local ok, err = F.check(run())
  if ok then ok, err = self.device:synchronize() end
  return ok, err
end

--- The oracle's answers for the last layer of each list, as far as it gives them in the time of `flops` (parity.affordable_rows)
-- in all: a list, for check() | nil, err.
function Chunk:answers(flops)
  local wants = {}
  for i, list in ipairs(self.lists) do
    local asked = list.layers[#list.layers].problem
    local want, err = parity.expected(asked, { sample = parity.affordable_rows(asked, flops / #self.lists) })
    if not want then return nil, err end
    wants[i] = want
  end
  return wants
end

--- What the chunk by run(), a runner of `path`, gives: the last layer of each list against its answer in wants. Where a later
-- layer has used the same buffers, that list is run again alone. Returns a list of parity's results | nil, err.
function Chunk:check(path, run, wants)
  for _, buffers in ipairs(self.buffers) do
    local ok, err = buffers.outputs:poison()
    if not ok then return nil, err end
  end
  local ok, err = finish(self, run)
  local results = {}
  for i = #self.lists, 1, -1 do -- the last first: running a list again spoils what comes after it
    local list = self.lists[i]
    local last = list.layers[#list.layers]
    if ok and last.number + #self.buffers <= #self.layers then
      ok, err = last.outputs:poison()
      if ok then ok, err = finish(self, sequence(assert(self:steps(path, i)))) end
    end
    if not ok then return nil, err end
    results[i] = parity.judge(last.problem, last.outputs, wants[i])
  end
  return results
end

--- The kernels that run the lists of the chunk on a path, each once: "sm90 gather" | nil, err. Runs one layer of each list.
function Chunk:kernels(path)
  local names, seen = {}, {}
  for _, list in ipairs(self.lists) do
    local last = list.layers[#list.layers]
    local work, err = last.problem:run(path, last.outputs, { plan = plan_for(path, list) })
    if not work then return nil, err end
    local kernel = work.kernel
    if kernel and not seen[kernel] then names[#names + 1], seen[kernel] = kernel, true end
  end
  return table.concat(names, ", ")
end

--- How many groups a path packs, and of how many, in the plans that it builds, each counted once | nil, err.
function Chunk:packed_groups(path)
  local packed, groups = 0, 0
  for _, list in ipairs(self.lists) do
    local own = plan_for(path, list)
    if own then
      local ok, err = finish(self, list.rebuild[path])
      if not ok then return nil, err end
      packed, groups = packed + own.groups - own:unpacked(), groups + own.groups
    end
  end
  return packed, groups
end

--- What the lists are, those of one kind together: { { ratio =, layers = of each list, lists =, topk =, s_kv =, and where there
-- are plans union_per_group = entries of a group's union, dedup = keys that an entry serves }, .. }.
function Chunk:kinds()
  local kinds, at, sums = {}, {}, {}
  for _, list in ipairs(self.lists) do
    local key = list.ratio .. "x" .. #list.layers
    if not at[key] then
      kinds[#kinds + 1] = { ratio = list.ratio, layers = #list.layers, lists = 0, topk = list.case.topk, s_kv = list.case.s_kv }
      at[key], sums[#kinds] = #kinds, { entries = 0, keys = 0, groups = 0 }
    end
    local kind, sum = kinds[at[key]], sums[at[key]]
    kind.lists = kind.lists + 1
    if list.plan then
      local found = list.plan:stats()
      sum.entries, sum.keys = sum.entries + found.entries, sum.keys + found.keys
      sum.groups = sum.groups + list.plan.groups
    end
  end
  for i, sum in ipairs(sums) do
    if sum.groups > 0 then
      kinds[i].union_per_group, kinds[i].dedup = sum.entries / sum.groups, sum.entries > 0 and sum.keys / sum.entries or 1
    end
  end
  return kinds
end

--- Give the memory back; twice does nothing.
function Chunk:free()
  for _, made in ipairs(self.graphs) do made:free() end
  for _, layer in ipairs(self.layers) do layer.problem:free() end
  for _, list in ipairs(self.lists) do
    if list.problem then list.problem:free() end
    if list.plan then list.plan:free() end
    list.indices:free()
    list.topk_length:free()
  end
  for _, buffers in ipairs(self.buffers) do
    for _, t in pairs(buffers.inputs) do t:free() end
    buffers.outputs:free()
  end
end

return M
