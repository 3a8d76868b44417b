-- What only a CUDA device can show: its memory, streams, graphs and errors, and kernels at the edges of addresses. The other
-- specs run on it with FEWHEAD_DEVICE=cuda.
local ffi = require "ffi"
local case = require "fewhead.case.case"
local device = require "fewhead.device.device"
local grid = require "fewhead.measure.grid"
local parity = require "fewhead.measure.parity"
local plan = require "fewhead.device.plan"
local tensor = require "fewhead.device.tensor"
local timing = require "fewhead.measure.timing"
local F = require "fewhead.base.ffi"
local helper = require "spec.helper"

require("fewhead.measure.assert").register()

local C = F.C
local PATHS = { "padded", "gather" }
local GIGA = 1e9

-- The elements of a tensor as they stand, in row-major order.
local function bytes_of(t)
  local size = t.numel * C.fh_dtype_bytes(F.dtypes[t.dtype])
  local host = ffi.new("uint8_t[?]", math.max(1, size))
  assert(F.check(C.fh_view_read(t.handle, host, size)))
  return ffi.string(host, size)
end

local function same_outputs(a, b)
  for _, name in ipairs { "out", "lse", "max_logits" } do
    if bytes_of(a[name]) ~= bytes_of(b[name]) then return false end
  end
  return true
end

ffi.cdef "int setenv(const char *, const char *, int); int unsetenv(const char *);"

describe("a CUDA device #gpu", function()
  local dev, cpu
  setup(function()
    dev, cpu = assert(device.open("cuda")), assert(device.open("cpu", { threads = 2 }))
  end)
  teardown(function()
    dev:close()
    cpu:close()
  end)

  -- The same device with the kernels for any device alone.
  local function forced_portable(value)
    ffi.C.setenv("FEWHEAD_FORCE_PORTABLE", value or "1", 1)
    local portable, err = device.open("cuda")
    ffi.C.unsetenv("FEWHEAD_FORCE_PORTABLE")
    if value then return portable, err end
    return assert(portable, err)
  end

  -- A chunk that all kernels can be asked: lists with holes and lengths, sinks, a buffer of 64 heads.
  local function problem_of(changes, on)
    local options = { s_q = 40, h_q = 8, topk = 200, s_kv = 500, pattern = "uniform", holes = 0.05, lengths = "uniform",
      sink = "normal", layout = "vllm", seed = 3 }
    for key, v in pairs(changes or {}) do options[key] = v end
    return assert(case(options):problem(on or dev))
  end

  describe("as such", function()
    it("is opened by name and number, and says what it is", function()
      assert.equal(C.fh_device_count(C.FH_DEVICE_CUDA), #device.names() - 1)
      assert.equal("cuda:0", device.names()[2])
      local info = dev:info()
      assert.same({ "cuda", 0 }, { info.kind, info.ordinal })
      assert.matches("^%d+%.%d$", info.capability)
      assert.is_true(tonumber(info.capability) >= 8)
      assert.is_nil(info.threads)
      assert.is_nil(info.isa)
      assert.is_true(info.multiprocessors > 0 and info.cache_bytes > 0 and info.memory_bytes > 2^30 and info.clock_mhz > 0)
      assert.matches("CUDA %d+%.%d+$", info.driver)
      local again = assert(device.open("cuda:0"))
      assert.equal(info.name, again:info().name)
      assert.equal(("cuda:0: %s, %d multiprocessors, compute capability %s"):format(info.name, info.multiprocessors,
        info.capability), tostring(again))
      again:close()
    end)

    it("is refused by name when it is not there, and with options of a CPU", function()
      local _, err = device.open("cuda:1000000")
      assert.equal(('name: got "cuda:1000000", wanted cuda:0 .. cuda:%d, the devices of this machine'):format(
        #device.names() - 2), err)
      _, err = device.open("cuda", { threads = 4 })
      assert.equal("options.threads: got 4 for a CUDA device, wanted 0", err)
      _, err = device.open("cuda", { isa = "avx2" })
      assert.equal("options.isa: got 2 for a CUDA device, wanted 0", err)
    end)

    it("has every path, and packed up to 64 heads", function()
      local portable = forced_portable()
      for _, d in ipairs { dev, portable } do
        for _, path in ipairs { "auto", "reference", "padded", "gather" } do assert.is_true(d:has_path(path)) end
      end
      for _, d in ipairs { dev, portable } do
        assert.is_true(d:has_path("packed"))
        assert.is_false(d:has_path("packed", 65))
      end
      local p = problem_of({ h_q = 65 }, portable)
      local _, err = p:run("packed", assert(p:outputs()))
      assert.equal(("path packed on CUDA: required: compute capability %s, h_q 65; supported by portable packed: compute "
        .. "capability 8.0 and up, h_q 1 .. 64; missing: a kernel for h_q 65; use gather or padded")
        :format(dev:info().capability), err)
      portable:close()
    end)

    it("names the kernel that ran, by the alignment of the arrays", function()
      local native = dev:info().capability == "9.0" and "sm90" or "portable"
      local p = problem_of { s_q = 9, layout = "contiguous" }
      local function kernels()
        local padded, gather = assert(p:run("padded", assert(p:outputs()))), assert(p:run("gather", assert(p:outputs())))
        return { padded.kernel, gather.kernel }
      end
      local on_9_0 = native == "sm90"
      assert.same({ on_9_0 and "sm90 padded" or "portable gather", native .. " gather" }, kernels())
      local odd = tensor(dev, "bf16", { p.kv.shape[1], 513 }):fill(0)[{ {}, { 1, 512 } }]
      p.kv = odd:copy_from(p.kv)
      local slow = "portable gather, unaligned"
      assert.same({ on_9_0 and "sm90 padded, unaligned" or slow, slow }, kernels())
    end)

    it("leaves the thread's context as it was", function()
      ffi.cdef "int cuCtxGetCurrent(void **); int cuCtxSetCurrent(void *); int cuDevicePrimaryCtxRetain(void **, int);"
      local cuda, context = ffi.load("libcuda.so.1"), ffi.new("void *[1]")
      local function current()
        assert.equal(0, cuda.cuCtxGetCurrent(context))
        return context[0]
      end
      assert.equal(0, cuda.cuDevicePrimaryCtxRetain(context, #device.names() - 2)) -- the last device's
      for _, kept in ipairs { ffi.cast("void *", 0), context[0] } do
        assert.equal(0, cuda.cuCtxSetCurrent(kept))
        local p = problem_of()
        local o = assert(p:outputs())
        for _, path in ipairs { "reference", "padded", "gather", "auto" } do assert(p:run(path, o)) end
        assert(timing.problem(p, { "gather" }, { max_seconds = 0, cold = true }))
        local graph = assert(p:graph("gather", o, 2))
        assert.equal(0, graph:launch())
        graph:free()
        assert.untouched(o)
        tensor(dev, "f32", { 4, 4 }):random():slice(1, 4, 1, -1):to_table()
        assert.is_nil((tensor(dev, "f32", { 2^50 })))
        local other = assert(device.open("cuda"))
        other:close()
        p:free()
        o:free()
        collectgarbage()
        assert.is_true(current() == kept)
      end
      assert.equal(0, cuda.cuCtxSetCurrent(nil))
    end)
  end)

  describe("memory", function()
    it("is random in the same bits as the CPU's", function()
      for _, dtype in ipairs { "bf16", "f32", "i32" } do
        for _, options in ipairs {
          { dist = "uniform", low = -3, high = 5 }, { dist = "normal", mean = 0.25, sd = 3 },
          { dist = "normal", mean = 0, sd = 0 },
        } do
          if dtype ~= "i32" or options.dist == "uniform" then
            options.seed, options.stream = 2^52 + 11, 2^33 + 5
            for _, shape in ipairs { { 1 }, { 3, 5, 7, 11 }, { 70001 }, { 1025, 513 } } do
              local a, b = tensor(dev, dtype, shape):random(options), tensor(cpu, dtype, shape):random(options)
              assert.is_true(bytes_of(a) == bytes_of(b))
            end
            local a = tensor(dev, dtype, { 60, 100 }, { stride = { -203, 2 } }):random(options)
            assert.is_true(bytes_of(a) == bytes_of(tensor(cpu, dtype, { 60, 100 }):random(options)))
          end
        end
      end
    end)

    it("is read, written and copied through any strides", function()
      for _, dtype in ipairs { "bf16", "f32" } do
        local a, b = tensor(dev, dtype, { 4, 9, 8, 10 }):random(), tensor(cpu, dtype, { 4, 9, 8, 10 }):random()
        for _, index in ipairs {
          { {}, { 9, 1, -1 } }, { 2, {}, { 1, 7, 3 }, { 10, 3, -2 } }, { {}, {}, {}, 4 }, { { 3, 2 } }, { 1, 2, 3, { 4, 4 } },
        } do
          assert.is_true(bytes_of(a[index]) == bytes_of(b[index]))
        end
        local source = tensor(cpu, dtype, { 4, 5 }):random { seed = 9 }
        for _, t in ipairs { a, b } do
          t[{ {}, 3, 2, { 9, 1, -2 } }]:copy_from(source) -- to the GPU from another device
          t[{ { 4, 1, -3 }, { 1, 2 } }] = t[{ { 2, 3 }, { 4, 5 } }]
          t[{ {}, {}, 5, 1 }] = -1.5
        end
        assert.is_true(bytes_of(a) == bytes_of(b))
      end
    end)

    it("is staged piece by piece where a view is larger than the stage", function()
      local size = math.max(2 * dev:info().cache_bytes, 2^25) -- of the stage
      local rows = math.ceil(size / 2 / 2^20) + 3
      local a, b = tensor(dev, "bf16", { 3, rows, 2^20 }), tensor(cpu, "bf16", { rows, 2^19 }):random { seed = 5 }
      local part = a[{ 2, {}, { 1, 2^20, 2 } }]
      part:write((b:read()))
      assert.is_true(bytes_of(part) == bytes_of(b))
      local whole = a[{ 2 }]:slice(2, 2^20, 1, -1):slice(1, rows, 1, -1) -- more than one stage
      assert.equal(part:get(2, 3), whole:get(rows - 1, 2^20 - 4))
      local host = whole:read()
      assert.equal(part[{ 1, 1 }], tensor.to_float(host[rows * 2^20 - 1]))
      assert.equal(part[{ rows, 2^19 }], tensor.to_float(host[1]))
    end)

    it("refuses to set elements that share memory, but for one value", function()
      local t = tensor(dev, "f32", { 3, 4 }, { stride = { 0, 1 } }):fill(2)
      assert.same({ { 2, 2, 2, 2 }, { 2, 2, 2, 2 }, { 2, 2, 2, 2 } }, t:to_table())
      local message = "view: its elements share memory; on CUDA only fh_view_fill sets such a view"
      for _, set in ipairs {
        function() return t:random() end, function() return t:write(ffi.new("float[12]")) end,
        function() return t:copy_from(tensor(dev, "f32", { 3, 4 }, { fill = 1 })) end,
      } do
        local ok, err = set()
        assert.is_nil(ok)
        assert.equal(message, err)
      end
      assert.equal(2, t:get(3, 4))
    end)

    it("runs out in words", function()
      local _, err = tensor(dev, "f32", { 2^50 })
      assert.equal("bytes: got 4503599627370496, more than the device could allocate (cudaMalloc: " ..
        "cudaErrorMemoryAllocation (out of memory))", err)
    end)

    it("of the host is refused where the device cannot reach it", function()
      local host, box = ffi.new("float[4]"), ffi.gc(ffi.new("fh_buffer *[1]"), C.fh_buffer_free)
      local status = C.fh_buffer_wrap(dev.handle, host, 16, box)
      if status ~= 0 then -- there are devices that reach all of it
        local _, err, name = F.check(status)
        assert.equal("FH_ERR_ARGUMENT", name)
        assert.matches("^base: got 0x%x+, memory of the host, wanted memory that cuda:0 reaches$", err)
      end
      local t = tensor(dev, "f32", { 4 }, { fill = 7 })
      assert.equal(0, C.fh_buffer_wrap(dev.handle, t:data(), 16, box))
      assert.equal(0, C.fh_buffer_read(box[0], 4, host, 8))
      assert.same({ 7, 7, 0 }, { host[0], host[1], host[2] })
    end)

    it("of the host that was allocated for it serves both", function()
      local box = ffi.gc(ffi.new("fh_buffer *[1]"), C.fh_buffer_free)
      assert.equal(0, C.fh_buffer_alloc_host(dev.handle, 4096, box))
      local host = ffi.cast("uint8_t *", C.fh_buffer_data(box[0]))
      host[5] = 99
      local back = ffi.new("uint8_t[2]")
      assert.equal(0, C.fh_buffer_read(box[0], 5, back, 1))
      assert.equal(99, back[0])
      assert.equal(0, C.fh_buffer_fill(box[0], 0x21))
      assert.same({ 0x21, 0x21 }, { host[0], host[4095] })
    end)
  end)

  describe("calls", function()
    it("agree with the CPU's reference, checked once on small cases", function()
      local totals = grid.check_oracle { device = dev }
      assert.is_true(grid.ok(totals))
    end)

    it("find elements more than 2^31 from the base in kv, q and out", function()
      local FAR, ROWS = 2^31 + 2^20, 2 -- elements from row to row of q and out, and over all rows of kv
      local needed = 3 * 2 * FAR -- bytes
      if dev:info().memory_bytes < needed + 4 * GIGA then pending(("needs %.0f GB of memory"):format(needed / GIGA)) end
      local p = problem_of { s_q = ROWS, s_kv = 9, topk = 12, layout = "contiguous", lengths = "none" }
      local want = assert(parity.expected(p))
      local q = assert(tensor.new(dev, "bf16", { ROWS, 8, 512 }, { stride = { FAR, 512, 1 } }))
      q:copy_from(p.q)
      local kv = assert(tensor.new(dev, "bf16", { 9, 512 }, { stride = { FAR / 8, 1 } }))
      kv:copy_from(p.kv)
      local out = assert(tensor.new(dev, "bf16", { ROWS, 8, 512 }, { stride = { FAR, 512, 1 } }))
      p.q, p.kv = q, kv
      for _, path in ipairs { "reference", unpack(PATHS) } do
        out:fill(0 / 0)
        assert(p:run(path, { out = out }))
        local r = parity.compare({ out = out }, want, { tolerance = parity.tolerance_of(p) })
        assert.equal("pass", r.status, r.reason)
        assert.equal(ROWS * 8 * 512, r.compared)
      end
      for _, t in ipairs { q, kv, out } do t:free() end
    end)

    it("take pointers at any multiple of an element, and rows at any distance", function()
      local p = problem_of { s_q = 9, layout = "contiguous" }
      local want = assert(parity.expected(p))
      local inputs = { q = p.q, kv = p.kv }
      for _, pad in ipairs { 8, 5 } do -- rows stay on 16 bytes with the first, not with the second
        for shift = 0, pad do
          local columns = { 1 + shift, 512 + shift }
          for key, t in pairs(inputs) do
            local shape = { unpack(t.shape) }
            shape[t.rank] = 512 + pad
            local index = t.rank == 3 and { {}, {}, columns } or { {}, columns }
            p[key] = tensor(dev, "bf16", shape):fill_bytes(0xff)[index]:copy_from(t)
          end
          for _, path in ipairs { "reference", unpack(PATHS) } do
            local whole = tensor(dev, "bf16", { 9, 8, 512 + pad }):fill_bytes(0xff)
            local out = whole[{ {}, {}, columns }]
            assert(p:run(path, { out = out }))
            local r = parity.compare({ out = out }, want, { tolerance = parity.tolerance_of(p) })
            assert.equal("pass", r.status, ("%s at %d: %s"):format(path, shift, tostring(r.reason)))
            local around = bytes_of(whole[{ {}, {}, { 1, shift } }]) .. bytes_of(whole[{ {}, {}, { 513 + shift, 512 + pad } }])
            assert.equal(("\255"):rep(9 * 8 * pad * 2), around)
          end
        end
      end
    end)

    it("keep a row of NaN or Inf to the queries that list it", function()
      for _, value in ipairs { 0 / 0, math.huge } do
        local p = problem_of { s_q = 64, s_kv = 300, topk = 128, lengths = "none", holes = 0 }
        local lists, bad = assert(p.indices:read()), 77
        for row = 0, 63 do
          for k = 0, 127 do
            if lists[row * 128 + k] == bad then lists[row * 128 + k] = -1 end
          end
          if row % 3 == 0 then lists[row * 128 + 11 * row % 128] = bad end
        end
        p.indices:write(lists)
        for _, path in ipairs { "reference", unpack(PATHS) } do
          local clean, dirty = assert(p:outputs()), assert(p:outputs())
          local row = p.kv:slice(1, bad + 1, bad + 1)
          local before = tensor(dev, "bf16", { 1, 512 }):copy_from(row)
          assert(p:run(path, clean))
          row:fill(value)
          assert(p:run(path, dirty))
          row:copy_from(before)
          for _, name in ipairs { "out", "lse", "max_logits" } do
            for _, first in ipairs { 2, 3 } do
              assert.is_true(bytes_of(clean[name]:slice(1, first, 64, 3)) == bytes_of(dirty[name]:slice(1, first, 64, 3)), path)
            end
          end
          local v = dirty.out:get(1, 1, 1)
          assert.is_true(v ~= v or v == math.huge or v == -math.huge, path)
        end
      end
    end)

    it("give a row the same bits however many rows there are, with row_invariant", function()
      local p = problem_of { s_q = 300, topk = 640, s_kv = 2000, lengths = "none" }
      for _, path in ipairs(PATHS) do
        local whole = assert(p:outputs())
        assert(p:run(path, whole, { row_invariant = true }))
        for _, step in ipairs { 7, 299 } do
          local part = assert(p:rows(1, step))
          local o = assert(part:outputs())
          assert(part:run(path, o, { row_invariant = true }))
          for _, name in ipairs { "out", "lse", "max_logits" } do
            assert.is_true(bytes_of(whole[name]:slice(1, 1, 300, step)) == bytes_of(o[name]), path)
          end
        end
      end
    end)

    it("take 131072 rows", function()
      local p = problem_of { s_q = 131072, h_q = 1, topk = 16, s_kv = 4096, layout = "contiguous" }
      local want = assert(parity.expected(p, { sample = 2000 }))
      for _, path in ipairs(PATHS) do
        local r = parity.check(p, path, { want = want })
        assert.equal("pass", r.status, r.reason)
      end
    end)

    it("leave it to the device which groups of few heads and many rows are packed, and pad full tiles", function()
      for heads, paths in pairs {
        [1] = { "gather", "auto" }, [8] = { "gather", "auto" }, [16] = { "gather", "auto" },
        [64] = { "padded", "padded" }, [128] = { "padded", "padded" },
      } do
        for i, s_q in ipairs { 64, 2048 } do
          local p = problem_of { s_q = s_q, h_q = heads, s_kv = 1000, topk = 640, lengths = "none", layout = "contiguous" }
          local wanted = dev:has_path("packed", heads) and paths[i] or paths[1]
          local work = assert(p:run("auto", assert(p:outputs())))
          assert.same({ wanted, { [wanted] = s_q } }, { work.path, work.by_path })
          p:free()
        end
      end
    end)

    -- Costs by which about half of the groups of a problem with lists of any length are packed: a group costs what half full
    -- lists do row by row on `path`.
    local function halves(p, path)
      local costs, case_ = ffi.new("fh_costs", { struct_size = ffi.sizeof("fh_costs") }), p.case
      costs.padded.call_us, costs.gather.call_us = 1e9, 1e9
      costs[path].call_us, costs[path].unit_us = 0, 0
      costs[path].gflop_us = 1 / (2e-9 * (case_.d_qk + case_.d_v) * (path == "gather" and case_.h_q or case_.h_pad))
      costs.packed.unit_us = 0.5 * case_.topk * math.floor(64 / case_.h_q)
      return costs
    end

    -- The plan of a problem for auto calls by some costs.
    local function plan_by(p, costs)
      local priced = setmetatable({}, { __index = p })
      function priced:bare_call(...) -- luacheck: ignore self
        local call = p:bare_call(...)
        call.costs = costs
        return call
      end
      return assert(plan.build(priced, { path = "auto" }))
    end

    -- An auto call by some costs, with a workspace of its own, on a plan or on one that it builds.
    local function auto_call(p, outputs, costs, made)
      local call, bytes = assert(p:call("auto", outputs, { plan = made })), ffi.new("uint64_t[1]")
      call.costs = costs
      assert(F.check(C.fh_workspace_bytes(dev.handle, call, bytes)))
      local workspace = tensor(dev, "i32", { math.max(1, math.ceil(tonumber(bytes[0]) / 4)) })
      call.workspace, call.workspace_bytes = workspace:data(), bytes[0]
      return call, workspace
    end

    it("compute each group of an auto call as the path that its plan names does, bit for bit", function()
      for heads, path in pairs { [5] = "gather", [8] = "gather", [16] = "gather", [32] = "padded" } do
        if dev:has_path("packed", heads) then
          local p = problem_of { s_q = 701, h_q = heads, lengths = "uniform", repeats = true }
          local costs = halves(p, path)
          local made = plan_by(p, costs)
          assert.is_true(made:unpacked() > 0 and made:unpacked() < made.groups)
          local rows, packed = assert(p:outputs()), assert(p:outputs())
          assert(p:run(path, rows))
          assert(p:run("packed", packed, { plan = made }))
          local order = made:order()
          for _, own in ipairs { false, true } do
            local got = assert(p:outputs())
            local call, workspace = auto_call(p, got, costs, not own and made or nil)
            assert.equal(0, C.fh_sparse_fwd(dev.handle, call))
            assert(dev:synchronize())
            for i, g in ipairs(order) do
              local first, last = (g - 1) * made.group + 1, math.min(g * made.group, 701)
              local want = i <= made:unpacked() and rows or packed
              for _, name in ipairs { "out", "lse", "max_logits" } do
                assert.is_true(bytes_of(want[name]:slice(1, first, last)) == bytes_of(got[name]:slice(1, first, last)), name)
              end
            end
            assert.untouched(got)
            workspace:free()
          end
          made:free()
        end
      end
    end)

    it("decide anew when a graph runs again on other lists in place", function()
      if not dev:has_path("packed", 8) then return end
      local p = problem_of { s_q = 300, lengths = "uniform" }
      local other = problem_of { s_q = 300, lengths = "uniform", seed = 9 }
      local costs, got, want = halves(p, "gather"), assert(p:outputs()), assert(p:outputs())
      local call, workspace = auto_call(p, got, costs)
      local again, more = auto_call(p, want, costs)
      local box = ffi.gc(ffi.new("fh_graph *[1]"), C.fh_graph_free)
      assert(F.check(C.fh_graph_begin(dev.handle, nil)))
      assert.equal(0, C.fh_sparse_fwd(dev.handle, call))
      assert(F.check(C.fh_graph_end(dev.handle, nil, box)))
      local unpacked = {}
      for i = 1, 2 do
        if i == 2 then
          p.indices:copy_from(other.indices)
          p.topk_length:copy_from(other.topk_length)
        end
        assert(got:poison())
        assert.equal(0, C.fh_graph_launch(box[0], nil))
        assert.equal(0, C.fh_sparse_fwd(dev.handle, again))
        assert(dev:synchronize())
        assert.is_true(same_outputs(want, got))
        local made = plan_by(p, costs)
        unpacked[i] = { unpack(made:order(), 1, made:unpacked()) }
        made:free()
      end
      assert.is_true(#unpacked[1] > 0 and #unpacked[2] > 0)
      assert.is_not.same(unpacked[1], unpacked[2])
      workspace:free()
      more:free()
    end)

    it("count what the host can know: rows exactly, the rest as if lists were full", function()
      local p = problem_of { lengths = 100 }
      local o, counters = assert(p:outputs()), ffi.new("fh_counters")
      counters.struct_size = ffi.sizeof(counters)
      local call = assert(p:call("gather", o))
      call.counters = counters
      assert.equal(0, C.fh_sparse_fwd(dev.handle, call))
      assert.same({ 1, 40 }, { tonumber(counters.calls[F.paths.gather]), tonumber(counters.rows[F.paths.gather]) })
      assert.equal(2 * 8 * 1024 * 40 * 200, tonumber(counters.useful_flops))
      -- Each list is rounded up to whole tiles of the kernel: 64 keys of sm90 gather, 16 of portable gather.
      local kernel = ffi.string(counters.kernel)
      local keys = ({ ["sm90 gather"] = 256, ["portable gather"] = 208 })[kernel]
      assert.equal(2 * 8 * 1024 * 40 * keys, tonumber(counters.executed_flops))
      assert.equal(p.useful_flops, assert(p:run("gather", o)).useful_flops) -- here lists are known
    end)

    it("run on the kernels for any device with FEWHEAD_FORCE_PORTABLE=1", function()
      local portable = forced_portable()
      local none, refusal = forced_portable("yes")
      assert.is_nil(none)
      assert.equal('FEWHEAD_FORCE_PORTABLE: got "yes", wanted 0 or 1', refusal)
      local some, faults = {}, {}
      for i, entry in ipairs(grid.own()) do
        if i % 5 == 0 then some[#some + 1] = entry end
      end
      local totals = grid.run {
        device = portable, cases = some, on_result = function(_, c, result)
          if result.status ~= "pass" then faults[#faults + 1] = ("%s %s: %s"):format(result.path, c:id(), result.reason) end
        end,
      }
      assert.equal("", table.concat(faults, "\n"))
      assert.is_true(grid.ok(totals))
      portable:close()
    end)
  end)

  describe("streams and graphs", function()
    it("run calls on a stream that is not the device's", function()
      local stream = ffi.new("void *[1]")
      assert.equal(0, C.fh_stream_create(dev.handle, stream))
      local p = problem_of { s_q = 700 }
      for _, path in ipairs { "reference", unpack(PATHS) } do
        local want, got = assert(p:outputs()), assert(p:outputs())
        assert(p:run(path, want))
        local call = assert(p:call(path, got))
        call.stream = stream[0]
        local timer, us = ffi.gc(ffi.new("fh_timer *[1]"), C.fh_timer_free), ffi.new("double[1]")
        assert.equal(0, C.fh_timer_create(dev.handle, timer))
        local before = C.fh_time_ns()
        assert.equal(0, C.fh_timer_start(timer[0], stream[0]))
        assert.equal(0, C.fh_sparse_fwd(dev.handle, call))
        assert.equal(0, C.fh_timer_stop(timer[0], stream[0]))
        assert.equal(0, C.fh_timer_elapsed_us(timer[0], us))
        -- Start and stop lie within what the host waited, and the call between them took longer than nothing.
        assert.is_true(us[0] > 0 and us[0] <= tonumber(C.fh_time_ns() - before) / 1000)
        assert.is_true(same_outputs(want, got), path)
      end
      C.fh_stream_destroy(dev.handle, stream)
      assert.is_true(stream[0] == nil)
      C.fh_stream_destroy(dev.handle, stream)
    end)

    it("plan anew, in a graph, for lists and requests that have changed in place", function()
      if not dev:has_path("packed") then return pending("packed is not on this device") end
      local function chunk(rows, seed)
        return assert(case { s_q = 40, s_kv = 1200, pattern = "local", window = 16, index_topk = 100, ratio = 2, prior = 500,
          requests = rows, h_q = 8, seed = seed, boundaries = true, sink = "normal" }:problem(dev))
      end
      local p, other = chunk({ 13, 0, 27 }, 1), chunk({ 2, 30, 8 }, 2)
      local got, want = assert(p:outputs()), assert(p:outputs())
      local made = assert(plan.build(p))
      local graph = assert(p:graph("packed", got, 1))
      for _, from in ipairs { p, other } do
        for _, key in ipairs { "indices", "topk_length", "cu_seqlens_q" } do
          if from ~= p then assert(p[key]:copy_from(from[key])) end
        end
        assert(got:poison())
        assert.equal(0, graph:launch())
        assert(dev:synchronize())
        assert(p:run("packed", want))
        assert.is_true(same_outputs(want, got))
        assert.equal("pass", parity.check(p, "packed").status)
        local build = assert(made:rebuilder(p))
        assert.equal(0, build())
        assert(dev:synchronize())
        assert.same(assert(plan.build(p)):first(), made:first())
        assert.same(from == p and { 1, 9, 14, 22, 30, 38, 41, 41 } or { 1, 3, 11, 19, 27, 33, 41, 41 }, made:first())
      end
      graph:free()
    end)

    it("record calls and run them again on what lies there then", function()
      local p = problem_of { s_q = 50 }
      local other = assert(case { s_q = 50, h_q = 8, topk = 200, s_kv = 500, pattern = "uniform", seed = 4 }:problem(dev))
      for _, path in ipairs { "reference", unpack(PATHS) } do
        local got, want = assert(p:outputs()), assert(p:outputs())
        local graph = assert(p:graph(path, got, 3))
        local v = got.out:get(1, 1, 1)
        assert.is_true(v ~= v) -- recorded, not run
        for _, q in ipairs { other.q, p.q } do
          p.q:copy_from(q == p.q and tensor(dev, "bf16", q.shape):random { seed = 8 } or q)
          assert(got:poison())
          assert.equal(0, graph:launch())
          assert(dev:synchronize())
          assert(p:run(path, want))
          assert.is_true(same_outputs(want, got), path)
        end
        collectgarbage()
        assert.equal(0, graph:launch())
        graph:free()
        graph:free()
      end
    end)

    it("time many calls in one launch", function()
      local p = problem_of { s_q = 64, topk = 640, s_kv = 2000 }
      local before = C.fh_time_ns()
      local t = assert(timing.problem(p, PATHS, { graph = 10, max_seconds = 0.2 }))
      local waited_us = tonumber(C.fh_time_ns() - before) / 1000
      for _, path in ipairs(PATHS) do -- a sample is the time of one call: all of them lie within what the host waited
        local calls, us = 10 * t[path].n, 0
        for _, sample in ipairs(t[path].samples) do us = us + sample / t[path].n end
        assert.equal(t[path].n, #t[path].samples)
        assert.is_true(us > 0 and us * calls <= waited_us, path)
      end
    end)

    it("say what is wrong with a recording", function()
      local graph = ffi.new("fh_graph *[1]")
      local status = C.fh_graph_end(dev.handle, nil, graph) -- none was begun
      assert.equal(tonumber(C.FH_ERR_DEVICE), status)
      assert.matches("^cudaStreamEndCapture: cudaError%w+ %(", ffi.string(C.fh_error()))
      assert.is_true(graph[0] == nil)
      assert(problem_of():run("gather", assert(problem_of():outputs()))) -- and nothing else was spoilt
    end)
  end)

  describe("an error that CUDA does not recover from", function()
    it("says so, in every function from then on, and the process still ends well", function()
      local output, status = helper.luajit([[
        local fh, F = require "fewhead", require "fewhead.base.ffi"
        local dev = assert(fh.open("cuda"))
        local p = assert(fh.case { s_q = 4, heads = 8, topk = 8, pattern = "uniform", s_kv = 20 }:problem(dev))
        local call = assert(p:call("gather", assert(p:outputs())))
        call.kv = F.ffi.cast("uint16_t *", 0x100000) -- nobody's memory
        print(F.C.fh_sparse_fwd(dev.handle, call))
        print(select(2, dev:synchronize()))
        print(select(2, p.q:fill(1)))
        print(select(2, fh.tensor(dev, "f32", { 4 })))
        print((fh.open("cpu")))
        p:free()
        dev:close()]])
      local lines = {}
      for line in (output .. "\n"):gmatch("(.-)\n") do lines[#lines + 1] = line end
      assert.equal("0", lines[1]) -- it was only given to the device
      for i = 2, 4 do
        assert.matches("^%w[%w ]+: cudaErrorIllegalAddress %(.*%); the device's context is lost until the process ends$",
          lines[i])
      end
      assert.matches("^cpu: ", lines[5])
      assert.same({ 5, 0 }, { #lines, status })
    end)
  end)
end)
