--- A problem: a case in the memory of a device, with all that a call points to.
--
--     local p = assert(case:problem(dev))
--     local outputs = assert(p:outputs())
--     print(assert(p:run("gather", outputs)).executed_flops, p:intact(outputs))
--
-- Fields: case, device; q, kv, indices, topk_length, attn_sink, cu_seqlens_q (tensors, the last three nil where the call has
-- none; cu_seqlens_q, i32 [requests + 1], with a case's `boundaries`); s_q, the rows of this problem; valid_keys, the keys of
-- all rows that are valid; useful_flops = 2 * h_q * (d_qk + d_v) * valid_keys.
--
-- A problem owns its tensors and workspace, a caller the outputs it asked for. free() gives the memory back at once and is safe
-- twice; what is dropped the collector finds. Calls and runners keep alive what they point to.
local bit = require "bit"
local ffi = require "ffi"
local args = require "fewhead.base.arguments"
local cost_tables = require "fewhead.device.costs"
local graph = require "fewhead.device.graph"
local layout = require "fewhead.case.layout"
local pattern = require "fewhead.case.pattern"
local paths = require "fewhead.device.path"
local providers = require "fewhead.device.provider"
local tensor = require "fewhead.device.tensor"
local F = require "fewhead.base.ffi"

local C = F.C

local M = {}

local Problem = { __name = "problem" }
Problem.__index = Problem

--- Streams of the case's seed; fh.pattern has those below 16.
local STREAM = { q = 16, kv = 17, attn_sink = 18, sink_kind = 19, constant = 20 }

-- FlashMLA's test inputs: normals of this deviation plus a constant within this of 0, the same for a whole tensor. (Clamped to
-- +-10, which no such number reaches: the generator's normals stay within 4.9 deviations.)
local FLASHMLA_SD, FLASHMLA_CONSTANT = 0.1, 0.05
-- The share of heads whose sink is -inf, and the same share +inf.
local FLASHMLA_INFINITE = 0.31

-- `count` numbers in 0 .. 1 from a stream of the seed.
local function draws(seed, stream, count)
  local words, list = ffi.new("uint32_t[?]", count), {}
  C.fh_random_u32(seed, stream, 0, count, words)
  for i = 1, count do list[i] = words[i - 1] / 2^32 end
  return list
end

local function fill_sink(case, sink)
  local ok, err = sink:random { dist = "normal", seed = case.seed, stream = STREAM.attn_sink }
  if not ok or case.sink ~= "flashmla" then return ok, err end
  for h, u in ipairs(draws(case.seed, STREAM.sink_kind, case.h_q)) do
    local v = u < FLASHMLA_INFINITE and -math.huge or u < 2 * FLASHMLA_INFINITE and math.huge or nil
    if v then ok, err = sink:set(h, v) end
    if not ok then return nil, err end
  end
  return true
end

-- Every element of the inputs, or nil, err.
local function fill(case, inputs, lists)
  local q, kv = { mean = 0, sd = 1 }, { mean = 0, sd = 1 }
  if case.values == "flashmla" then
    local u = draws(case.seed, STREAM.constant, 2)
    q = { mean = FLASHMLA_CONSTANT * (2 * u[1] - 1), sd = FLASHMLA_SD }
    kv = { mean = FLASHMLA_CONSTANT * (2 * u[2] - 1), sd = FLASHMLA_SD }
  end
  local scale = case.scale_q
  local steps = {
    function()
      return inputs.q:random { dist = "normal", seed = case.seed, stream = STREAM.q, mean = scale * q.mean, sd = scale * q.sd }
    end,
    function() return inputs.kv:random { dist = "normal", seed = case.seed, stream = STREAM.kv, mean = kv.mean, sd = kv.sd } end,
    function() return inputs.indices.numel == 0 or inputs.indices:write(lists.indices) end,
    function() return not inputs.topk_length or inputs.topk_length.numel == 0 or inputs.topk_length:write(lists.topk_length) end,
    function() return not inputs.attn_sink or fill_sink(case, inputs.attn_sink) end,
  }
  for _, step in ipairs(steps) do
    local ok, err = step()
    if not ok then return nil, err end
  end
  return true
end

local function sizes(case, s_q, more)
  local s = {
    s_q = s_q, s_kv = case.s_kv, h_q = case.h_q, h_pad = case.h_pad, d_qk = case.d_qk, d_v = case.d_v, topk = case.topk,
    lse = case.lse, max_logits = case.max_logits,
  }
  for key, v in pairs(more) do s[key] = v end
  return s
end

local INPUTS = { "q", "kv", "indices", "topk_length", "attn_sink", "cu_seqlens_q" }

-- Where the requests of a geometry begin, and where the last one ends.
local function offsets(dev, geometry)
  local list = geometry.offsets or { 0 }
  for r, rows in ipairs(geometry.offsets and {} or geometry.requests) do list[r + 1] = list[r] + rows end
  local tensor_of, err = tensor.new(dev, "i32", { #list })
  if not tensor_of then return nil, err end
  local host = ffi.new("int32_t[?]", #list)
  for i, offset in ipairs(list) do host[i - 1] = offset end
  local ok
  ok, err = tensor_of:write(host)
  if not ok then return nil, err end
  return tensor_of
end

-- keys: int32_t[s_q], the valid keys of each row.
local function new(case, dev, inputs, keys, s_q, output_layout)
  local valid = 0
  for i = 0, s_q - 1 do valid = valid + keys[i] end
  local self = {
    case = case, device = dev, s_q = s_q, keys = keys, output_layout = output_layout, workspace_bytes = 0,
    valid_keys = valid, useful_flops = 2 * case.h_q * (case.d_qk + case.d_v) * valid,
  }
  for _, key in ipairs(INPUTS) do self[key] = inputs[key] end
  return setmetatable(self, Problem)
end

--- For fh.case: the case, what pattern.resolve made of it, and a device. Returns nil, err when there is no memory for it.
function M.build(case, geometry, dev)
  local lists = pattern.draw(geometry)
  local inputs, err = layout.make(case.layout, dev,
    sizes(case, case.s_q, { topk_length = lists.topk_length ~= nil, attn_sink = case.sink ~= "none" }))
  if not inputs then return nil, err end
  if case.boundaries then inputs.cu_seqlens_q, err = offsets(dev, geometry) end
  local self = new(case, dev, inputs, lists.keys, case.s_q, case.layout)
  if case.boundaries and not self.cu_seqlens_q then
    self:free()
    return nil, err
  end
  local ok
  ok, err = fill(case, inputs, lists)
  if not ok then
    self:free()
    return nil, err
  end
  self.geometry = geometry
  return self
end

--- A problem on memory that is there: a layer's q and kv beside lists that other layers share. inputs = { q =, kv =, indices =,
-- topk_length =, attn_sink = }, tensors of the case's sizes (the last two nil where the call has none), which the problem takes
-- over: pass slices of what is to stay. keys = int32_t[s_q], the valid keys of each row, as pattern.draw gives them. workspace: a
-- problem whose workspace this one uses too, because their calls run in turn.
function M.wrap(case, dev, inputs, keys, workspace)
  local self = new(case, dev, inputs, keys, case.s_q, case.layout)
  if workspace then self.workspace, self.workspace_bytes = workspace.workspace, workspace.workspace_bytes end
  return self
end

local function check(self, name)
  if getmetatable(self) ~= Problem then
    error(("problem:%s: got %s, wanted a problem: a method is called with a colon"):format(name, args.show(self)), 3)
  end
  if self.freed then error(("problem:%s: used after free()"):format(name), 3) end
end

--- Fresh outputs in the case's layout, every byte 0xFF (fh.layout): out, lse and max_logits as the case asks for them,
-- with outputs:poison() and outputs:free(). { float32 = true } makes out f32, for the reference. nil, err without memory.
function Problem:outputs(options)
  check(self, "outputs")
  local o = args.options("problem:outputs", options, { "float32" })
  local float32 = args.boolean("problem:outputs: float32", args.given(o.float32, false))
  local outputs, err = layout.outputs(self.output_layout, self.device, sizes(self.case, self.s_q, { float32 = float32 }))
  return outputs, err
end

--- Whether a call left everything around its outputs as it was. Returns true, or nil and the first place that was written.
function Problem:intact(outputs)
  check(self, "intact")
  local ok, err = layout.intact(outputs)
  return ok, err
end

-- ---- What others may have done to the inputs --------------------------------------------------------------------------------

local CHUNK_BYTES = 2^20 -- of a buffer that are on the host at a time
local HASH_START, HASH_FACTOR = 0xcbf29ce484222325ULL, 0x100000001b3ULL -- FNV-1a, over words instead of bytes

-- 64 bits that tell one content of a tensor's whole buffer from another, what lies between and around the elements included.
local function checksum(t)
  local total, host = tonumber(t.storage.bytes), ffi.new("uint64_t[?]", CHUNK_BYTES / 8)
  local hash = HASH_START
  for first = 0, total - 1, CHUNK_BYTES do
    local bytes = math.min(CHUNK_BYTES, total - first)
    host[math.floor((bytes - 1) / 8)] = 0 -- a last word that is not read as a whole
    local ok, err = t:read_bytes(first, bytes, host)
    if not ok then error(err, 0) end
    for i = 0, math.ceil(bytes / 8) - 1 do
      hash = bit.bxor(hash, host[i]) * HASH_FACTOR
      hash = bit.bxor(hash, bit.rshift(hash, 32))
    end
  end
  return bit.tohex(hash)
end

--- Checksums of the inputs' memory by name, 16 hexadecimal digits each: whether somebody wrote to it. Raises when it cannot be
-- read.
function Problem:checksums()
  check(self, "checksums")
  local sums = {}
  for _, key in ipairs(INPUTS) do
    if self[key] then sums[key] = checksum(self[key]) end
  end
  return sums
end

--- Make the inputs anew, as case:problem() made them, after somebody wrote to them. Calls and runners that are there keep the old
-- ones. true | nil, err, without memory for them. For problems of case:problem() alone.
function Problem:renew()
  check(self, "renew")
  if not self.geometry then error("problem:renew: got a problem on memory of others, wanted one of case:problem()", 2) end
  local made, err = M.build(self.case, self.geometry, self.device)
  if not made then return nil, err end
  for _, key in ipairs(INPUTS) do self[key] = made[key] end
  return true
end

-- ---- Calls ------------------------------------------------------------------------------------------------------------------

-- What a call points to, for as long as the call lives.
local anchors = setmetatable({}, { __mode = "k" })

-- Paths that fetch the entries of a plan.
local ON_PLANS = {}
for _, name in ipairs(paths.planned()) do ON_PLANS[name] = true end

local CALL_OPTIONS = { "plan", "row_invariant", "group", "costs" }
-- Queries of a packed group; the library says which go with the heads.
local MAX_GROUP = 64

-- An output has no stride for its last dimension: there its elements lie side by side.
local function check_output(what, t, dtypes, shape, level)
  local is_tensor = type(t) == "table" and type(t.shape) == "table"
  local fits = is_tensor and #t.shape == #shape and (t.stride[#shape] == 1 or shape[#shape] < 2)
  for i, n in ipairs(shape) do fits = fits and t.shape[i] == n end
  local is_dtype = false
  for _, dtype in ipairs(dtypes) do is_dtype = is_dtype or is_tensor and t.dtype == dtype end
  if not (fits and is_dtype) then
    local got = is_tensor and ("%s [%s] stride [%s]"):format(t.dtype, table.concat(t.shape, ", "), table.concat(t.stride, ", "))
    error(("%s: got %s, wanted %s [%s], the last dimension contiguous"):format(what, got or args.show(t),
      table.concat(dtypes, " or "), table.concat(shape, ", ")), level + 1)
  end
end

-- The call without workspace; a provider's has no path. level counts as error()'s does, from the function that calls this one.
local function describe(self, what, path, outputs, o, level)
  local provider = providers.is(path) and providers.handle(what .. ": path", path, level + 1)
  if not provider then paths.check(what .. ": path", path, level + 1) end
  o = args.options(what, o, CALL_OPTIONS, level + 1)
  local case, s_q = self.case, self.s_q
  local call = ffi.new("fh_call")
  C.fh_call_init(call, ffi.sizeof(call), s_q, case.s_kv, case.h_q, case.d_qk, case.topk)
  call.path, call.h_pad, call.sm_scale = provider and C.FH_AUTO or F.paths[path], case.h_pad, case.sm_scale
  if o.row_invariant ~= nil then
    call.row_invariant = args.boolean(what .. ": row_invariant", o.row_invariant, level + 1) and 1 or 0
  end
  if o.group ~= nil then call.group = args.integer(what .. ": group", o.group, 0, MAX_GROUP, level + 1) end
  if o.plan ~= nil then
    if type(o.plan) ~= "table" or not ffi.istype("fh_plan", o.plan.struct) then
      error(("%s: plan: got %s, wanted a plan, such as plan.build gives"):format(what, args.show(o.plan)), level + 1)
    end
    if o.plan.freed then error(("%s: plan: used after free()"):format(what), level + 1) end
    call.plan = o.plan.struct
    if o.group == nil then call.group = o.plan.group end
  end

  local costs = o.costs ~= nil and cost_tables.struct(what .. ": costs", o.costs, level + 1) or nil
  if costs then call.costs = costs end

  local q, kv, indices = self.q, self.kv, self.indices
  call.q, call.q_stride_s, call.q_stride_h = q:data(), q.stride[1], q.stride[2]
  call.kv, call.kv_stride = kv:data(), kv.stride[1]
  call.indices, call.indices_stride = indices:data(), indices.stride[1]
  if self.topk_length then call.topk_length = self.topk_length:data() end
  if self.attn_sink then call.attn_sink = self.attn_sink:data() end
  if self.cu_seqlens_q then
    call.cu_seqlens_q, call.requests = self.cu_seqlens_q:data(), self.cu_seqlens_q.numel - 1
  end
  if outputs ~= nil then
    args.table(what .. ": outputs", outputs, level + 1)
    if not outputs.out then error(("%s: outputs.out: got nil, wanted a tensor"):format(what), level + 1) end
    check_output(what .. ": outputs.out", outputs.out, { "bf16", "f32" }, { s_q, case.h_q, case.d_v }, level + 1)
    local out = outputs.out
    call.out, call.out_stride_s, call.out_stride_h = out:data(), out.stride[1], out.stride[2]
    call.out_dtype = F.dtypes[out.dtype]
    for _, key in ipairs { "lse", "max_logits" } do
      local t = outputs[key]
      if t then
        check_output(("%s: outputs.%s"):format(what, key), t, { "f32" }, { s_q, case.h_q }, level + 1)
        call[key], call[key .. "_stride"] = t:data(), t.stride[1]
      end
    end
  end
  anchors[call] = { self, outputs, o.plan, q, kv, indices, self.topk_length, self.attn_sink, self.cu_seqlens_q, costs = costs }
  return call
end

--- The call without a workspace: for plans, and to ask what it would need. As call(), but outputs may be nil.
function Problem:bare_call(path, outputs, options)
  check(self, "bare_call")
  local call = describe(self, "problem:bare_call", path, outputs, options, 2)
  return call
end

local LINE_BYTES = 2048 -- more than any line of fh_explain

--- What path "auto" makes of the problem and why, in one line of the library (fh_explain): what it takes, the expected
-- microseconds of each path, what a plan would cost, and where the costs are from. Options as problem:call's. nil, err when the
-- call is refused.
function Problem:explain(options)
  check(self, "explain")
  local call = describe(self, "problem:explain", "auto", nil, options, 2)
  local line = ffi.new("char[?]", LINE_BYTES)
  local ok, err = F.check(C.fh_explain(self.device.handle, call, line, LINE_BYTES))
  if not ok then return nil, err end
  return ffi.string(line)
end

-- Point the call to a workspace that is large enough. The one of this problem grows to the largest that was asked for; a call
-- keeps the one it was given. Returns the call, or nil, err.
local function with_workspace(self, path, call)
  local needed, err
  if providers.is(path) then needed, err = path:workspace_bytes(self.device, call)
  else
    local bytes = ffi.new("uint64_t[1]")
    needed, err = F.check(C.fh_workspace_bytes(self.device.handle, call, bytes))
    needed = needed and tonumber(bytes[0])
  end
  if not needed then return nil, err end
  if needed > self.workspace_bytes then
    local memory
    memory, err = tensor.new(self.device, "i32", { math.ceil(needed / ffi.sizeof("int32_t")) })
    if not memory then return nil, "workspace: " .. err end
    self.workspace, self.workspace_bytes = memory, needed
  end
  if needed > 0 then
    call.workspace, call.workspace_bytes = self.workspace:data(), needed
    anchors[call].workspace = self.workspace
  end
  return call
end

local function ready(self, what, path, outputs, options, level)
  local call = describe(self, what, path, outputs, options, level + 1)
  if outputs == nil then
    error(("%s: outputs: got nil, wanted outputs, such as problem:outputs() gives"):format(what), level + 1)
  end
  return with_workspace(self, path, call)
end

--- An fh_call that is ready to run, workspace included; what it points to lives as long as it does. outputs: of outputs(), or
-- tensors { out = [s_q, h_q, d_v], lse = and max_logits = [s_q, h_q] }. path: "auto", "reference",
-- "padded", "gather", "packed", or a provider (fh.provider). Options: plan (packed: of fh.plan; also decides group),
-- row_invariant (auto never packs), group (packed: queries of a group, 0 or left out = as many as fill a tile), costs (auto: what
-- it compares paths by, as fh.costs takes them). nil, err when the library refuses the call.
function Problem:call(path, outputs, options)
  check(self, "call")
  local call, err = ready(self, "problem:call", path, outputs, options, 2)
  return call, err
end

-- What a provider did in a run of the job, as far as it says.
local function work_of(self, job)
  local listed = self.s_q * self.case.topk
  local share = self.device.kind == "cuda" and listed > 0 and self.valid_keys / listed or 1
  local executed = job:executed_flops()
  return {
    path = job.provider.name, rows = self.s_q, useful_flops = self.useful_flops,
    executed_flops = executed > 0 and math.floor(executed * share + 0.5) or nil,
  }
end

local function run_provider(self, provider, call)
  local job, err = provider:prepare(self.device, call)
  if not job then return nil, err end
  local ok, work
  ok, err = provider:check(job.run())
  if ok then ok, err = job:collect() end
  if ok then ok, err = self.device:synchronize() end
  if ok then work = work_of(self, job) end
  job:free()
  if not ok then return nil, err, true end
  return work
end

--- Run once. Returns { path = what really ran, "gather+packed" where both did, rows =, by_path = { [path] = its rows },
-- kernel = the kernel that ran, "sm90 packed + sm90 gather" where two shared the rows (nil for a provider), useful_flops =,
-- executed_flops =, bytes = } | nil, the library's message. On a GPU, whose library counts every list as full and no key as
-- shared, the last three are that times the share of the lists that is valid keys; for packed on a given plan the last
-- two are that times the share that its entries are instead; where the device shared the rows out itself, path is "auto" and the
-- last two are nil. A provider's work has no bytes, and executed_flops only where the provider tells them; one that fails while
-- it runs gives true as third result.
function Problem:run(path, outputs, options)
  check(self, "run")
  local call, err = ready(self, "problem:run", path, outputs, options, 2)
  if not call then return nil, err end
  if providers.is(path) then
    local work, failure, failed = run_provider(self, path, call)
    return work, failure, failed
  end
  local counters = ffi.new("fh_counters")
  counters.struct_size = ffi.sizeof(counters)
  call.counters = counters
  local ok
  ok, err = F.check(C.fh_sparse_fwd(self.device.handle, call))
  if ok then ok, err = self.device:synchronize() end
  if not ok then return nil, err end
  local ran, rows, by_path = {}, 0, {}
  for number = 0, #F.path_names do
    local n = tonumber(counters.rows[number])
    if n > 0 then ran[#ran + 1], rows, by_path[F.path_names[number]] = F.path_names[number], rows + n, n end
  end
  local work = { path = ran[1] and table.concat(ran, "+") or path, rows = rows, by_path = by_path,
    kernel = ffi.string(counters.kernel) }
  local listed, useful, fetched = rows * self.case.topk, 1, 1
  if self.device.kind == "cuda" and listed > 0 then
    useful = self.valid_keys / listed
    fetched = ON_PLANS[work.path] and options and options.plan and options.plan:stats().entries / listed or useful
  end
  for key, share in pairs { useful_flops = useful, executed_flops = fetched, bytes = fetched } do
    work[key] = math.floor(tonumber(counters[key]) * share + 0.5)
  end
  if work.path == "auto" then work.executed_flops, work.bytes = nil, nil end
  return work
end

local function nothing() end

--- A function that runs the call once, with nothing else in it, and returns its fh_status: what gets timed. Everything that the
-- call would be refused for is checked here, and a provider prepares. The second result gives back at once what was made for it;
-- after that it must not run. The third, of a provider alone, brings the results of the last run to the outputs: true | nil, err.
-- Returns nil and the library's message when the call is refused.
function Problem:runner(path, outputs, options)
  check(self, "runner")
  local call, err = ready(self, "problem:runner", path, outputs, options, 2)
  if not call then return nil, err end
  if providers.is(path) then
    local job
    job, err = path:prepare(self.device, call)
    if not job then return nil, err end
    return job.run, function() job:free() end, function()
      local ok, why = job:collect()
      return ok, why
    end
  end
  local handle = self.device.handle
  local ok
  ok, err = F.check(C.fh_call_check(handle, call))
  if not ok then return nil, err end
  return function() return C.fh_sparse_fwd(handle, call) end, nothing
end

--- Record `count` calls, one after the other, to be run by one launch (fewhead.device.graph): on a GPU, the time of many calls
-- without the host's share. outputs and options as problem:call's. Returns the graph | nil, the library's message; a CPU records
-- nothing, and a provider's calls are not recorded.
function Problem:graph(path, outputs, count, options)
  check(self, "graph")
  if providers.is(path) then return nil, "a provider's calls are not recorded in graphs" end
  args.integer("problem:graph: count", count, 1)
  local call, err = ready(self, "problem:graph", path, outputs, options, 2)
  if not call then return nil, err end
  local handle, made = self.device.handle
  made, err = graph.record(self.device, function()
    local ok, why
    for _ = 1, count do
      ok, why = F.check(C.fh_sparse_fwd(handle, call))
      if not ok then break end
    end
    return ok, why
  end)
  if made then anchors[made] = call end
  return made, err
end

-- ---- Samples ----------------------------------------------------------------------------------------------------------------

--- The problem of rows first, first + step, .. alone, counted from 1 as in tensor:slice(1, first, s_q, step), on the same q, kv
-- and indices: what a slow path can be asked where the whole is too much. Its outputs are contiguous. nil, err without memory.
function Problem:rows(first, step)
  check(self, "rows")
  args.integer("problem:rows: first", first, 1, self.s_q)
  step = step == nil and 1 or args.integer("problem:rows: step", step, 1)
  local s_q = math.floor((self.s_q - first) / step) + 1
  local keys, lengths = ffi.new("int32_t[?]", s_q), nil
  for i = 0, s_q - 1 do keys[i] = self.keys[first - 1 + i * step] end
  if self.topk_length then
    local all, err = self.topk_length:read()
    if not all then return nil, err end
    lengths = ffi.new("int32_t[?]", s_q)
    for i = 0, s_q - 1 do lengths[i] = all[first - 1 + i * step] end
  end
  local steps = {
    q = function() return self.q:slice(1, first, self.s_q, step) end,
    indices = function() return self.indices:slice(1, first, self.s_q, step) end,
    kv = function() return self.kv:slice(1, 1, self.case.s_kv) end,
    attn_sink = self.attn_sink and function() return self.attn_sink:slice(1, 1, self.case.h_q) end,
    topk_length = lengths and function() return tensor.new(self.device, "i32", { s_q }) end,
  }
  local inputs = {}
  for key, make in pairs(steps) do
    local made, err = make()
    if not made then return nil, err end
    inputs[key] = made
  end
  if lengths then
    local ok, err = inputs.topk_length:write(lengths)
    if not ok then return nil, err end
  end
  return new(self.case, self.device, inputs, keys, s_q, "contiguous")
end

--- Give the memory back; twice does nothing. Outputs stay with whoever asked for them; calls and runners must not run any more.
function Problem:free()
  if getmetatable(self) ~= Problem then error(("problem:free: got %s, wanted a problem"):format(args.show(self)), 2) end
  self.freed = true
  for _, key in ipairs(INPUTS) do
    if self[key] then self[key]:free() end
  end
  if self.workspace then self.workspace:free() end
end

function Problem:__tostring()
  return ("problem %s on %s, %d rows"):format(self.case:id(), self.device.name, self.s_q)
end

return M
