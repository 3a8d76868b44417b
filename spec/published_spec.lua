-- The tests that the published few-head kernel came with, on real sizes: 8 of 64 heads, d 512, topk 640 of which 512 are listed,
-- a sink, s_q 64, 2048 and 8192; q and out as engines pass them, a dim-0 slice of the step's buffer, out written in place.
local ffi = require "ffi"
local case = require "fewhead.case.case"
local device = require "fewhead.device.device"
local parity = require "fewhead.measure.parity"
local F = require "fewhead.base.ffi"
local helper = require "spec.helper"

local dev = device.default()
local paths = helper.paths(dev)
local native, all = { select(2, unpack(paths)) }, { "reference", unpack(paths) }

local H, PAD, D = 8, 64, 512

local function published(s_q, more)
  local options = {
    preset = "v4.1-flash tp8", s_q = s_q, s_kv = 8192, topk = 640, pattern = "uniform", lengths = 512, sink = "normal",
    layout = "vllm",
  }
  for key, value in pairs(more or {}) do options[key] = value end
  return case(options)
end

-- What the oracle is asked for: rows enough to meet every place of a packed group many times, in about a second.
local SAMPLE = 200

-- The bytes of a whole buffer.
local function bytes_of(t)
  local size = t.numel * (t.dtype == "bf16" and 2 or 4)
  local bytes = ffi.new("uint8_t[?]", size)
  assert(F.check(F.C.fh_view_read(t.handle, bytes, size)))
  return ffi.string(bytes, size)
end

describe("the published kernel tests", function()
  for _, s_q in ipairs { 64, 2048, 8192 } do
    it(("pass at s_q %d against the reference"):format(s_q), function()
      local c = published(s_q)
      local problem = assert(c:problem(dev))
      local want = assert(parity.expected(problem, { sample = SAMPLE }))
      for _, path in ipairs(native) do
        local r = parity.check(problem, path, { want = want })
        assert.equal("pass", r.status, r.reason)
        assert.equal(path, r.work.path)
        assert.equal(s_q, r.work.rows)
        assert.equal((r.sampled or s_q) * H * D, r.compared)
        assert.is_true(s_q == 64 or r.sampled > 100)
        -- FlashMLA's kernels and the published one alike: 0.0019 to 0.0021 against double precision, 0.00165 of it rounding.
        assert.is_true(r.rel > 0.0015 and r.rel < 0.0022)
      end
      c:free()
    end)
  end

  it("pass at s_q 64 and 2048 against padded heads, as closely as was published", function()
    for _, s_q in ipairs { 64, 2048 } do
      local c = published(s_q)
      local problem = assert(c:problem(dev))
      local want = assert(parity.expected(problem, { against = "padded" }))
      for _, path in ipairs(native) do
        local r = parity.check(problem, path, { want = want })
        assert.equal("pass", r.status, r.reason)
        assert.equal(s_q * H * D, r.compared)
        assert.is_true(r.mean_abs < 3.4e-5 and r.max_abs < 3.91e-3, ("mean_abs %g max_abs %g"):format(r.mean_abs, r.max_abs))
      end
      c:free()
    end
  end)
end)

describe("views as engines pass them", function()
  local problem = assert(published(64):problem(dev))

  it("are a dim-0 slice of the step's buffer, of which the first heads are real", function()
    local outputs = assert(problem:outputs())
    for _, t in ipairs { problem.q, outputs.out } do
      assert.same({ 64, H, D }, t.shape)
      assert.same({ PAD * D, D, 1 }, t.stride)
      assert.is_true(t.offset > 0 and t.offset % (PAD * D) == 0)
    end
  end)

  it("are written in place and nowhere else, by every path", function()
    for _, path in ipairs(all) do
      local outputs = assert(problem:outputs())
      local whole = outputs.canaries.out.whole
      local before = bytes_of(whole)
      assert.equal(("\255"):rep(#before), before)
      assert(problem:run(path, outputs))
      local after, row = bytes_of(whole), PAD * D * 2
      local first = outputs.out.offset / (PAD * D)
      for r = 0, whole.shape[1] - 1 do
        local real = after:sub(r * row + 1, r * row + H * D * 2)
        local padding = after:sub(r * row + H * D * 2 + 1, (r + 1) * row)
        assert.equal(("\255"):rep(#padding), padding)
        if r < first or r >= first + 64 then
          assert.equal(("\255"):rep(#real), real)
        else
          assert.is_nil(real:find("\255\255", 1, true), path)
        end
      end
      outputs:free()
    end
  end)

  it("change no bit of a result", function()
    local plain = assert(published(64, { layout = "contiguous" }):problem(dev))
    for _, path in ipairs(all) do
      local a, b = assert(problem:outputs()), assert(plain:outputs())
      assert(problem:run(path, a))
      assert(plain:run(path, b))
      for _, name in ipairs { "out", "lse", "max_logits" } do assert.is_true(bytes_of(a[name]) == bytes_of(b[name]), path) end
    end
  end)

  it("of some rows give what the whole gives for them, where rows do not depend on neighbours", function()
    for _, path in ipairs { "reference", "padded", "gather" } do
      local whole, some = assert(problem:outputs()), assert(problem:rows(6, 7))
      local part = assert(some:outputs())
      assert(problem:run(path, whole, { row_invariant = true }))
      assert(some:run(path, part, { row_invariant = true }))
      for _, name in ipairs { "out", "lse", "max_logits" } do
        assert.is_true(bytes_of(whole[name]:slice(1, 6, 64, 7)) == bytes_of(part[name]), path)
      end
    end
  end)
end)

describe("what the published kernel got wrong", function()
  it("lists shorter than topk read nothing past their length", function()
    -- Past the length stand row numbers of NaN rows.
    local c = published(16, { s_kv = 700 })
    local problem = assert(c:problem(dev))
    local lists = problem.indices:read()
    for row = 0, 15 do
      for k = 0, 511 do lists[row * 640 + k] = (row * 31 + k) % 600 end
      for k = 512, 639 do lists[row * 640 + k] = 600 + k % 100 end
    end
    problem.indices:write(lists)
    problem.kv:slice(1, 601, 700):fill(0 / 0)
    for _, path in ipairs(paths) do
      local r = parity.check(problem, path)
      assert.equal("pass", r.status, r.reason)
      assert.equal(16 * H * D, r.compared)
    end
  end)

  it("KV rows past 2^31 elements are found: a 1M-token context has 4,227,584 of them", function()
    if not helper.on_cpu() then pending("memory of the host; spec/cuda_spec.lua reaches as far on a GPU") end
    local ROWS, FIRST, LISTED = 4227584, 4194304, 100
    -- Address space alone: only the rows that are listed get memory.
    ffi.cdef "void *mmap(void *, size_t, int, int, int, int64_t); int munmap(void *, size_t);"
    local READ_WRITE, PRIVATE_ANONYMOUS_NORESERVE = 3, 0x4022
    local bytes = ROWS * D * 2
    local memory = ffi.C.mmap(nil, bytes, READ_WRITE, PRIVATE_ANONYMOUS_NORESERVE, -1, 0)
    assert.is_true(ffi.cast("intptr_t", memory) ~= -1)
    local kv = ffi.cast("uint16_t *", memory)

    local problem = assert(published(5, { s_kv = 700, topk = LISTED, lengths = "none" }):problem(dev))
    local near, list = problem.kv:read(), problem.indices:read()
    for i = 0, LISTED - 1 do
      ffi.copy(kv + (FIRST + i * 300) * D, near + i * D, D * 2)
      for row = 0, 4 do list[row * LISTED + i] = i end
    end
    problem.indices:write(list)
    local want = assert(parity.expected(problem))
    for i = 0, 5 * LISTED - 1 do list[i] = FIRST + list[i] * 300 end
    problem.indices:write(list)
    for _, path in ipairs(all) do
      local outputs = assert(problem:outputs())
      local call = assert(problem:call(path, outputs))
      call.kv, call.s_kv, call.kv_stride = kv, ROWS, D
      assert(F.check(F.C.fh_sparse_fwd(dev.handle, call)))
      local r = parity.compare(outputs, want)
      assert.equal("pass", r.status, r.reason)
    end
    ffi.C.munmap(memory, bytes)
  end)

  it("32 heads are all written", function()
    local problem = assert(published(9, { heads = 32 }):problem(dev))
    for _, path in ipairs(paths) do
      local r = parity.check(problem, path)
      assert.equal("pass", r.status, r.reason)
      assert.equal(9 * 32 * D, r.compared)
    end
  end)
end)
